"""On which stream a leaf's gradient is accumulated: its AccumulateGrad node keeps the one that was current when it was
made (`Node.stream`, torch/csrc/autograd/input_metadata.cpp), and lives as long as any graph that reaches it.

PyTorch says neither whether such a node lives nor on which stream it was made. So each node is given a mark when a
forward operator first uses its leaf: it lies in the node's own dictionary, and dies with it.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from windtunnel.machine.stream import Stream
from windtunnel.seam.living import living
from windtunnel.seam.torch.tags import ORDINARY, device_of, functorch

Node = torch.autograd.graph.Node
MARK = "windtunnel"
C = torch._C
is_wrapped = functorch.is_functorch_wrapped_tensor
OUTSIDE = (
    C.DispatchKeySet(C.DispatchKey.BackendSelect).add(C.DispatchKey.ADInplaceOrView),
    C.DispatchKeySet(C.DispatchKey.AutocastCPU),
)
"""The keys that a thread includes and excludes outside of operators and modes (c10/core/impl/LocalDispatchKeySet.h)."""


class Mark:
    """What is put on a node: the stream on which it was made. Its own end tells of the node's."""

    __slots__ = ("__weakref__", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream


class LeafNode(NamedTuple):
    """The node of a leaf: both while they live, and the stream on which it was made."""

    leaf: weakref.ref[torch.Tensor]
    mark: weakref.ref[Mark]
    stream: Stream

    def lives(self, leaf: torch.Tensor) -> bool:
        """Whether the node is still the one of this leaf."""
        return self.mark() is not None and self.leaf() is leaf


class Leaves:
    """The streams of AccumulateGrad nodes, from the first side stream on; before, all are made on default streams."""

    def __init__(self) -> None:
        self._made: dict[int, LeafNode] = {}  # by the leaf's identity
        self.differ = False  # whether a leaf was used on another stream than that of its node

    def begin(self, default_streams: list[Stream]) -> None:
        """The first side stream is about to be made: note the nodes that live already."""
        for found in living(torch.Tensor):
            if type(found) in ORDINARY and is_leaf(found):
                device = device_of(found)
                if device >= 0:
                    self._mark(found, default_streams[device])

    def used(self, leaf: torch.Tensor, stream: Stream) -> None:
        """A forward operator on `stream` takes a leaf that requires gradients, so its node lives now."""
        known = self._made.get(id(leaf))
        if known is None or not known.lives(leaf):
            self._mark(leaf, stream)
        elif known.stream is not stream and known.stream.device == stream.device:
            self.differ = True

    def replaced(self, leaf: torch.Tensor, data: torch.Tensor) -> None:
        """A leaf gets other data: of another type, its node stays with the graphs that have it, and no new one does.

        `VariableHooks::set_data`, torch/csrc/autograd/variable.cpp.
        """
        if self._made and id(leaf) in self._made and leaf.dtype is not data.dtype:
            del self._made[id(leaf)]

    def stream_of(self, node: Node) -> Stream | None:
        """The stream on which a leaf's node was made; None where no operator was seen to make it."""
        kept: dict[str, Mark] = node.metadata  # type: ignore[assignment]  # a property of C++
        mark = kept.get(MARK)
        return None if mark is None else mark.stream

    def _mark(self, leaf: torch.Tensor, stream: Stream) -> None:
        if is_wrapped(leaf) or leaf.layout is not torch.strided or leaf.is_nested:  # of which there are no views
            return
        mark = Mark(stream)
        kept: dict[str, Mark] = node_of(leaf).metadata  # type: ignore[assignment]  # a property of C++
        kept[MARK] = mark
        del kept
        made = LeafNode(weakref.ref(leaf), weakref.ref(mark), stream)
        del mark
        if made.mark() is not None:
            self._made[id(leaf)] = made
        else:
            self._made.pop(id(leaf), None)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether gradients may be accumulated in a tensor; views are not asked, since some raise."""
    return tensor.requires_grad and tensor._base is None and tensor.is_leaf


def node_of(tensor: torch.Tensor) -> Node:
    """The node that a tensor's gradient comes to; a leaf's dies at once where no graph reaches it."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    with C._ForceDispatchKeyGuard(*OUTSIDE), C.DisableTorchFunctionSubclass(), torch.enable_grad():
        view = tensor.view_as(tensor).grad_fn
    assert view is not None
    node = view.next_functions[0][0]
    assert node is not None
    return node
