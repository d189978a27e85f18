"""The digits: all of them, each in one of the two sets, and batches that divide."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hccljax.demo import data
from hccljax.demo.data import Digits
from hccljax.demo.devices import cpu_mesh, servers
from hccljax.demo.train import Plan


def test_the_two_sets_are_all_digits_and_nothing_twice():
    train, test = data.load()
    together = np.column_stack(
        [np.concatenate([train.images, test.images]) * 16, np.concatenate([train.labels, test.labels])]
    )
    images, labels = load_digits(return_X_y=True)
    everything = np.column_stack([images, labels])
    assert len(test) == 359
    np.testing.assert_array_equal(
        together[np.lexsort(together.T)].astype(np.float64), everything[np.lexsort(everything.T)]
    )


def test_an_epoch_shows_every_digit_at_most_once_in_whole_batches():
    digits = Digits(np.arange(22.0).reshape(11, 2), np.arange(11))
    first, second = np.split(np.array([labels for _, labels in digits.batches(5, 2, seed=3)]), 2)
    assert first.shape == second.shape == (2, 5)
    assert len(set(first.ravel())) == len(set(second.ravel())) == 10
    assert not np.array_equal(first, second)


def test_images_stay_with_their_labels():
    digits = Digits(np.arange(22.0).reshape(11, 2), np.arange(11))
    for images, labels in digits.batches(5, 2, seed=3):
        np.testing.assert_array_equal(images[:, 0], 2 * labels)


def test_the_order_depends_on_the_seed_alone():
    digits = Digits(np.zeros((11, 2)), np.arange(11))

    def order(seed):
        return [labels.tolist() for _, labels in digits.batches(5, 2, seed)]

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize("devices", range(2, 9))
def test_every_device_gets_the_same_share_of_a_batch(devices):
    plan = Plan(cpu_mesh(devices), Digits(np.zeros((300, 64)), np.zeros(300)), epochs=3, seed=0)
    assert plan.batch % devices == 0
    assert 128 - devices < plan.batch <= 128
    assert plan.steps == len(list(plan.digits.batches(plan.batch, plan.epochs, plan.seed)))


@pytest.mark.parametrize(("devices", "topology"), [(2, "2"), (4, "2x2"), (6, "2x3"), (7, "7"), (8, "2x4")])
def test_an_even_number_of_devices_stands_in_two_servers(devices, topology):
    assert servers(devices) == topology
