"""The fault `die`: a rank that ends."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from windtunnel.errors import UsageError
from windtunnel.faults import Fault, Hands

KINDS = {"call": "operator", "transfer": "transfer"}
"""The kind of moment by what `at` says."""


class Die(Fault):
    """The process ends: by signal 9, by another `signal`, with an exit `code`, or by an exception with a text, `error`.

    With `operation=all_reduce` it ends as it calls that collective, in which the others wait then; with `at=transfer`
    it ends in the middle of it, once all ranks have called it and move data.
    """

    name: ClassVar = "die"
    options: ClassVar = {"signal": 9, "code": 0, "error": "", "at": "call"}

    def __init__(self, text: str, given: Mapping[str, Any], draw: random.Random) -> None:
        super().__init__(text, given, draw)
        at = self.value["at"]
        if at not in KINDS:
            raise UsageError(f"at of the fault 'die' cannot be {at!r}: it must be call or transfer")
        if at == "transfer" and self.value["error"]:
            raise UsageError("the fault 'die' cannot raise an error at=transfer: the host has left the call by then")
        self.kind = KINDS[at]

    def strike(self, hands: Hands) -> None:
        """End the process."""
        if self.value["error"]:
            hands.raise_error(self.value["error"])
        elif self.value["code"]:
            hands.leave(self.value["code"])
        else:
            hands.kill(self.value["signal"])
