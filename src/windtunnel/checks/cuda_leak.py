"""The check `cuda-leak`: host code allocates memory again and again and does not free it."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.units import format_bytes


class CudaLeak(NoteCheck):
    """An extension's `cudaMalloc` without its `cudaFree`.

    ## What it does
    Reports the line of the program under which host code took memory by `cudaMalloc` (or its kin) four times or more,
    with work for the GPU in between, and never gave it back. A buffer that is made once and kept is none.

    ## Why it is bad
    Each call leaves memory behind that PyTorch's allocator knows nothing of: `torch.cuda.memory_allocated()` does not
    show it, `empty_cache()` does not free it, and in the end some other line runs out of memory.

    ## Example
    ```cpp
    float *scratch;
    cudaMalloc(&scratch, bytes);
    reduce<<<grid, block>>>(x, scratch);  // and no cudaFree
    ```

    ## Use instead
    ```cpp
    auto scratch = torch::empty({n}, x.options());  // freed with its last reference
    reduce<<<grid, block>>>(x, scratch.data_ptr<float>());
    ```
    """

    code: ClassVar = "cuda-leak"

    def message(self, line: NotedLine) -> str:
        """How much was left behind."""
        return (
            f"{line.word('call')} was called {line.number('times')} times under this line and its memory never freed: "
            f"{format_bytes(line.number('size_bytes'))} at the end"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "call cudaFree, or take scratch memory by torch::empty, which frees itself"
