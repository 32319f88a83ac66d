"""What autograd's engine says of nodes whose stream is not the one that their gradient comes from.

Each node runs on the stream that was current when it was made. In a capture a node of the default stream would make
that stream wait for the captured one, which CUDA refuses (error 906); versions of PyTorch that have
`set_override_stale_capture_stream` say so first, or move the node (`InputBuffer::add`,
torch/csrc/autograd/input_buffer.cpp).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple

import torch

from windtunnel.machine.capture import IMPLICIT
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.state.leaves import node_of
from windtunnel.seam.torch.tags import device_of

Node = torch.autograd.graph.Node
never: Callable[[], bool] = bool
overrides: Callable[[], bool] | None = getattr(torch._C, "_override_stale_capture_stream", None)
warns: Callable[[], bool] = getattr(torch._C, "_warn_on_accumulate_grad_stream_mismatch", never)
STALE = (
    "During CUDA graph capture, autograd node '{}' has a stale reference to the default stream (stream 0) from warmup. "
    "This will invalidate the capture because cudaStreamWaitEvent on the default stream pulls a non-capturing stream "
    "into the graph.\n\nTo fix, either:\n"
    "  (a) Run warmup on the same stream that capture will use, or\n"
    "  (b) Delete references to the loss / autograd graph (e.g. `del loss`) before capture, or\n"
    "  (c) Call torch.autograd.graph.set_override_stale_capture_stream(True) to automatically redirect stale nodes to "
    "the capturing stream."
)
MISMATCH = (
    "The AccumulateGrad node's stream does not match the stream of the node that produced the incoming gradient. This "
    "may incur unnecessary synchronization and break CUDA graph capture if the AccumulateGrad node's stream is the "
    "default stream. This mismatch is caused by an AccumulateGrad node created prior to the current iteration being "
    "kept alive. This can happen if the autograd graph is still being kept alive by tensors such as the loss, or if "
    "you are using DDP, which will stash a reference to the node. To resolve the mismatch, delete all references to "
    "the autograd graph or ensure that DDP initialization is performed under the same stream as subsequent forwards. "
    "If the mismatch is intentional, you can use torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch("
    "False) to suppress this warning."
)
COPIES = ("ToCopyBackward0", "CopyBackwards")
"""Nodes behind which a gradient may be on another device than before them."""


class Handed(NamedTuple):
    """A gradient that one node hands to another: on which device, from which node (None is the caller) to which."""

    device: int
    producer: Node | None
    consumer: Node


Streams = Callable[[Node | None, int], Stream | None]
"""On which stream of a device a node runs; None of the caller is its current one, and the answer None is unknown."""


def examine(edges: Iterable[Handed], stream_of: Streams, redirected: dict[Node, Stream]) -> bool:
    """Do what the engine does where streams differ; returns whether it would warn of an AccumulateGrad node's.

    Nodes of other streams that run on a captured one instead are put into `redirected`.

    Raises:
        RuntimeError: a node of the default stream gets its gradient from a captured stream.
    """
    mismatch = False
    for device, producer, consumer in edges:
        source = (redirected.get(producer) if producer is not None else None) or stream_of(producer, device)
        target = redirected.get(consumer) or stream_of(consumer, device) or source
        if source is None or target is None or source is target:
            continue
        if source.capture is not None and target.capture is None:
            if overrides is not None and overrides():
                redirected[consumer] = source
                continue
            if target.index == 0:
                if overrides is None:
                    raise source.capture.fail(IMPLICIT)
                raise RuntimeError(STALE.format(consumer.name()))
        mismatch |= hasattr(consumer, "variable")
    return mismatch


def handed(roots: Iterable[object], inputs: Iterable[object], device: int) -> Iterator[Handed]:
    """The gradients that a backward pass hands on, in the engine's order: late nodes first.

    Those of `inputs`, where there are any, are all that it is to reach. `device` is the current one.
    """
    wanted = {node for value in inputs if (node := _node(value)) is not None}
    reached: dict[Node, bool] = {}
    numbers = count()  # the order of coming, where several nodes have the same number
    ready: list[tuple[int, int, Node, int]] = []
    known: set[Node] = set()

    def hand(producer: Node | None, consumer: Node, place: int) -> Iterator[Handed]:
        leaf = getattr(consumer, "variable", None)
        place = device_of(leaf) if leaf is not None else place
        if wanted and not _leads(consumer, wanted, reached):
            return
        if place >= 0:
            yield Handed(place, producer, consumer)
        if consumer not in known:
            known.add(consumer)
            heapq.heappush(ready, (-consumer._sequence_nr(), next(numbers), consumer, place))

    for root in roots:
        node = _node(root)
        if node is not None:
            yield from hand(None, node, device_of(root) if isinstance(root, torch.Tensor) else device)
    while ready:
        _, _, node, place = heapq.heappop(ready)
        behind = device if place < 0 and node.name() in COPIES else place
        for following, _ in node.next_functions:
            if following is not None:
                yield from hand(node, following, behind)


def _node(value: object) -> Node | None:
    """The node of a tensor, or of an edge that stands for one."""
    if isinstance(value, torch.Tensor):
        return node_of(value) if value.requires_grad else None
    return getattr(value, "node", None)


def _leads(node: Node, wanted: set[Node], reached: dict[Node, bool]) -> bool:
    """Whether a gradient that comes to a node comes to one of those wanted."""
    pending = [node]
    while pending:
        last = pending[-1]
        if last in reached:
            pending.pop()
            continue
        behind = [following for following, _ in last.next_functions if following is not None]
        unknown = [following for following in behind if following not in reached]
        if last in wanted or not unknown:
            reached[last] = last in wanted or any(reached[following] for following in behind)
            pending.pop()
        else:
            pending += unknown
    return reached[node]
