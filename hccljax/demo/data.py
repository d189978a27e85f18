"""The 1,797 handwritten digits that scikit-learn ships: 8 × 8 pixels each, real ones, no download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

TEST_SHARE = 5
"""One digit in this many is kept for the test."""

_SPLIT_SEED = 0  # the split stays the same whatever seed the training has: accuracies can be compared


@dataclass(frozen=True)
class Digits:
    """Images as floats from 0 to 1 and the digits they show.

    Attributes:
      images: float32 [n, 64].
      labels: int32 [n].
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, epochs: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(images [size, 64], labels [size]), shuffled anew each epoch; what fills no whole batch waits."""
        shuffle = np.random.default_rng(seed)
        for _ in range(epochs):
            order = shuffle.permutation(len(self))
            for start in range(0, len(self) - size + 1, size):
                chosen = order[start : start + size]
                yield self.images[chosen], self.labels[chosen]


def load() -> tuple[Digits, Digits]:
    """(training digits, test digits)."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    test, train = np.split(order, [len(order) // TEST_SHARE])
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])
