"""A collective or message in the machine: the event after it, the tensors that it keeps, and what a Work waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from windtunnel.machine.stream import Event
from windtunnel.ranks.calls import Operation
from windtunnel.seam.torch.distributed.communicators import InFlight
from windtunnel.seam.torch.distributed.under_way import UnderWay
from windtunnel.seam.torch.tags import tag_of

if TYPE_CHECKING:
    from windtunnel.seam.torch.distributed.groups import Group

ONLY_HERE = 2
"""What `sys.getrefcount` says of what one name of a function holds and nothing else."""


class Queued:
    """A collective in the machine: the event after it, and what else its Work's `wait` must do.

    `tensors` are kept until somebody waits, as ProcessGroupNCCL's TensorShelf does: memory that a collective is still
    at work on goes to nobody else. `site` and `call` are the line and the operation, `group` whose it is, `began_ns`
    when it begins on the device, `timeout` how long it may take, `waited` whether somebody waited or took its future.

    Of a message, `finish` waits for the other rank and gives the event, `message` is its tensors, which the Work keeps
    for its own life (`outputs_` of ProcessGroupNCCL::pointToPoint), `sent_to` the receiver's number in the group, -1
    for a receive, `batch` the one that it belongs to, `line` what else is in flight on its communicator.
    """

    def __init__(
        self,
        event: Event | None,
        finish: Callable[[timedelta | None], Event | None] | None = None,
        tensors: Sequence[object] = (),
        message: Sequence[object] = (),
    ) -> None:
        self.event = event
        self.finish = finish
        self.tensors = tensors
        self.message = message
        self.sent_to, self.batch, self.size = -1, 0, 0
        self.line: list[InFlight] = []
        self.site, self.began_ns = 0, 0
        self.call: Operation | None = None
        self.group: Group | None = None
        self.timeout: timedelta | None = None
        self.waited = False
        self.host = False
        self.under_way: UnderWay | None = None  # until it is on its stream

    def is_of(self, group: Group, call: Operation, site: int, timeout: timedelta | None, began_ns: int = 0) -> None:
        """Whose it is, what was called and where, how long it may take, and when it began if it is on its stream."""
        self.group, self.call, self.site, self.timeout = group, call, site, timeout
        self.began_ns = began_ns

    def let_go(self) -> None:
        """NCCL's watchdog has seen its end: nobody is at work any more on memory that only it has kept."""
        tags = list(dict.fromkeys(tag_of(tensor) for tensor in self.tensors if isinstance(tensor, torch.Tensor)))
        self.tensors = ()
        while tags:
            tag = tags.pop()
            if tag.accesses is not None and self.event is not None and sys.getrefcount(tag) == ONLY_HERE:
                tag.accesses.complete(self.event.order)

    def settle(self, timeout: timedelta | None = None) -> None:
        """Wait for the other rank of a message."""
        if self.finish is not None:
            self.event, self.finish = self.finish(timeout), None
            if self in self.line:
                self.line.remove(self)
