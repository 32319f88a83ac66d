"""Gates: findings on which a run, or a test, is to fail."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from windtunnel import checks
from windtunnel.errors import UsageError
from windtunnel.trace.finding import SEVERITIES, Finding


class Gate(NamedTuple):
    """At most `most` incidents of a code, or of a severity and those that are worse, are allowed."""

    what: str
    most: int = 0

    def counts(self, finding: Finding) -> bool:
        """Whether a finding is one that this gate is about."""
        if self.what in SEVERITIES:
            worst_first = [str(severity) for severity in SEVERITIES]
            return worst_first.index(finding.severity) <= worst_first.index(self.what)
        return finding.code == self.what


def parse_gates(values: Iterable[str]) -> list[Gate]:
    """The gates of `--fail-on` values such as "unsynchronized-access,host-sync=3".

    Raises:
        UsageError: a code does not exist, the number is none, or a value names nothing.
    """
    gates = []
    for value in values:
        parts = [part for part in value.split(",") if part.strip()]
        if not parts:
            raise UsageError(f"to fail on {value!r}: it names no finding, so nothing would ever fail")
        gates += [_gate(part) for part in parts]
    return gates


def _gate(text: str) -> Gate:
    what, equals, number = (part.strip() for part in text.partition("="))
    known = [*(check.code for check in checks.all_checks()), *SEVERITIES]
    if what not in known:
        near = difflib.get_close_matches(what, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"there is no finding {what!r} to fail on; {hint}")
    if equals and not (number.isascii() and number.isdigit()):
        raise UsageError(f"to fail on {text!r}: after = give the number of incidents that are allowed")
    return Gate(what, int(number or 0))


def broken(gates: Sequence[Gate], findings: Iterable[Finding]) -> list[tuple[Gate, list[Finding]]]:
    """The gates that the findings break, each with what it counted."""
    found = list(findings)
    counted = [(gate, [one for one in found if gate.counts(one)]) for gate in gates]
    return [(gate, some) for gate, some in counted if sum(one.times for one in some) > gate.most]


def violations(gates: Sequence[Gate], findings: Iterable[Finding]) -> list[str]:
    """One sentence for each gate that the findings break."""
    sentences = []
    for gate, matching in broken(gates, findings):
        times = sum(finding.times for finding in matching)
        lines = ", ".join(dict.fromkeys(str(finding.site) for finding in matching))
        sentences.append(f"failed on {gate.what}: {times} found, {gate.most} allowed ({lines})")
    return sentences


def refuse_undecidable(gates: Iterable[Gate], codes: Iterable[str], source: str) -> None:
    """Refuse a gate that could never close: one of a check for which `source` holds too little.

    Raises:
        UsageError: a gate is one of `codes`.
    """
    undecidable = frozenset(codes)
    for gate in gates:
        if gate.what in undecidable:
            raise UsageError(
                f"{gate.what} is not decidable from {source}: a profile does not hold what the check needs; run the "
                "program with `windtunnel run --gpus` for it"
            )
