"""Partitions that are none: each is refused when the Group is built, with the rank and the way out."""

import re

import pytest

from hccljax import ArgumentError, Group

# (what is called, what the message has to say)
GROUPS = {
    "a rank in two groups": (lambda: Group("rank", [[0, 1], [1, 2]]), "rank 1", "exactly one group"),
    "a rank twice in a group": (lambda: Group("rank", [[0, 0], [1, 2]]), "rank 0", "exactly one group"),
    "a rank that groups leave out": (lambda: Group("rank", [[0, 1], [2, 4]]), "rank 4", "0 to 3"),
    "a negative rank": (lambda: Group("rank", [[0, -1]]), "rank -1", "0 to 1"),
    "a rank beyond every int": (lambda: Group("rank", [[0, 10**30]]), "rank 10{30}", "0 to 1"),
    "no groups": (lambda: Group("rank", []), r"groups=\(\)", "at least one"),
    "an empty group": (lambda: Group("rank", [[], []]), "groups=", "none of them empty"),
    "groups that are no lists": (lambda: Group("rank", [0, 1]), r"groups=\[0, 1\]", r"\[\[0, 1\], \[2, 3\]\]"),
    "groups of floats": (lambda: Group("rank", [[0.0, 1.0]]), "groups=", r"\[\[0, 1\], \[2, 3\]\]"),
    "groups of texts": (lambda: Group("rank", "ab"), "groups='ab'", r"\[\[0, 1\], \[2, 3\]\]"),
    "an int as groups": (lambda: Group("rank", 3), "groups=3", r"\[\[0, 1\], \[2, 3\]\]"),
    "levels that are no ints": (lambda: Group("rank", levels="ab"), "levels", "'ab'|'a'"),
    "a level that is no whole number": (lambda: Group("rank", levels=(2.5, 4)), "levels", r"2\.5"),
    "an int as levels": (lambda: Group("rank", levels=8), "levels", "8"),
}


@pytest.mark.parametrize("mistake", GROUPS)
def test_a_bad_group_is_named_with_what_was_expected(mistake, error_of, helps):
    call, *says = GROUPS[mistake]
    message = error_of(call, ArgumentError)
    assert message.startswith("EI0003: ")
    assert all(re.search(part, message) for part in says), message
    assert helps(message), message
