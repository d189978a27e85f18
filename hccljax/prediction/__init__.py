"""How long a whole training step takes on a cluster: computation, communication, and what overlaps."""

from hccljax.prediction.predict import Prediction, predict

__all__ = ["Prediction", "predict"]
