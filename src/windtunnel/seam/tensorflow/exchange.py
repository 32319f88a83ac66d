"""DLPack in TensorFlow: a tensor of an emulated GPU says so when it leaves, and one that comes from there goes there.

TensorFlow binds a capsule to the device that the capsule names, which is the host here. So memory that is lent by an
emulated GPU is copied once to the logical CPU that stands for it, where real GPUs would share it; the copy costs no
modelled time.
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.seam.exports import Lent, lend, place_at
from windtunnel.seam.patching import Patch
from windtunnel.seam.tensorflow.types import Tensor


def patches(place_of: Callable[[object], int]) -> list[Patch]:
    """What is replaced; `place_of` gives the GPU of a tensor (-1 for the host's)."""
    import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from tensorflow.python.framework import ops  # type: ignore[import-not-found, import-untyped, unused-ignore]

    base, library = ops._EagerTensorBase, tf.experimental.dlpack
    export, device = base.__dlpack__, base.__dlpack_device__
    stock_import, copied, values = library.from_dlpack, base._copy_nograd, ops.EagerTensor._numpy_internal

    def address(tensor: object) -> int:
        pointer: int = values(tensor).__array_interface__["data"][0]
        return pointer

    def dlpack(self: Tensor, *, stream: object = None, **options: object) -> object:
        place = place_of(self)
        if place < 0:
            return export(self, stream=stream, **options)
        lent = self._wt_lent = Lent(place, int(self.shape.num_elements()) * int(self.dtype.size))
        lend(address(self), lent)
        return export(self, **options)

    def dlpack_device(self: object) -> tuple[int, int]:
        place = place_of(self)
        return (2, place) if place >= 0 else device(self)  # 2 is kDLCUDA of dlpack.h

    def from_dlpack(dlcapsule: object) -> object:
        made = stock_import(dlcapsule)
        lent = place_at(address(made)) if made.shape.num_elements() else None
        return made if lent is None else copied(made, None, f"/device:CPU:{lent.device + 1}")

    return [
        Patch(base, "__dlpack__", dlpack),
        Patch(base, "__dlpack_device__", dlpack_device),
        Patch(library, "from_dlpack", from_dlpack),
    ]
