"""Where a backward pass goes from one stream to another.

The engine lets a node's stream wait for the stream of each node that hands it a gradient (`InputBuffer::add`,
torch/csrc/autograd/input_buffer.cpp), and for nothing else: a node that comes later on another stream runs beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.state.stale_nodes import Handed, Node, Streams

CALLER = 1 << 64
"""The number of the caller, who hands on the first gradients: above those of all nodes."""


class Crossings:
    """The gradients of one backward pass that one stream hands to another, each until the other has waited.

    The engine takes ready nodes by their numbers, the latest first, and leaves at once, which have none.
    """

    def __init__(self, edges: Iterable[Handed], stream_of: Streams, redirected: dict[Node, Stream]) -> None:
        self._nodes: defaultdict[Stream, list[tuple[int, int, Stream]]] = defaultdict(list)  # by their numbers
        self._leaves: defaultdict[Stream, list[tuple[int, int, Stream]]] = defaultdict(list)  # by who hands to them
        self._of_leaf: defaultdict[Node, list[Stream]] = defaultdict(list)
        order = 0
        for device, producer, consumer in edges:
            source = (redirected.get(producer) if producer is not None else None) or stream_of(producer, device)
            target = redirected.get(consumer) or stream_of(consumer, device) or source
            if source is None or target is None or source is target:
                continue
            order += 1
            if hasattr(consumer, "variable"):
                number = CALLER if producer is None else producer._sequence_nr()
                self._leaves[target].append((number, order, source))
                self._of_leaf[consumer].append(source)
            else:
                self._nodes[target].append((consumer._sequence_nr(), order, source))
        for waits in (*self._nodes.values(), *self._leaves.values()):
            waits.sort()

    def before(self, node: Node, stream: Stream) -> Iterator[Stream]:
        """The streams that this one waits for before it runs this node, for the node itself and for those before it."""
        if hasattr(node, "variable"):
            yield from self._of_leaf.pop(node, ())
            return
        number = node._sequence_nr()
        waits = self._nodes.get(stream)
        while waits and waits[-1][0] >= number:
            yield waits.pop()[2]
        waits = self._leaves.get(stream)
        while waits and waits[-1][0] > number:
            yield waits.pop()[2]
