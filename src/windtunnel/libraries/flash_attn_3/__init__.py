"""flash_attn_3: the package that holds flash_attn 3's kernels; its functions are those of `flash_attn_interface`.

diffusers looks for it before it offers its backend `_flash_3`.

Source of the interface: Dao-AILab/flash-attention, hopper/setup.py.
"""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

__version__ = "3.0.0"
DISTRIBUTION = "flash_attn_3"


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn_3 3.0.0", "flash_attn_3", name)
