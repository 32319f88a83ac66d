"""The check `unsafe-capture`: a capture that other threads' calls of CUDA may break."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine


class UnsafeCapture(NoteCheck):
    """A CUDA graph is captured while a loader's thread may call CUDA.

    ## What it does
    Reports lines that begin a capture in the mode "global", which is the default, while a `DataLoader` with
    `pin_memory=True` still expects batches from its workers.

    ## Why it is bad
    In that mode CUDA refuses some calls of every thread while the capture lasts, `cudaHostAlloc` among them, and the
    refusal ends the capture. The loader's pinning thread makes that call when a batch needs more memory than is cached.
    Whether the two meet is chance (here they never do): if they do, the capture fails, and so does the next batch
    ("Caught AcceleratorError in pin memory thread").

    ## Example
    ```python
    for step, batch in enumerate(DataLoader(data, num_workers=4, pin_memory=True)):
        if step == 3:
            with torch.cuda.graph(graph):
                y = model(x)
    ```

    ## Use instead
    ```python
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = model(x)
    ```
    or capture before the loader's first batch.
    """

    code: ClassVar = "unsafe-capture"

    def message(self, line: NotedLine) -> str:
        """Who may interfere."""
        return (
            "a graph is captured while a loader's thread pins batches: if that thread needs new memory meanwhile, CUDA "
            "refuses it and the capture fails, now and then"
        )

    def advice(self, line: NotedLine) -> str:
        """Two ways."""
        return 'pass `capture_error_mode="thread_local"`, or capture before the loader\'s first batch'
