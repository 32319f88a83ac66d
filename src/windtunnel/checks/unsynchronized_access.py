"""The check `unsynchronized-access`: two streams touch the same memory and nothing says which comes first."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._hazards import HazardCheck, actor
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Hazard


class UnsynchronizedAccess(HazardCheck):
    """Two streams touch the same memory and nothing says which comes first.

    ## What it does
    Follows the order that events, `wait_stream`, synchronizations, collectives and autograd's own waits establish, and
    reports two accesses to the same bytes, at least one of them a write, that nothing orders. The default stream and
    the streams of `torch.cuda.Stream()` are not ordered by themselves. Where an installed library made one of the two
    streams for itself, it is a remark (`info`) that names the library's line.

    Of what ran before the program's first side stream, all writes are known, later ones without their line and as
    writes of the whole storage; reads are known since the last synchronization as long as they are few
    ([order](../architecture.md#order)). So a side stream that overwrites what earlier kernels still read can be missed
    there.

    In CUDA C++, a copy from pageable memory returns once its bytes are staged, `cudaMemcpy` too (CUDA Runtime API, "API
    synchronization behavior"): a stream of `cudaStreamNonBlocking` has to wait for them. That is a `warning`: they
    mostly arrive in time.

    ## Why it is bad
    The second access may run before, during or after the first. The values are sometimes wrong: on another card, at
    another size, under another load.

    ## Example
    ```python
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    with torch.cuda.stream(s):
        B = torch.sum(A)
    ```

    ## Use instead
    ```python
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        B = torch.sum(A)
    ```
    """

    code: ClassVar = "unsynchronized-access"

    def judge(self, hazard: Hazard) -> Severity:
        """A warning where the bytes have left the host's memory already."""
        return "warning" if hazard.first_access == "staged" else self.severity

    def message(self, hazard: Hazard) -> str:
        """Which streams, which lines, in which order the program has them."""
        second = "writes to" if hazard.second_access == "write" else "reads"
        first = "wrote" if hazard.first_access == "write" else "read"
        if hazard.first_access == "staged":
            return (
                f"{actor(hazard.second_lane)} {second} memory to which {actor(hazard.first_lane)} copies from pageable "
                f"memory ({hazard.first}), and nothing makes it wait: the copy has returned once its bytes were staged"
            )
        return (
            f"{actor(hazard.second_lane)} {second} memory that {actor(hazard.first_lane)} {first} ({hazard.first}), "
            "and nothing makes it wait: it may run first"
        )

    def advice(self, hazard: Hazard) -> str:
        """The wait that is missing."""
        if hazard.second_lane.device < 0:
            return f"synchronize with {actor(hazard.first_lane)} before this line"
        if hazard.first_lane.device < 0:
            return "finish the host's access before the device is given the memory"
        return (
            f"before this line, let {actor(hazard.second_lane)} wait for {actor(hazard.first_lane)}: "
            "`stream.wait_stream(other)`, or an event that one records and the other waits for"
        )
