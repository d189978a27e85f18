"""Proofs that an algorithm is right, from the jaxpr of its kernel: nothing runs, no device is needed."""

from hccljax.proof.verification import Proof, verify

__all__ = ["Proof", "verify"]
