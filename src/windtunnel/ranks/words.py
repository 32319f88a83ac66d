"""What was found wrong between ranks, in sentences: for the checks, and for a process that ends because of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from windtunnel.trace.operation import Note
from windtunnel.trace.units import plural

Detail = Mapping[str, str | int]
_RANKS = re.compile(r"ranks? [0-9]")


def message(code: str, detail: Detail) -> str:
    """What happened, with the lines of all ranks."""
    return MESSAGES[code](detail)


def sentence(note: Note) -> str:
    """A note as a line of text."""
    return f"{note.site}: {note.code}: {message(note.code, dict(note.detail))}"


def lines(detail: Detail) -> str:
    """What each rank does: "rank 0 waits in ...; ranks 1-3 ..."."""
    return "; ".join(f"{ranks}: {text}" for ranks, text in detail.items() if _RANKS.match(ranks))


def _mismatch(detail: Detail) -> str:
    what = detail["what"]
    if "sender" in detail:
        sender, receiver = detail["sender"], detail["receiver"]
        return (
            f"message {detail['number']} from rank {sender} to rank {receiver} of {detail['group']} is received with "
            f"another {what} than it is sent with: {lines(detail)}"
        )
    return f"call {detail['number']} of {detail['group']} differs between its ranks in the {what}: {lines(detail)}"


def _calls(detail: Detail) -> str:
    """How many calls a rank had made in the group."""
    if not detail["last"]:
        return f"made no call of {detail['group']}"
    return f"its last of {plural(int(detail['calls']), 'call')} of {detail['group']} was {detail['last']}"


def _missing(detail: Detail) -> str:
    if detail["how"] == "absent":
        return f"rank {detail['rank']} never came: {_calls(detail)}; {lines(detail)}"
    return f"rank {detail['rank']} ended and {_calls(detail)}, but others wait for it; {lines(detail)}"


def _ended(detail: Detail) -> str:
    how = {"exception": "ended by", "exit": "ended with"}.get(str(detail["how"]), "was killed")
    text = f" {detail['text']}" if detail["text"] else ""
    return f"rank {detail['rank']} {how}{text} ({_calls(detail)}), and others wait for it; {lines(detail)}"


def _stuck(detail: Detail) -> str:
    if detail.get("all"):
        return (
            f"no rank makes progress; the stack of rank {detail['rank']}'s main thread, innermost first: "
            f"{detail['stack']}; {lines(detail)}"
        )
    return (
        f"rank {detail['rank']} is stuck on the host and others wait for it ({_calls(detail)}); its stack, innermost "
        f"first: {detail['stack']}; {lines(detail)}"
    )


def _deadlock(detail: Detail) -> str:
    return f"each of these ranks waits for another, so none can go on: {lines(detail)}"


def _timeout(detail: Detail) -> str:
    return (
        f"rank {detail['rank']} waited {int(detail['waited_ms']) / 1000:g} s in call {detail['number']} of "
        f"{detail['group']}, whose timeout is {int(detail['limit_ms']) / 1000:g} s; {lines(detail)}"
    )


MESSAGES: dict[str, Callable[[Detail], str]] = {
    "collective-mismatch": _mismatch,
    "collective-missing": _missing,
    "collective-deadlock": _deadlock,
    "collective-timeout": _timeout,
    "rank-ended": _ended,
    "rank-stuck": _stuck,
}
