"""What operations cost on a chosen GPU: `CostModel` turns plain data into nanoseconds; all numbers are in `data/`."""

from windtunnel.cost.model import CostModel, KernelCost

__all__ = ["CostModel", "KernelCost"]
