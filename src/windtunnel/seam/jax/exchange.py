"""DLPack in JAX: an array of an emulated GPU says so when it leaves, and one that comes from there stays there.

The bytes of an emulated GPU are in host memory, and XLA's client for it is one for CPUs: it cannot wait for a CUDA
stream, and needs not, since its arrays are handed on when they are computed.
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.seam.exports import Lent, lend
from windtunnel.seam.jax.types import Array, Device
from windtunnel.seam.patching import Patch


def patches(place_of: Callable[[object], int], index: Callable[[Device], int]) -> list[Patch]:
    """What is replaced; `place_of` gives the GPU of an array (-1 for the host's), `index` that of a device."""
    from jax._src import array  # type: ignore[import-untyped, unused-ignore]
    from jaxlib import _jax  # type: ignore[import-untyped, unused-ignore]

    export, platform = array.ArrayImpl.__dlpack__, array.ArrayImpl.platform
    stock_import = _jax.dlpack_managed_tensor_to_buffer

    def dlpack(self: Array, *, stream: object = None, dl_device: object = None, **options: object) -> object:
        place = place_of(self)
        if place < 0:
            return export(self, stream=stream, dl_device=dl_device, **options)
        self.block_until_ready()
        lent = self._wt_lent = Lent(place, int(self.nbytes))
        lend(self.unsafe_buffer_pointer(), lent)
        return export(self, **options)

    def shown_platform(self: object) -> object:
        return "gpu" if place_of(self) >= 0 else platform(self)

    def from_capsule(capsule: object, device: Device, stream: object, *rest: object) -> object:
        if index(device) < 0:
            return stock_import(capsule, device, stream, *rest)
        return stock_import(capsule, device, None, *rest[:1])

    return [
        Patch(array.ArrayImpl, "__dlpack__", dlpack),
        Patch(array.ArrayImpl, "platform", shown_platform),
        Patch(_jax, "dlpack_managed_tensor_to_buffer", from_capsule),
    ]
