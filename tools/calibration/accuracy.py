"""Predicted against published training throughput, for models written on stock torch.

    python tools/calibration/accuracy.py               # the table, its median and 90th percentile error, Kendall's tau
    python tools/calibration/accuracy.py transformer   # the rows of models whose names begin so

Each program runs without data under `windtunnel.emulate` and reads its own clock, as a person's program does. See
`reference_steps.py` and `reference_stages.py` for the programs, `calibrate_cost.py` for what was fitted on which rows.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import reference_stages  # noqa: E402
from calibrate_cost import is_fitted  # noqa: E402
from reference_steps import OLD_SOFTWARE, predict, rows, run  # noqa: E402

UNPUBLISHED = (("gpt2-124M", "A100-SXM4-40GB", "bf16", 12), ("gpt2-124M", "RTX3090", "bf16", 8))
"""Programs without a published figure in the table: what they would reach."""


class Outcome(NamedTuple):
    """Predicted and published throughput, and the relative band of the predicted time."""

    predicted: float
    published: float
    band: float | None

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the band around the predicted one."""
        return self.band is not None and abs(self.predicted / self.published - 1.0) <= self.band


def main() -> None:
    """Print the table."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    found: dict[str, list[Outcome]] = {}
    pairs: list[tuple[str, float, float, bool]] = []
    chosen = [row for row in rows() if row["model"].startswith(only)]
    for row in sorted(chosen, key=lambda r: (r["model"], r["key"], r["kind"])):
        (predicted, band), published = predict(row), float(row["value"])
        kind = "fitted" if is_fitted(row) else "old software" if OLD_SOFTWARE in row["notes"] else "unseen"
        family = "Transformer-XL" if row["model"].startswith("transformer-xl") else "ResNet-50 and BERT"
        for name in ("all", kind, f"{kind}, {family}"):
            found.setdefault(name, []).append(Outcome(predicted, published, band))
        pairs.append((row["model"], predicted, published, kind == "old software"))
        print(
            f"{row['model']:21} {row['key']:15} {row['kind']} batch {row['batch']:>5}: "
            f"{predicted:10.1f} of {published:10.1f} {predicted / published - 1:+7.1%}  band {band or 0:.0%}, {kind}",
            flush=True,
        )
    for stage in reference_stages.rows() if "gpt2".startswith(only) else ():
        predicted, band = reference_stages.predict(stage["stage"], int(stage["batch"]))
        published = float(stage["value"])
        for name in ("all", "unseen", "unseen, GPT-2 in stages"):
            found.setdefault(name, []).append(Outcome(predicted, published, band))
        print(
            f"{'gpt2, ' + stage['stage']:21} {reference_stages.GPU:15}      batch {stage['batch']:>5}: "
            f"{predicted:10.1f} of {published:10.1f} {predicted / published - 1:+7.1%}  band {band or 0:.0%}, unseen",
            flush=True,
        )
    for name, some in sorted(found.items()):
        errors = sorted(abs(one.predicted / one.published - 1) for one in some)
        worst = errors[int(0.9 * (len(errors) - 1))]
        inside = sum(one.inside for one in some) / len(some)
        print(f"{name}: {len(some)} rows, median error {median(errors):.1%}, p90 {worst:.1%}, {inside:.0%} inside")
    for model, key, kind, batch in UNPUBLISHED if not only else ():
        reached = run(model, key, kind, batch).throughput
        print(f"{model:21} {key:15} {kind} batch {batch:>5}: {reached:10.1f}, no published figure")
    same = [(model, predicted, published) for model, predicted, published, old in pairs if not old]
    for words, chosen_pairs in (("all rows", [pair[:3] for pair in pairs]), ("rows of one software", same)):
        if len(chosen_pairs) > 1:
            print(f"Kendall's tau of the ranking within each model, {words}: {tau(chosen_pairs):.3f}")


def tau(pairs: list[tuple[str, float, float]]) -> float:
    """Kendall's tau (a) over all pairs of rows of the same model; GPUs that the model cannot tell apart count as 0."""
    signs = [
        ((a[1] > b[1]) - (a[1] < b[1])) * ((a[2] > b[2]) - (a[2] < b[2]))
        for a, b in combinations(pairs, 2)
        if a[0] == b[0] and a[2] != b[2]
    ]
    return sum(signs) / len(signs) if signs else 0.0


if __name__ == "__main__":
    main()
