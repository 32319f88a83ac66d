"""The check `assumed-value`: what a rehearsal without data took for values that it has not."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note

SENTENCES = {
    "overflow": "assumed: found_inf = {value}, no gradient overflowed and the scaler took the step",
    "finite": "assumed: a test for NaN or infinity gave {value}, all values are finite",
    "unequal": "assumed: a test whether all numbers of a tensor equal one gave {value}, they differ",
    "number": "assumed: a number that the program read = {value}",
    "given": "assumed: what the program read = {value}, as --assume says",
    "library": "assumed: what a library looked at = {value}, {means}",
    "count": "assumed: how many elements a mask has = {value}, it selects all",
    "index": "assumed: indices that the device computed, or what follows from them = {value}",
    "absent": "assumed: what ranks that nobody plays bring to {name} = {value}",
    "alike": "assumed: the tensors that `torch.equal` or `allclose` compares are alike",
    "bins": "assumed: no value that `torch.bincount` counts reaches its `minlength` = {value}",
    "save": "saved without values: {value}",
    "not written": "not written: {value}, a checkpoint of tensors without values",
    "load": "assumed: the values that are loaded from {value}, a checkpoint without them",
    "sought": "assumed: `torch.isin` finds none of the elements that it looks for",
    "copy": "assumed: the {value} bytes that host code copies from a tensor = 0",
    "kernel": "assumed: the values that the CUDA kernel {name} asks for at {place} = 0",
    "counted": "counted: the CUDA kernel {name}, whose work values decide, did what it did in the last run with data",
    "written": "assumed: what the CUDA kernel {name} left in memory of host code's, of tensors without values",
    "mask": "assumed: {name} selects all of {elements} elements",
}
ADVICE = {
    "mask": "read memory and time as the most that this line takes, or run with data",
    "counted": "run with data again where the values, and so the work, have changed",
    "save": "run with data to keep it: what was there has not been touched",
    "not written": "run with data to write it: what was there has not been touched",
    "load": "run with data, should the program go another way with what it loads",
    "unequal": "run with data, should the program go another way where they are equal",
}
ANOTHER = "give another value with `--assume`, or run with data, should the program go another way with it"
"""The advice of the others."""


class AssumedValue(NoteCheck):
    """Values that a rehearsal without data had to assume.

    ## What it does
    Lists where a run with `--no-data` needed values from a device, and what was assumed: gradients do not overflow,
    losses and other numbers are finite, masks select everything, and the rest is what `--assume` says.

    ## Why it is bad
    It is not, as long as the program would take the same path with data. A mask that selects half of a batch makes less
    work and takes less memory than one that selects all of it.

    ## Example
    ```python
    loss = criterion(output[mask], target[mask])  # 8192 of 8192 elements
    ```

    ## Use instead
    ```console
    $ windtunnel run --gpus A100 train.py  # with data, or with --assume where another value will do
    ```
    """

    code: ClassVar = "assumed-value"
    severity: ClassVar[Severity] = "info"

    def group(self, note: Note) -> str:
        """One finding for each kind of value."""
        detail = dict(note.detail)
        return f"{detail.get('what', '')}{detail.get('place', '')}"

    def message(self, line: NotedLine) -> str:
        """What was assumed."""
        sentence = SENTENCES[line.word("what", "given")]
        return sentence.format(
            value=line.word("value"),
            name=line.word("name").removeprefix("aten::"),
            elements=line.number("elements"),
            means=line.word("means"),
            place=line.word("place"),
        )

    def advice(self, line: NotedLine) -> str:
        """How to get another answer."""
        return ADVICE.get(line.word("what"), ANOTHER)
