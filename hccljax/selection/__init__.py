"""Which algorithm runs: HCCL_ALGO and the other settings, the rule that chooses, and the explanation."""

from hccljax.selection.choice import choose
from hccljax.selection.decision import Decision
from hccljax.selection.explanation import explain
from hccljax.selection.policies import policies, register_policy
from hccljax.selection.settings import Settings
from hccljax.selection.wanted import algorithms

__all__ = ["Decision", "Settings", "algorithms", "choose", "explain", "policies", "register_policy"]
