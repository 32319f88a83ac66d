"""Predicted against published training throughput, for models written on stock torch.

    python tools/calibration/accuracy.py               # the table, its median and 90th percentile error, Kendall's tau
    python tools/calibration/accuracy.py transformer   # the rows of models whose names begin so

Each program runs without data under `understudy.emulate` and reads its own clock, as a person's program does. See
`reference_steps.py` and `reference_stages.py` for the programs, `calibrate_cost.py` for what was fitted on which rows.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import reference_stages  # noqa: E402
from calibrate_cost import is_fitted  # noqa: E402
from reference_steps import OLD_SOFTWARE, predict, rows, run  # noqa: E402

UNPUBLISHED = (("gpt2-124M", "A100-SXM4-40GB", "bf16", 12), ("gpt2-124M", "RTX3090", "bf16", 8))
"""Programs without a published figure in the table: what they would reach."""


def main() -> None:
    """Print the table."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    errors: dict[str, list[float]] = {}
    pairs: list[tuple[str, float, float, bool]] = []
    chosen = [row for row in rows() if row["model"].startswith(only)]
    for row in sorted(chosen, key=lambda r: (r["model"], r["key"], r["kind"])):
        predicted, published = predict(row), float(row["value"])
        kind = "fitted" if is_fitted(row) else "old software" if OLD_SOFTWARE in row["notes"] else "unseen"
        family = "Transformer-XL" if row["model"].startswith("transformer-xl") else "ResNet-50 and BERT"
        for name in ("all", kind, f"{kind}, {family}"):
            errors.setdefault(name, []).append(abs(predicted / published - 1))
        pairs.append((row["model"], predicted, published, kind == "old software"))
        print(
            f"{row['model']:21} {row['key']:15} {row['kind']} batch {row['batch']:>5}: "
            f"{predicted:10.1f} of {published:10.1f} {predicted / published - 1:+7.1%}  {kind}",
            flush=True,
        )
    for stage in reference_stages.rows() if "gpt2".startswith(only) else ():
        predicted, published = reference_stages.predict(stage["stage"], int(stage["batch"])), float(stage["value"])
        for name in ("all", "unseen", "unseen, GPT-2 in stages"):
            errors.setdefault(name, []).append(abs(predicted / published - 1))
        print(
            f"{'gpt2, ' + stage['stage']:21} {reference_stages.GPU:15}      batch {stage['batch']:>5}: "
            f"{predicted:10.1f} of {published:10.1f} {predicted / published - 1:+7.1%}  unseen",
            flush=True,
        )
    for name, values in sorted(errors.items()):
        values.sort()
        worst = values[int(0.9 * (len(values) - 1))]
        print(f"{name}: {len(values)} rows, median error {median(values):.1%}, p90 {worst:.1%}")
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
