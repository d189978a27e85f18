"""The one table of collective primitives."""

from hccljax.schedule.collective import COLLECTIVES, KINDS


def test_primitives_of_one_kind_differ_in_nothing():
    """So that an event, which has its kind only, says how it reduces and whether XLA does it in its own way."""
    for collective in COLLECTIVES.values():
        assert collective == KINDS[collective.kind]


def test_what_each_kind_is():
    kinds = lambda **wanted: {  # noqa: E731
        kind for kind, one in KINDS.items() if all(getattr(one, name) == value for name, value in wanted.items())
    }
    assert kinds(sends_once=True) == {"permute"}
    assert kinds(opaque=True) == {"psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all"}
    assert kinds(reduction="sum") == {"psum", "reduce_scatter"}
    assert kinds(cut=True) == {"mesh_exchange", "reduce_scatter", "all_to_all"}
