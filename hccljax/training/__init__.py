"""Data-parallel training: gradients that go through the algorithm you chose."""

from hccljax.training.gradients import as_varying, value_and_grad

__all__ = ["as_varying", "value_and_grad"]
