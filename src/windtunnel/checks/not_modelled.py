"""The check `not-modelled`: work whose size the framework does not show, so that its time is a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note

SENTENCES = {
    "loop": "{name} contains a loop whose number of turns is decided on the device; one turn was counted",
    "shape": "{name} has tensors of unknown shape; their unknown sizes were taken to be the batch size, {assumed}",
    "program": "{name} ran, but what it computes is not known; no time was counted for it",
    "compile": "torch.compile compiled nothing: {name} and all else ran eagerly; times are the uncompiled program's",
    "compiler": "XLA's GPU compiler refused what was lowered for the CPU, and a simple rule prices it: {name}",
    "graph": "Inductor compiled a graph with {name}, which is not followed: it ran operator by operator instead",
    "allocator": "{name} was asked for; PyTorch's native allocator answered, so what is reserved is what that reserves",
    "backward": "the framework does not show its backward pass; its kernels were derived from the forward pass",
}


DEFAULT_CURE = 'pip install "windtunnel[compile]"'


def uncompiled(notes: Sequence[Note]) -> str:
    """What would let `torch.compile` compile, where it compiled nothing; empty where it did, or was not asked."""
    details = [dict(note.detail) for note in notes if note.code == NotModelled.code]
    return next((str(one.get("cure", DEFAULT_CURE)) for one in details if one.get("what") == "compile"), "")


class NotModelled(NoteCheck):
    """Work whose size the framework does not show, so that its time is unknown or derived.

    ## What it does
    Reports compiled functions with `while` loops (JAX, TensorFlow), functions of unknown shapes (TensorFlow), functions
    that were compiled before the emulation saw them, MXNet's backward pass, the first use of `torch.compile` without
    Triton, which runs eagerly, graphs that Inductor compiles but the emulation does not follow, and the allocator
    backend `cudaMallocAsync`, which is the driver's own.

    ## Why it is bad
    The reported times leave such work out, or count it once: they are too small, or less certain than the stated band.

    ## Example
    ```python
    jax.lax.while_loop(lambda state: state.error > 1e-6, improve, state)
    ```

    ## Use instead
    ```python
    jax.lax.fori_loop(0, 100, lambda _, state: improve(state), state)  # to measure: a fixed number of turns
    ```
    """

    code: ClassVar = "not-modelled"
    severity: ClassVar[Severity] = "info"

    def group(self, note: Note) -> str:
        """One finding for each kind of gap."""
        return str(dict(note.detail).get("what", ""))

    def message(self, line: NotedLine) -> str:
        """What is not known."""
        sentence = SENTENCES[line.word("what", "program")]
        return sentence.format(name=line.word("name", "a function"), assumed=line.number("assumed"))

    def advice(self, line: NotedLine) -> str:
        """How to make it known."""
        if line.word("what") == "shape":
            return "give fixed shapes (`drop_remainder=True`, `input_signature`), or read the times with care"
        if line.word("what") == "allocator":
            return "read reserved memory as the native allocator's; allocated memory is the same"
        if line.word("what") == "compile":
            return f"let it compile: {line.word('cure', DEFAULT_CURE)}"
        if line.word("what") == "graph":
            return "read the times and the memory of this graph as those of uncompiled operators"
        if line.word("what") == "loop":
            return "to measure it, run a fixed number of turns (`fori_loop`, `scan`), or read the times with care"
        return "read the times of this part with care"
