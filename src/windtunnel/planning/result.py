"""A finished plan: its rows in order, the recommendation, how certain that is, and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from windtunnel.planning import demand, layout
from windtunnel.planning.planner import RETIMED
from windtunnel.planning.rows import CHEAPEST, STEP, UNITS, Row, Span, Work
from windtunnel.trace.plain import Json
from windtunnel.trace.units import far_words, format_bytes, format_ns, format_share, plural

SCHEMA_VERSION = 1
MOST_NAMES = 4


HOST = "the host's own work (loading, decoding, Python) is not counted without data"


@dataclass(frozen=True)
class Plan:
    """The result of `windtunnel plan`. `rows` are sorted, best first; `rehearsals` ran now, `cached` ran earlier.

    `seconds` is elapsed time; `processor_s` is the processor time of this machine's processes, None on a cluster.
    """

    rows: list[Row]
    work: Work
    program: str
    rehearsals: int = 0
    cached: int = 0
    seconds: float = 0.0
    processor_s: float | None = None
    interrupted: bool = False
    suggestions: list[str] = field(default_factory=list)

    @property
    def best(self) -> Row | None:
        """The recommended row: the first that fits; None if none does."""
        return next((row for row in self.rows if row.fits), None)

    @property
    def verdict(self) -> str:
        """The recommendation in one phrase."""
        best = self.best
        if best is not None:
            return f"EMULATED: take {named(best)}"
        if self._nothing_known:
            return "EMULATED: interrupted before anything was known"
        failed = [row for row in self.rows if row.status == demand.FAILED]
        if failed and len(failed) == len(self.rows):
            return "EMULATED: no candidate could be rehearsed"
        return "EMULATED: nothing fits" + (" among what was tried" if self.interrupted else "")

    @property
    def why(self) -> str:
        """What the recommended row gives, and how certain that is."""
        best = self.best
        if best is None:
            return self._why_not()
        goal = self.work.chosen
        fitting = sum(row.fits for row in self.rows)
        words = [f"the {goal} of {fitting} candidates that fit" if fitting > 1 else "it fits"]
        words += [text for text in (_step(best), _rate(best), _cost(best)) if text]
        return f"{', '.join(words)}; {self.surety}; {HOST}"

    @property
    def next(self) -> str:
        """The command to run."""
        best = self.best
        if best is not None:
            return best.command
        if any(row.status == demand.DOES_NOT_FIT for row in self.rows):
            return "GPUs with more memory, or less of what takes it: --suggest tries some of that"
        if self._nothing_known:
            return "the same command again"
        return "fix what the rows say, or see the whole error: windtunnel run --no-data " + self.program

    @property
    def _nothing_known(self) -> bool:
        return self.interrupted and all(row.status == demand.NOT_TRIED for row in self.rows)

    def _why_not(self) -> str:
        nearest = [row for row in self.rows if row.status == demand.DOES_NOT_FIT and row.headroom_bytes is not None]
        if nearest:
            row = nearest[0]
            if (row.headroom_bytes or 0) < 0:
                return f"the nearest, {named(row)}, needs {format_bytes(-(row.headroom_bytes or 0))} more than there is"
            return f"the nearest, {named(row)}, does not find room in one piece: {row.why}"
        if self._nothing_known:
            return "no rehearsal had ended"
        return next((f"{named(row)}: {row.why}" for row in self.rows if row.why), "no candidate was tried")

    @property
    def surety(self) -> str:
        """How certain the order is, and whether the first row fits."""
        best = self.best
        if best is None:
            return ""
        rivals = self.rivals
        parts = []
        if best.status == demand.TIGHT:
            parts.append("the upper end of its memory's band does not fit")
        untried = sum(row.status == demand.NOT_TRIED for row in self.rows)
        if len(self.rows) == 1:
            parts.append("there was nothing to compare it with")
        elif sum(row.fits for row in self.rows) == 1:
            parts.append("of the others none that was tried fits" if untried else "no other does")
        elif rivals:
            names = _several(rivals)
            parts.append(f"its band overlaps with that of {names}: between them this order is a best guess")
        else:
            parts.append("no other's band reaches it")
        return "; ".join(parts)

    @property
    def rivals(self) -> list[Row]:
        """The rows whose bands overlap that of the best."""
        best = self.best
        own = None if best is None else self._measure(best)
        if best is None or own is None:
            return []
        others = [(row, self._measure(row)) for row in self.rows if row.fits and row is not best]
        return [row for row, span in others if span is not None and span.overlaps(own)]

    def _measure(self, row: Row) -> Span | None:
        return row.work_cost if self.work.chosen == CHEAPEST and row.work_cost else row.work_ns

    @property
    def reasons(self) -> list[str]:
        """Why rows do not run, and how the next larger values ended; rows with the same reason are grouped."""
        by_reason: dict[str, list[Row]] = {}
        for row in self.rows:
            beyond = f"the next larger value: {row.next_larger}" if row.next_larger else ""
            by_reason.setdefault(beyond if row.fits else row.why, []).append(row)
        by_reason.pop("", None)
        return [f"{_several(rows)}: {reason}" for reason, rows in by_reason.items()]

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the table, one sentence each."""
        notes = ["times and memory are modelled, and the emulated program read no data"]
        ran = [row for row in self.rows if row.fits]
        unit = ran[0].unit if ran else STEP
        goal = "cost" if self.work.chosen == CHEAPEST else "time"
        if unit not in (*UNITS, STEP):
            notes.append(
                f"nothing says how many samples a step has: its work is taken to grow with {unit}, and the order is by "
                f"{goal} over {unit}"
            )
        elif len({row.units_per_step for row in ran}) > 1:
            more = "; --samples compares whole runs" if self.work.steps else ""
            notes.append(
                f"candidates take different numbers of {unit}s a step: the order is by {goal} of a {unit}{more}"
            )
        elif unit == STEP and len({row.samples_per_step for row in ran}) > 1:
            notes.append(f"not every candidate says how many samples a step has, so the order is by {goal} of a step")
        elif unit == STEP and len({tuple(row.choices.items()) for row in ran}) > 1:
            notes.append(
                "nothing says how many samples a step has (no DataLoader, no batch copied from the host), so the order "
                f"is by {goal} of a step, whatever it does"
            )
        pruned = sum(row.status == demand.PRUNED for row in self.rows)
        if pruned:
            notes.append(
                f"{plural(pruned, 'candidate')} pruned without a rehearsal: a smaller value does not fit already"
            )
        if any(row.status == demand.TIGHT for row in ran):
            notes.append('"tight" fits by the model, but not by the upper end of its band')
        if far := [row for row in ran if row.step_ns and far_words(row.step_ns.spread)]:
            widest = max(row.step_ns.spread for row in far if row.step_ns)
            notes.append(f"{_several(far)}: {far_words(widest)}")
        if self.work.chosen == CHEAPEST and any(row.price_per_hour is None for row in ran):
            notes.append("candidates without a --price come last")
        if unused := self._unused_prices():
            notes.append(f"--price of {', '.join(unused)} was not used: no candidate has that GPU")
        retimed = sum(row.how.startswith(RETIMED) for row in self.rows)
        done = f"{plural(self.rehearsals, 'rehearsal')} in {self.seconds:.0f} s"
        done += "" if self.processor_s is None else f", {self.processor_s:.0f} s of processor time"
        done += f", {self.cached} more from the cache" if self.cached else ""
        done += f", {plural(retimed, 'row')} retimed: only the speed of the GPU differs" if retimed else ""
        notes.append(done)
        notes += self._without_effect()
        if self.interrupted:
            notes.append("interrupted: what was not tried is missing; the same command goes on from here")
        return notes

    def _unused_prices(self) -> list[str]:
        """GPUs that have a price but no row: `--price A100` means another A100 than `--gpus A100-80GB`."""
        used = {model.key for row in self.rows for model in layout.models(row.gpus)}
        return [key for key in self.work.prices or {} if key not in used]

    def _without_effect(self) -> list[str]:
        """Options whose values all gave the same numbers: the program may not read them."""
        found = []
        for name in dict.fromkeys(name for row in self.rows for name in row.choices):
            groups: dict[object, list[Row]] = {}
            for row in self.rows:
                if row.fits and not row.largest:
                    rest = (row.gpus, *((key, value) for key, value in row.choices.items() if key != name))
                    groups.setdefault(rest, []).append(row)
            several = [group for group in groups.values() if len(group) > 1]
            if several and all(len({(row.peak_bytes, row.step_ns) for row in group}) == 1 for group in several):
                found.append(f"{name} made no difference to time or memory: does the program read it?")
        return found

    def to_json(self) -> Json:
        """Plain data: `rows` in order, with the recommendation and its basis."""
        best = self.best
        return {
            "schema_version": SCHEMA_VERSION,
            "emulated": True,
            "verdict": self.verdict,
            "why": self.why,
            "next": self.next,
            "program": self.program,
            "goal": self.work.chosen,
            "steps": self.work.steps,
            "samples": self.work.samples,
            "best": None if best is None else self.rows.index(best),
            "rivals": [self.rows.index(row) for row in self.rivals],
            "rows": [row.to_json() for row in self.rows],
            "notes": self.notes,
            "suggestions": self.suggestions,
            "rehearsals": self.rehearsals,
            "cached": self.cached,
            "seconds": round(self.seconds, 1),
            "processor_seconds": None if self.processor_s is None else round(self.processor_s, 1),
            "interrupted": self.interrupted,
        }


