"""Plans against published training runs: does what others ran fit, and are GPUs ranked as their throughput ranks them?

The published batches of a model differ by GPU and follow its memory: they are what the publishers made fit. Each plan
looks for the largest batch that fits on every GPU of the rows, and its throughput there is compared with the published.
"""

from __future__ import annotations

from itertools import combinations

from tools.corpus import training
from windtunnel import planning
from windtunnel.launch import Program
from windtunnel.planning.cache import default_folder
from windtunnel.planning.planner import Question
from windtunnel.planning.rows import Row, Work
from windtunnel.planning.space import parse_largest

LEAST_GPUS = 5
PROGRAM = "tools.corpus.plan_program"


def compare(only: str) -> None:
    """Print a table a model, and what they say together."""
    groups: dict[tuple[str, str], dict[str, training.TrainingRow]] = {}
    for row in training.rows():
        if row.model.startswith(only):
            groups.setdefault((row.model, row.kind), {}).setdefault(row.gpu, row)
    fitting = runs = best = within = plans = outside = 0
    agree: list[tuple[bool, bool]] = []  # whether a pair is ranked right, and of one software
    for (model, kind), published in groups.items():
        if len(published) < LEAST_GPUS:
            continue
        found = planned(model, kind, published)
        for key, row in published.items():
            runs += 1
            fitting += batch(found[key]) >= row.batch
            print(
                f"{model:20} {kind:5} {key:18} published batch {row.batch:>5}, planned {batch(found[key]):5}"
                f"{' TOO SMALL' if batch(found[key]) < row.batch else ''}",
                flush=True,
            )
        truth = {key: row.published for key, row in published.items()}
        for one, other in combinations(published, 2):
            old = [published[key].is_old for key in (one, other)]
            right = (rate(found[one]) > rate(found[other])) == (truth[one] > truth[other])
            agree.append((right, old[0] == old[1]))
            if not right:
                slow, fast = sorted((one, other), key=lambda key: rate(found[key]))
                apart = rate(found[slow], high=True) < rate(found[fast], low=True)
                outside += apart
                names = [f"{key} (planned {rate(found[key]):.1f}, published {truth[key]:.1f})" for key in (fast, slow)]
                bands = "do not overlap" if apart else "overlap"
                print(f"{model:20} {kind:5} misordered: {' and '.join(names)} samples a second, whose bands {bands}")
        fastest, taken = max(truth, key=lambda key: truth[key]), max(found, key=lambda key: rate(found[key]))
        plans += 1
        best += fastest == taken
        within += rate(found[taken], low=True) <= rate(found[fastest], high=True)
        print(f"{model:20} {kind:5} fastest published {fastest}, planned {taken}")
    if agree:
        print(f"published batches that fit: {fitting} of {runs}")
        for name, chosen in (
            ("all rows", [right for right, _ in agree]),
            ("rows of one software", [right for right, one in agree if one]),
        ):
            print(f"ranking of GPUs, {name}: tau {2 * sum(chosen) / len(chosen) - 1:.2f} over {len(chosen)} pairs")
        wrong = sum(not right for right, _ in agree)
        print(f"misordered pairs: {wrong}, of which {wrong - outside} have bands that overlap")
        print(f"recommended GPU: the fastest in {best} of {plans} plans, within its band in {within}")


def planned(model: str, kind: str, published: dict[str, training.TrainingRow]) -> dict[str, Row]:
    """The largest batch and its time on each GPU; four times the published batch is as far as the search goes."""
    top = 4 * max(row.batch for row in published.values())
    question = Question(
        Program("module", PROGRAM, (model, kind)),
        tuple(published),
        largest=parse_largest(f"--batch-size=1..{top}"),
        options={"assume": 1.0, "host": "reference"},
    )
    return {row.gpus: row for row in planning.make(question, Work(), folder=default_folder()).rows}


def batch(row: Row) -> int:
    """The largest batch that fits; 0 where none does."""
    return int(str(row.choices["--batch-size"])) if row.fits else 0


def rate(row: Row, low: bool = False, high: bool = False) -> float:
    """Samples a second, or an end of their band."""
    if row.step_ns is None:
        return 0.0
    return batch(row) * 1e9 / (row.step_ns.high if low else row.step_ns.low if high else row.step_ns.value)
