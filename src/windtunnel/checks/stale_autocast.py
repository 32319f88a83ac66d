"""The check `stale-autocast`: a weight changed while autocast kept its low-precision copy."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class StaleAutocast(NoteCheck):
    """Autocast computes with copies of weights from before they changed.

    ## What it does
    Reports a region of `torch.autocast` in which a float32 weight is used, changes, and is used again: by an
    optimizer's step, or when a checkpoint or an average of weights is copied in.

    ## Why it is bad
    Autocast casts each weight once and keeps the copy until the outermost region ends. It does not notice that the
    weight has changed, so every later pass computes with the old values: the loss stays where it is, in silence. The
    copies take memory for as long.

    ## Example
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for x, y in batches:
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ```
    """

    code: ClassVar = "stale-autocast"
    severity: ClassVar[Severity] = "error"

    def message(self, line: NotedLine) -> str:
        """Which weight, and where it was used."""
        return (
            "this region of autocast kept its low-precision copy of a weight and used it after the weight had changed: "
            f"the first one, {line.word('shape')}, at {line.word('used')}"
        )

    def advice(self, line: NotedLine) -> str:
        """Where the region belongs."""
        return (
            "enter `torch.autocast` anew for each forward pass and its loss, with `optimizer.step()` outside, or pass "
            "`cache_enabled=False`"
        )
