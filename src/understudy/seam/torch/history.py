"""The allocators' history: what `torch.cuda.memory._record_memory_history` keeps, and memory snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.machine.device import Device
from understudy.trace.trace import MEMORY_ACTIONS

if TYPE_CHECKING:
    from understudy.seam.torch.state import State

ACTIONS = {name: number for number, name in enumerate(MEMORY_ACTIONS)}


class History:
    """Whether the allocators' actions are kept, and where: in the trace, as rows with the program's lines."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.metadata = ""
        self.enabled = False

    def set_metadata(self, text: str) -> None:
        """`torch.cuda.memory._set_memory_metadata`."""
        self.metadata = text

    def start(self, enabled: str | None = "all", *args: Any, **kwargs: Any) -> None:
        """`torch.cuda.memory._record_memory_history`: None or False ends it."""
        del args, kwargs
        self.enabled = bool(enabled)
        for device in self.state.machine.devices:
            device.allocator.on_action = self._hook(device) if self.enabled else None

    def start_legacy(self, enabled: bool, *args: Any, **kwargs: Any) -> None:
        """The older signature of the same."""
        self.start("all" if enabled else None)

    def _hook(self, device: Device) -> Any:
        state = self.state
        trace = state.machine.trace

        def act(action: str, address: int, size: int, stream: int, block: Any) -> None:
            site = state.site()
            time = state.local.host.now_ns
            trace.memory.append((ACTIONS[action], device.index, stream, address, size, time, site, 0))

        return act

    def snapshot(self, pool: Any = None) -> dict[str, Any]:
        """What `torch._C._cuda_memorySnapshot` returns."""
        state = self.state
        segments: list[Any] = []
        traces: list[list[dict[str, Any]]] = [[] for _ in state.machine.devices]
        settings: dict[str, Any] = {}
        for device in state.machine.devices:
            state.drain(device)
            found = device.allocator.snapshot()
            segments += found["segments"]
            settings = found.get("allocator_settings", settings)
        for action in state.machine.trace.memory_actions():
            frames = [{"filename": action.site.file, "line": action.site.line, "name": action.site.function}]
            traces[action.device].append(
                {
                    "action": action.action,
                    "addr": action.address,
                    "size": action.size_bytes,
                    "stream": action.stream,
                    "time_us": action.time_ns // 1000,
                    "frames": frames,
                }
            )
        del pool
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": settings,
            "external_annotations": [],
        }
