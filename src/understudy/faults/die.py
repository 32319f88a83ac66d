"""The fault `die`: a rank that ends."""

from __future__ import annotations

from typing import ClassVar

from understudy.faults import Fault, Hands


class Die(Fault):
    """The process ends: by signal 9, by another `signal`, with an exit `code`, or by an exception with a text, `error`.

    With `operation=all_reduce` it ends as it calls that collective, in which the others wait then.
    """

    name: ClassVar = "die"
    options: ClassVar = {"signal": 9, "code": 0, "error": ""}

    def strike(self, hands: Hands) -> None:
        """End the process."""
        if self.value["error"]:
            hands.raise_error(self.value["error"])
        elif self.value["code"]:
            hands.leave(self.value["code"])
        else:
            hands.kill(self.value["signal"])
