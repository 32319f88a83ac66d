"""Small parts of a training loop that keep a GPU busy."""

from carousel.averages import RunningMean, WeightAverage
from carousel.prefetch import Prefetcher
from carousel.replicas import average_

__all__ = ["Prefetcher", "RunningMean", "WeightAverage", "average_"]
