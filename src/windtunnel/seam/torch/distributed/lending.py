"""What gloo gets of tensors: their memory, under other tensors that own none of it.

A thread of gloo drops what it carried a moment after it has said that it is done (`ProcessGroupGloo::runLoop` of
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), and takes Python's lock to do so. Were it the program's own tensor,
memory would be given back at a moment that no two runs share. Whoever ends the group or the process before that moment
waits for the thread for ever (C++ that joins it while it holds the lock: the reducer of DistributedDataParallel), or
aborts ("terminate called without an active exception"). NCCL drops nothing from a thread of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from time import sleep
from typing import TYPE_CHECKING

import torch

from windtunnel.seam.torch.tags import storage_of

if TYPE_CHECKING:
    from torch.distributed import AllreduceOptions, AllToAllOptions, BroadcastOptions, Work

    from windtunnel.seam.torch.state.ranks import Carrier

Tensor = torch.Tensor
CPU_DEVICE = torch.device("cpu")
EMPTY = torch.ops.aten.empty.memory_format
MANY = 64
PAUSES_S = (0.0,) * 50 + (0.001,) * 2000
"""How long `settle` looks at most."""
FAILED_S = 0.05


class Lending:
    """The tensors of one process that gloo may still hold."""

    def __init__(self) -> None:
        self._lent: list[weakref.ref[Tensor]] = []

    def lend(self, tensor: Tensor) -> Tensor:
        """A tensor over the same memory, which the caller keeps until gloo is done; sparse ones are lent themselves."""
        if tensor.layout is not torch.strided:
            return tensor
        base = storage_of(tensor)
        with torch._C._DisableTorchDispatch():
            made = EMPTY([0], dtype=tensor.dtype, device=CPU_DEVICE).set_(
                torch._C._construct_storage_from_data_pointer(ADDRESS(base), CPU_DEVICE, base.nbytes()),
                tensor.storage_offset(), tensor.shape, tensor.stride(),
            )  # fmt: skip
        return self.remember(made)

    def remember(self, tensor: Tensor) -> Tensor:
        """A tensor that gloo gets and the caller lets go of."""
        if len(self._lent) >= MANY:
            self._lent = [lent for lent in self._lent if lent() is not None]
        self._lent.append(weakref.ref(tensor))
        return tensor

    def settle(self) -> None:
        """Wait until gloo's threads have dropped everything."""
        for pause_s in PAUSES_S:
            self._lent = [lent for lent in self._lent if lent() is not None]
            if not self._lent:
                return
            sleep(pause_s)
        self._lent.clear()

    def forget(self) -> None:
        """A collective has failed: its tensors stay in the traceback, and gloo's threads have a moment for theirs."""
        sleep(FAILED_S)
        self._lent.clear()


ADDRESS = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]  # where the values are, not the device's address


class Lender:
    """A carrier that is lent what it carries."""

    def __init__(self, carrier: Carrier, lending: Lending) -> None:
        self.inner = carrier
        self.lending = lending

    def remember(self, *tensors: Tensor) -> None:
        """Tensors that gloo has got and that nobody else keeps from now on."""
        for tensor in tensors:
            self.lending.remember(tensor)

    def _all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self.lending.lend(tensor) for tensor in tensors]

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions, /) -> Work:
        """Reduce tensors in place."""
        return self.inner.allreduce(self._all(tensors), options)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Work:
        """Gather tensors of one size from all ranks."""
        return self.inner.allgather([self._all(tensors) for tensors in outputs], self._all(inputs))

    def _allgather_base(self, output: Tensor, input: Tensor, /) -> Work:
        """Gather a tensor from all ranks into one."""
        return self.inner._allgather_base(*self._all([output, input]))

    def alltoall_base(
        self, output: Tensor, input: Tensor, sizes: list[int], parts: list[int], options: AllToAllOptions, /
    ) -> Work:
        """Exchange rows."""
        lend = self.lending.lend
        return self.inner.alltoall_base(lend(output), lend(input), sizes, parts, options)

    def broadcast(self, tensors: list[Tensor], options: BroadcastOptions, /) -> Work:
        """Take one rank's tensor."""
        return self.inner.broadcast(self._all(tensors), options)

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        """Send a tensor; the message, which no thread of gloo's holds, keeps it."""
        return self.inner.send(tensors, peer, tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        """Receive a tensor, as `send`."""
        return self.inner.recv(tensors, peer, tag)
