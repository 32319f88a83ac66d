"""Contexts of the driver's interface: each device has its primary one, and each thread a stack of current ones."""

from __future__ import annotations

import threading

from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.memory import put
from windtunnel.seam.cuda_runtime.process import Process

BASE = 0x5583_0000_0000
STEP = 16
API_VERSION = 13000


class ContextCalls:
    """cuCtx... and cuDevicePrimaryCtx..."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.retained: dict[int, int] = {}
        self._threads = threading.local()

    @property
    def stack(self) -> list[int]:
        """The devices whose contexts this thread has pushed, the current one last."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        found: list[int] = self._threads.stack
        return found

    @property
    def current(self) -> int:
        """The device of the current context, -1 where there is none: a thread that never asked has the runtime's."""
        if not hasattr(self._threads, "stack"):
            return self.process.device() if self.retained else -1
        return self.stack[-1] if self.stack else -1

    def handle(self, device: int) -> int:
        """The context of a device."""
        return BASE + STEP * device

    def device_of(self, context: int) -> int:
        """The device that a handle is of, -1 for one that is nobody's."""
        device = (context - BASE) // STEP
        return device if 0 <= device < self.process.device_count() else -1

    def _checked(self, device: int) -> int:
        return errors.SUCCESS if 0 <= device < self.process.device_count() else errors.INVALID_DEVICE

    def retain(self, out: int, device: int) -> int:
        """The primary context of a device, which now exists."""
        if error := self._checked(device):
            return error
        self.process.begin()
        self.retained[device] = self.retained.get(device, 0) + 1
        put(out, self.handle(device))
        return errors.SUCCESS

    def release(self, device: int) -> int:
        """Need it no more; what lies in its memory stays until the process ends."""
        if not self.retained.get(device):
            return errors.INVALID_CONTEXT
        self.retained[device] -= 1
        return errors.SUCCESS

    def state(self, device: int, flags: int, active: int) -> int:
        """Whether the primary context exists."""
        if error := self._checked(device):
            return error
        put(flags, 0, 4)
        put(active, int(bool(self.retained.get(device))), 4)
        return errors.SUCCESS

    def create(self, out: int, flags: int, device: int) -> int:
        """A context of its own, which is current; its memory is the primary one's here."""
        if error := self.retain(out, device):
            return error
        return self.push(self.handle(device))

    def destroy(self, context: int) -> int:
        """Give one back."""
        device = self.device_of(context)
        if device < 0:
            return errors.INVALID_CONTEXT
        if self.stack and self.stack[-1] == device:
            self.stack.pop()
        return self.release(device)

    def push(self, context: int) -> int:
        """Make a context current, above the one that is."""
        device = self.device_of(context)
        if device < 0:
            return errors.INVALID_CONTEXT
        self.stack.append(device)
        self.process.set_device(device)
        return errors.SUCCESS

    def pop(self, out: int) -> int:
        """Go back to the one before."""
        if not self.stack:
            return errors.INVALID_CONTEXT
        device = self.stack.pop()
        if out:
            put(out, self.handle(device))
        if self.stack:
            self.process.set_device(self.stack[-1])
        return errors.SUCCESS

    def make_current(self, context: int) -> int:
        """Put a context in place of the current one; 0 leaves none."""
        if self.stack:
            self.stack.pop()
        return self.push(context) if context else errors.SUCCESS

    def get_current(self, out: int) -> int:
        """The current context, 0 where there is none."""
        put(out, self.handle(self.current) if self.current >= 0 else 0)
        return errors.SUCCESS

    def get_device(self, out: int) -> int:
        """The device of the current context."""
        if self.current < 0:
            return errors.INVALID_CONTEXT
        put(out, self.current, 4)
        return errors.SUCCESS

    def api_version(self, context: int, out: int) -> int:
        """The version of the interface that made it."""
        put(out, API_VERSION, 4)
        return errors.SUCCESS
