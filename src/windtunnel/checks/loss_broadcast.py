"""The check `loss-broadcast`: a loss that compares every output with every target."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.units import times


class LossBroadcast(NoteCheck):
    """A loss that compares every output with every target.

    ## What it does
    Reports `mse_loss`, `l1_loss`, `smooth_l1_loss` and `huber_loss` of an output and a target that are both broadcast
    against each other, as (128, 1) beside (128) is: the loss is then over 128 x 128 pairs. A mean or sum of squares or
    absolute values of `output - target` that backward starts from is such a loss, too.

    ## Why it is bad
    Each output is pulled toward the mean of all targets, so the model learns that mean and nothing else. The loss still
    falls, and PyTorch only warns.

    ## Example
    ```python
    loss = nn.MSELoss()(net(x), y)  # (128, 1) and (128,)
    ```

    ## Use instead
    ```python
    loss = nn.MSELoss()(net(x), y.unsqueeze(1))
    ```
    """

    code: ClassVar = "loss-broadcast"

    def message(self, line: NotedLine) -> str:
        """Which shapes."""
        return (
            f"{line.word('operator', 'the loss')} broadcast an output of {line.word('output')} against a target of "
            f"{line.word('target')}, {times(line.times)}: every output is compared with every target, so the model "
            "learns their mean"
        )

    def advice(self, line: NotedLine) -> str:
        """Give them one shape."""
        return "give both one shape: `target.unsqueeze(1)`, or `output.squeeze(1)`"
