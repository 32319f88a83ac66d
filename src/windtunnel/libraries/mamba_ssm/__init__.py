"""mamba_ssm: scans of state space models, forward and backward.

`Mamba`, `Mamba2`; `selective_scan_fn`, `mamba_inner_fn`; `mamba_chunk_scan_combined` and
`mamba_split_conv1d_scan_combined` (Mamba 2, whose scan is five kernels by chunks of tokens);
`selective_state_update`; `layernorm_gated` and `layer_norm` of `ops.triton`. They keep what the library keeps. The
gradient of Mamba 2's scan is one kernel here, of three times the operations; the library launches ten or so. Complex
matrices, packed texts (`seq_idx`, `cu_seqlens`), generation by the layers themselves, several ranks, Mamba 3 and whole
models are refused.

Source of the interface: mamba_ssm 2.2.4, mamba_ssm/ops/selective_scan_interface.py, ops/triton/ssd_combined.py and
modules; of what it allocates, csrc/selective_scan/selective_scan.cpp. Scans are priced by their bytes and operations:
nothing near them was measured.
"""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from .modules.mamba2 import Mamba2
from .modules.mamba_simple import Mamba
from .ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.2.4"
__all__ = ["Mamba", "Mamba2", "mamba_inner_fn", "selective_scan_fn"]


def __getattr__(name: str) -> NoReturn:
    refuse("mamba_ssm 2.2.4", "mamba_ssm", name)
