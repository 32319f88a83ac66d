"""The check `cuda-unchecked-launch`: CUDA refused a launch or a copy, and host code did not ask."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class CudaUncheckedLaunch(NoteCheck):
    """A launch or a copy was refused, and nothing looked at the error.

    ## What it does
    Reports the line of the program under which an extension launched a kernel that CUDA refused (too many threads, too
    much shared memory, an empty grid), where nothing called `cudaGetLastError` or `cudaPeekAtLastError` afterwards. So
    it does of refused copies, fills and `cudaFree` (more bytes than the allocation has, pointers of the other
    direction, freed twice).

    ## Why it is bad
    `f<<<grid, block>>>(...)` returns nothing: the kernel did not run, its results are whatever the memory held, and the
    error comes up in the next call that does ask, such as an operator of PyTorch's that has nothing to do with it.

    ## Example
    ```cpp
    scale<<<1, 2048>>>(x, n);  // 1024 threads at most
    ```

    ## Use instead
    ```cpp
    scale<<<(n + 255) / 256, 256>>>(x, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    ```
    """

    code: ClassVar = "cuda-unchecked-launch"
    severity: ClassVar[Severity] = "error"

    def group(self, note: Note) -> str:
        """Different kernels of one line stay apart."""
        detail = dict(note.detail)
        return f"{detail.get('kernel', '')} {detail.get('call', '')}"

    def message(self, line: NotedLine) -> str:
        """What was refused, and why."""
        if line.word("call"):
            return f"{line.word('call')} was refused ({line.word('error')}): it did nothing"
        return (
            f"the launch of the CUDA kernel {line.word('kernel')!r} with {line.word('shape')} was refused "
            f"({line.word('error')}), and nothing asked: the kernel did not run"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.word("call"):
            return (
                "check what it returns, and look at the number of bytes, at the direction, and at whether the memory "
                "is still there"
            )
        return (
            "check each launch with C10_CUDA_KERNEL_LAUNCH_CHECK() or cudaGetLastError(), and launch with at most 1024 "
            "threads, the shared memory that the GPU has, and a grid that is not empty"
        )