def _several(rows: Sequence[Row]) -> str:
    names = ", ".join(named(row) for row in rows[:MOST_NAMES])
    return f"{names} and {len(rows) - MOST_NAMES} more" if len(rows) > MOST_NAMES else names


def named(row: Row) -> str:
    """A row in one phrase: "L4 with --batch-size=12"."""
    choices = choice_words(row)
    return f"{row.gpus} with {choices}" if choices else row.gpus


def choice_words(row: Row) -> str:
    """The values of what varies, as on a command line."""
    words = []
    for name, value in row.choices.items():
        if value is None:
            words.append(f"no {name}" if name.startswith("-") else f"{name} unset")
        else:
            words.append(f"{name}={value}" if value else name)
    return " ".join(words)


def _step(row: Row) -> str:
    if row.step_ns is None:
        return "too few steps to say how long one takes"
    return f"{format_ns(row.step_ns.value)} a step ({format_ns(row.step_ns.low)} to {format_ns(row.step_ns.high)})"


def _rate(row: Row) -> str:
    span, unit = (row.tokens_per_s, "tokens") if row.tokens_per_s else (row.samples_per_s, "samples")
    return f"{number(span.value)} {unit} a second" if span else ""


def _cost(row: Row) -> str:
    if row.cost is not None:
        cost = row.cost
        return f"{money(cost.value)} ({money(cost.low)} to {money(cost.high)}) in all"
    return f"{hours_words(row.hours)} in all" if row.hours is not None else ""


def number(value: float) -> str:
    """Three significant digits, or all digits before the point: "12,345", "0.123"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def money(value: float) -> str:
    """A cost in the unit of the prices: two decimals, or two significant digits of less than a tenth: "0.0074"."""
    decimals = 2 if value >= 0.1 or value <= 0 else 1 - math.floor(math.log10(value))
    return f"{value:,.{decimals}f}"


def hours_words(span: Span | None) -> str:
    """Hours with their band: "3.1 h (2.0 to 4.2)"."""
    return "" if span is None else f"{span.value:,.3g} h ({span.low:,.3g} to {span.high:,.3g})"


def fit_words(row: Row) -> str:
    """Whether it fits, or how much memory it is short: "yes", "no, 3.20 GiB short"."""
    if row.status == demand.FITS:
        return "yes"
    if row.status == demand.DOES_NOT_FIT:
        missing = -(row.headroom_bytes or 0)
        return f"no, {format_bytes(missing)} short" if missing > 0 else "no, fragmented"
    return {demand.TIGHT: "tight"}.get(row.status, row.status)


def share_words(share: float | None) -> str:
    """A share as a percentage; empty if unknown."""
    return "" if share is None else format_share(share)
