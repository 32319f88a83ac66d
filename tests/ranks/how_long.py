"""How long the corpus's faulty programs take from their ranks' start to the end of the last one, and what is found.

python tests/ranks/how_long.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from test_programs import FINDING, HERE, PROGRAMS, ask


def main() -> None:
    """Run those programs that have a finding; a line for each that takes long or names another line, and a summary."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "rank_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    took, wrong = [], 0
    for path in PROGRAMS:
        lines = path.read_text("utf-8").splitlines()
        expected = [(found["code"], number) for number, line in enumerate(lines, 1) if (found := FINDING.search(line))]
        if not expected:
            continue
        answer = ask(process, path)
        took.append(answer["took_s"])
        found = [(code, line) for code, _, line, _ in answer["findings"]]
        wrong += found != expected
        if found != expected or took[-1] > 5:
            print(f"{path.stem}: {took[-1]:.1f} s, {found}", flush=True)
    print(
        f"{len(PROGRAMS)} programs, {len(took)} of them with a finding, {wrong} of which were not found at their line; "
        f"they ended within {max(took):.1f} s, in the median {statistics.median(took):.1f} s; "
        f"load of {os.cpu_count()} cores: {os.getloadavg()[1]:.1f}"
    )


if __name__ == "__main__":
    main()
