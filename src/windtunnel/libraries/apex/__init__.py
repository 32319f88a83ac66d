"""apex, NVIDIA's extensions: norms in one kernel, and optimizers that update all parameters in a few.

`apex.normalization` (FusedLayerNorm, FusedRMSNorm and their mixed kin) and `apex.optimizers` (FusedAdam). Norms are
those of PyTorch, which launch one kernel and keep the same; FusedAdam keeps its state in float32, whatever its
parameters are. `apex.amp`, `apex.parallel`, `apex.contrib`, other optimizers, and norms with `memory_efficient` are
refused: PyTorch has the first two itself.

Source of the interface: NVIDIA/apex 0.1, apex/normalization/fused_layer_norm.py and apex/optimizers/fused_adam.py.
"""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

__version__ = "0.1"


def __getattr__(name: str) -> NoReturn:
    refuse("apex 0.1", "apex", name)
