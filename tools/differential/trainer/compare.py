"""One configuration through both loops, and the verdict."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from tools import ROOT
from tools.differential.trainer import plain, trained
from tools.differential.trainer.outcome import TrainerOutcome, differences
from tools.differential.trainer.space import Config
from windtunnel.errors import WindtunnelError

REFUSALS = ROOT / "docs" / "trainer.md"


class Verdict(NamedTuple):
    """`kind`: agrees, refused (by a documented sentence), differs."""

    kind: str
    lines: list[str]


def documented_refusals() -> list[re.Pattern[str]]:
    """The sentences in the section "What is refused" of docs/trainer.md; "..." in them stands for anything."""
    section = REFUSALS.read_text(encoding="utf-8").split("## What is refused", 1)[1].split("\n## ", 1)[0]
    sentences = re.findall(r"^- `(.+?)`", section, flags=re.MULTILINE)
    return [re.compile(".*".join(map(re.escape, sentence.split("...")))) for sentence in sentences]


def run(function: Any, config: Config, rank: int) -> TrainerOutcome | Exception:
    try:
        outcome: TrainerOutcome = function(config, rank)
    except Exception as error:  # noqa: BLE001  (what it raises is what is compared)
        return error
    return outcome


def judge(config: Config, refusals: list[re.Pattern[str]], rank: int = 0) -> Verdict:
    """Both loops, on this process alone or on all of them; every process judges its own outcome."""
    ours = run(trained.train, config, rank)
    if isinstance(ours, WindtunnelError):
        sentence = str(ours)
        known = any(pattern.match(sentence) for pattern in refusals)
        return Verdict("refused", [sentence]) if known else Verdict("differs", [f"refused, not documented: {sentence}"])
    plainly = run(plain.train, config, rank)
    if isinstance(plainly, Exception) and isinstance(ours, Exception):
        same = type(plainly) is type(ours)
        lines = [f"plain: {_short(plainly)}", f"the Trainer: {_short(ours)}"]
        return Verdict("agrees" if same else "differs", lines)
    if isinstance(plainly, Exception):
        return Verdict("differs", ["only the plain loop raises", *_long(plainly)])
    if isinstance(ours, Exception):
        return Verdict("differs", ["only the Trainer raises", *_long(ours)])
    forget(config, plainly, ours)
    lines = differences(plainly, ours, config.precision)
    return Verdict("differs" if lines else "agrees", lines)


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
