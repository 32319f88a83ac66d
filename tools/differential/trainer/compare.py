"""One configuration through both loops, and, where it crashes, again after each of its steps; and the verdict."""

from __future__ import annotations

import copy
import re
import traceback
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from tools import ROOT
from tools.differential.trainer import plain, trained
from tools.differential.trainer.outcome import TOLERANCE, TrainerOutcome, differences
from tools.differential.trainer.space import Config
from windtunnel.errors import WindtunnelError

REFUSALS = ROOT / "docs" / "trainer.md"


class Verdict(NamedTuple):
    """`kind`: agrees, refused (by a documented sentence), differs."""

    kind: str
    lines: list[str]
    resumes: int = 0


def documented_refusals() -> list[re.Pattern[str]]:
    """The sentences in the section "What is refused" of docs/trainer.md; "..." in them stands for anything."""
    section = REFUSALS.read_text(encoding="utf-8").split("## What is refused", 1)[1].split("\n## ", 1)[0]
    sentences = re.findall(r"^- `(.+?)`", section, flags=re.MULTILINE)
    return [re.compile(".*".join(map(re.escape, sentence.split("...")))) for sentence in sentences]


def run(function: Any, *arguments: Any) -> TrainerOutcome | Exception:
    try:
        outcome: TrainerOutcome = function(*arguments)
    except Exception as error:  # noqa: BLE001  (what it raises is what is compared)
        return error
    return outcome


def judge(config: Config, refusals: list[re.Pattern[str]], rank: int = 0) -> Verdict:
    """Both loops, on this process alone or on all of them; every process judges its own outcome."""
    ours = run(trained.train, config, rank)
    if isinstance(ours, WindtunnelError):
        return refusal(ours, refusals)
    plainly = run(plain.train, config, rank)
    if isinstance(plainly, Exception) and isinstance(ours, Exception):
        same = type(plainly) is type(ours)
        lines = [f"plain: {_short(plainly)}", f"the Trainer: {_short(ours)}"]
        return Verdict("agrees" if same else "differs", lines)
    if isinstance(plainly, Exception):
        return Verdict("differs", ["only the plain loop raises", *_long(plainly)])
    if isinstance(ours, Exception):
        return Verdict("differs", ["only the Trainer raises", *_long(ours)])
    again = after_crashes(config, ours, refusals, rank) if config.resume == "crash" else Verdict("agrees", [])
    forget(config, plainly, ours)
    lines = differences(plainly, ours, TOLERANCE[config.precision])
    return Verdict("differs", lines, again.resumes) if lines else again


def refusal(error: WindtunnelError, refusals: list[re.Pattern[str]]) -> Verdict:
    sentence = str(error)
    known = any(pattern.match(sentence) for pattern in refusals)
    return Verdict("refused", [sentence]) if known else Verdict("differs", [f"refused, not documented: {sentence}"])


def after_crashes(config: Config, whole: TrainerOutcome, refusals: list[re.Pattern[str]], rank: int) -> Verdict:
    """A training that crashes after a step and is resumed leaves what `whole` left, bit for bit; so for each step."""
    kind, found = "agrees", list[str]()
    for step in range(1, whole.steps + 1):  # all of them, whatever is found: the other processes do so
        ours = run(trained.train, config, rank, step)
        if isinstance(ours, WindtunnelError):
            verdict = refusal(ours, refusals)
        elif isinstance(ours, Exception):
            verdict = Verdict("differs", ["raises", *_long(ours)])
        else:
            expected = copy.deepcopy(whole)
            forget(config, expected, ours)
            lines = differences(expected, ours, 0.0)
            verdict = Verdict("differs" if lines else "agrees", lines)
        if verdict.kind != "agrees" and kind != "differs":
            kind, found = verdict.kind, [f"resumed after step {step}: {line}" for line in verdict.lines]
    return Verdict(kind, found, whole.steps)


def forget(config: Config, plainly: TrainerOutcome, ours: TrainerOutcome) -> None:
    """What is no promise: what a first process saw that has ended; into how many parts outputs come."""
    if config.resume != "none":
        plainly.logged_before = {step: plainly.logged.get(step) for step in ours.logged_before}
        plainly.seen = plainly.seen[len(plainly.seen) - len(ours.seen) :]
        for outcome in (plainly, ours):
            outcome.left["epochs told"] = None
    for outcome in (plainly, ours):
        if outcome.predictions:
            outcome.predictions = [torch.cat(outcome.predictions)]


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _long(error: Exception) -> list[str]:
    return [_short(error), *(frame.rstrip() for frame in traceback.format_tb(error.__traceback__)[-3:])]


def described(config: Config) -> str:
    """The configuration as what differs from the defaults."""
    default = asdict(Config())
    return ", ".join(f"{name}={value!r}" for name, value in asdict(config).items() if value != default[name])
