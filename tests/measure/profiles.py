"""Profiles as torch.profiler writes them, made by hand: a few verbs that append events of Kineto's format.

Times are microseconds. The host is process 100, its main thread has that number too, as in real profiles.
"""

from __future__ import annotations

from typing import Any

HOST = 100
V100 = {"id": 0, "name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16945512448, "computeMajor": 7, "computeMinor": 0}


class Profile:
    """One process's profile, on one GPU."""

    def __init__(self, begin_us: float = 4_000_000.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_us = begin_us
        self.free_us = begin_us
        self.correlation = 0

    def document(self, **head: Any) -> dict[str, Any]:
        """The whole file."""
        return {"schemaVersion": 1, "deviceProperties": [V100 | {"numSms": 80}], **head, "traceEvents": self.events}

    def add(self, category: str, name: str, start: float, length: float, pid: int = HOST, tid: int = HOST, **args: Any):
        """One complete event."""
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}
        )
        return self

    def launch(self, operator: str, kernel: str, us: float = 10.0, stream: int = 7, **shapes: Any):
        """An operator of 5 µs that launches one kernel."""
        self.correlation += 1
        self.add("cpu_op", operator, self.now_us, 5.0, **shapes)
        self.add("cuda_runtime", "cudaLaunchKernel", self.now_us + 3, 2.0, correlation=self.correlation)
        start = max(self.free_us, self.now_us + 6)
        self.add("kernel", kernel, start, us, 0, stream, device=0, stream=stream, correlation=self.correlation)
        self.now_us += 5
        self.free_us = start + us
        return self

    def copy(self, operator: str, name: str, size: int, us: float = 4.0, wait: bool = True):
        """A copy, and the wait for it when it is a blocking one, inside one operator."""
        self.correlation += 1
        begin, start = self.now_us, max(self.free_us, self.now_us + 4)
        self.add("cuda_runtime", "cudaMemcpyAsync", begin + 1, 2.0, correlation=self.correlation)
        self.add("gpu_memcpy", name, start, us, 0, 7, device=0, stream=7, correlation=self.correlation, bytes=size)
        self.free_us = start + us
        self.now_us = begin + 4
        if wait:
            self.wait("cudaStreamSynchronize", begin + 3)
        return self.add("cpu_op", operator, begin, self.now_us - begin)

    def wait(self, call: str = "cudaDeviceSynchronize", begin: float | None = None):
        """The host waits until the device has done everything."""
        begin = self.now_us if begin is None else begin
        self.correlation += 1
        self.now_us = max(self.free_us, begin) + 1
        return self.add("cuda_runtime", call, begin, self.now_us - begin, correlation=self.correlation)

    def within(self, name: str, begin: float, category: str = "python_function"):
        """A Python function, or an annotation, around all from `begin` until now."""
        return self.add(category, name, begin - 0.25, self.now_us - begin + 0.5)

    def memory(self, address: int, size: int, total: int, reserved: int):
        """An allocation, or with a negative size the end of one."""
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size}
        args |= {"Total Allocated": total, "Total Reserved": reserved}
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": self.now_us, "args": args})
        return self
