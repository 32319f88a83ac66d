"""Random faults in a training of two ranks, beside an oracle that knows only what the table of docs/faults.md says.

python -m tools.faults --seed 7 --schedules 300
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from typing import Any

from tools import ROOT

TESTS = ROOT / "tests" / "ranks"
PROGRAM = TESTS / "faulty" / "training.py"
STEPS = 6
FATAL = ("die", "die-code", "die-error", "oom", "hang", "xid")
HARMLESS = ("slow", "slow-data")
CHANGING = ("nan", "bit-flip")
MOST_S, ALONE_S = 180.0, 45.0
"""A run that takes longer hangs: a busy machine needs a tenth of the first. The second is for a rank that may stand
still after the other has ended in the same step: nobody waits for it then, and no agent of torchrun ends it here."""


def schedule(draw: random.Random) -> list[tuple[str, int, int]]:
    """One to three faults: what, on which rank, in which step; two after the last one never comes."""
    return [
        (draw.choice([*FATAL, *HARMLESS, *CHANGING]), draw.randrange(2), draw.choice([*range(1, STEPS + 1), STEPS + 2]))
        for _ in range(draw.randint(1, 3))
    ]


def text(fault: tuple[str, int, int]) -> str:
    """A fault as `--fault` takes it."""
    kind, rank, step = fault
    name, _, way = kind.partition("-") if kind.startswith("die") else (kind, "", "")
    more = {"code": ",code=3", "error": ",error=lost"}.get(way, "")
    return f"{name}:rank={rank},step={step}{more}" + (",operation=addmm" if kind in CHANGING else "")


def expected(faults: list[tuple[str, int, int]]) -> set[str]:
    """What the end may be called: "ends" of a run that something fatal stops, else whether the weights are plain."""
    reached = [fault for fault in faults if fault[2] <= STEPS]
    firsts = {
        rank: min((step for kind, one, step in reached if kind in FATAL and one == rank), default=None)
        for rank in (0, 1)
    }
    if firsts[0] is not None and firsts[0] == firsts[1]:  # then maybe nobody waits for anybody
        return {"stopped", "stopped without a finding"}
    if any(step is not None for step in firsts.values()):
        return {"stopped"}
    return {"changed"} if any(kind in CHANGING for kind, _, _ in reached) else {"plain"}


def stands_alone(faults: list[tuple[str, int, int]]) -> bool:
    """Whether a rank may hang for which nobody waits, since both stop in the same step."""
    return "stopped without a finding" in expected(faults) and any(kind == "hang" for kind, _, _ in faults)


def seen(answer: dict[str, Any], plain: list[str]) -> str:
    """What the run came to."""
    if answer["took_s"] >= MOST_S:
        return "hung"
    weights = [found for one in answer["output"].values() for found in re.findall(r"weights (\w+ \w+)", one)]
    if any(answer["status"]):
        told = {code for code, *_ in answer["findings"]}
        return "stopped" if told & {"rank-ended", "rank-stuck", "out-of-memory"} else "stopped without a finding"
    return "plain" if weights == plain else "changed"


def main() -> int:
    """Run the schedules; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first of these schedules: 300 may be run in parts")
    parser.add_argument("--one", type=int, help="run that schedule of the seed alone")
    chosen = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "rank_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(faults: list[str], most_s: float = MOST_S) -> dict[str, Any]:
        # On a busy machine a rank may do nothing for seconds, though nothing hangs.
        stuck_after = 2.0 if any(fault.startswith("hang") for fault in faults) else 60.0
        assert server.stdin is not None
        assert server.stdout is not None
        request = {"program": str(PROGRAM), "ranks": 2, "faults": faults, "stuck_after": stuck_after, "most": most_s}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        found: dict[str, Any] = json.loads(server.stdout.readline())
        return found

    plain = re.findall(r"weights (\w+ \w+)", "".join(ask([])["output"].values()))
    numbers = range(chosen.first, chosen.first + chosen.schedules) if chosen.one is None else [chosen.one]
    wrong, slowest = 0, (0.0, 0)
    for number in numbers:
        faults = schedule(random.Random(f"{chosen.seed} {number}"))
        alone = stands_alone(faults)
        answer = ask([text(fault) for fault in faults], ALONE_S if alone else MOST_S)
        found = seen(answer, plain)
        if not alone:
            slowest = max(slowest, (answer["took_s"], number))
        if found not in expected(faults):
            wrong += 1
            print(f"{number}: {' '.join(map(text, faults))}: {found}, not {' or '.join(expected(faults))}", flush=True)
            print(json.dumps(answer, indent=1 if chosen.one is not None else None), flush=True)
    print(
        f"{len(numbers)} schedules of seed {chosen.seed}, {wrong} of them ended otherwise than the oracle says; the "
        f"slowest, {slowest[1]}, took {slowest[0]:.1f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
