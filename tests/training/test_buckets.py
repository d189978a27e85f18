"""The plan: which leaves travel together, and in which order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hccljax
from hccljax.training.buckets import Leaf, plan


def leaves(*elements, kind="float32", itemsize=4):
    return [Leaf(kind, itemsize * n, itemsize) for n in elements]


def test_the_last_leaves_come_first_and_fill_a_bucket():
    assert plan(leaves(5, 5, 5, 5, 5), 40) == ((4, 3), (2, 1), (0,))


def test_a_leaf_as_long_as_a_bucket_is_alone_and_leaves_the_open_one_open():
    assert plan(leaves(1, 10, 1, 100, 1), 40) == ((3,), (1,), (4, 2, 0))


def test_a_bucket_is_not_overfilled():
    assert plan(leaves(4, 5, 5), 39) == ((2,), (1, 0))


def test_kinds_do_not_mix_and_a_bucket_stands_where_its_last_leaf_does():
    mixed = [*leaves(1), *leaves(1, kind="bfloat16", itemsize=2), *leaves(1), *leaves(1, kind=None)]
    assert plan(mixed, 400) == ((3,), (1,), (2, 0))


def test_nothing_to_plan():
    assert plan([], 1) == ()


def test_empty_leaves_travel_with_the_others():
    assert plan(leaves(0, 3, 0), 40) == ((2, 1, 0),)


@pytest.mark.parametrize("bucket_bytes", [1, 3])
def test_a_bucket_that_holds_no_element_is_refused(bucket_bytes):
    with pytest.raises(hccljax.ArgumentError, match=f"bucket_bytes={bucket_bytes}: expected 4 or more"):
        plan(leaves(1, 0), bucket_bytes)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["a", "b", None])), max_size=40),
    st.integers(4, 300),
)
def test_every_leaf_is_in_one_bucket_which_it_fits(given_leaves, bucket_bytes):
    every = [Leaf(kind, 4 * n, 4) for n, kind in given_leaves]
    buckets = plan(every, bucket_bytes)
    assert sorted(sum(buckets, ())) == list(range(len(every)))
    for bucket in buckets:
        assert list(bucket) == sorted(bucket, reverse=True)
        assert len({every[i].kind for i in bucket}) == 1
        assert len(bucket) == 1 or sum(every[i].nbytes for i in bucket) <= bucket_bytes
        assert len(bucket) == 1 or every[bucket[0]].kind is not None
    assert [bucket[-1] for bucket in buckets] == sorted((bucket[-1] for bucket in buckets), reverse=True)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(4, 300))
def test_two_buckets_of_a_kind_would_not_fit_into_one(sizes, bucket_bytes):
    every = leaves(*sizes)
    small = [b for b in plan(every, bucket_bytes) if every[b[0]].nbytes < bucket_bytes]
    for one, other in pairwise(small):
        assert sum(every[i].nbytes for i in one) + every[other[0]].nbytes > bucket_bytes
