"""Programs of two to eight ranks, faulty and valid: each fault is found at its line, and nothing else is.

Each rank's trace, retimed to the GPUs that it is of, stays the same to the nanosecond.

A program's marks stand at the ends of its lines: `# finding: code` where the finding is, `# named` where a line must be
among those that the finding's message shows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))
GO_ON = (
    "wait-missing", "unused-parameters", "samplers-disagree", "unequal-replicas", "uninitialized-read", "known-error",
    "context-on-other-gpu", "out-of-memory",
)  # fmt: skip
"""Findings that do not end a run: the program goes on, or ends by its own error."""
FINDING = re.compile(r"# finding: (?P<code>[a-z-]+)")


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(
        [sys.executable, str(HERE / "rank_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.stdin.close()
    process.wait(timeout=30)


def ask(server, path, **more):
    """Run a program, on two ranks unless it says otherwise; what the server answers."""
    text = path.read_text("utf-8")
    said = re.search(r"Runs with (\d) ranks\.", text)
    ranks = int(said[1]) if said else 2
    stuck = re.search(r"Stuck after (\d+) seconds\.", text)
    request = {"program": str(path), "ranks": ranks, **more}
    if stuck:
        request["stuck_after"] = float(stuck[1])
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


THREADS_OF_ONE_STREAM = {"two_backends_in_different_order_valid", "workers_beside_a_collective_valid"}
"""A trace orders rows by when they were issued, which does not tell how threads that share a stream took turns on it:
retimed, these end a few microseconds off (a limit that docs/time.md says)."""
STREAMS_OF_A_GRAPH = {"messages_in_a_graph_valid"}
"""A trace does not tell what a replayed collective waited for on another stream of its graph (the same limit)."""


@pytest.mark.long
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program(server, path):
    lines = path.read_text("utf-8").splitlines()
    expected = [(found["code"], number) for number, line in enumerate(lines, 1) if (found := FINDING.search(line))]
    named = [number for number, line in enumerate(lines, 1) if line.endswith("# named")]
    answer = ask(server, path)
    shown = json.dumps(answer, indent=1)
    assert [(code, line) for code, _, line, _ in answer["findings"]] == expected, shown
    assert all(Path(file).name == path.name for _, file, _, _ in answer["findings"]), shown
    assert "GLHF" not in shown  # gloo's words, where a GPU's user would read NCCL's
    for _, _, _, message in answer["findings"]:
        assert all(f"{path.name}:{number}" in message for number in named), shown
    if path.stem not in THREADS_OF_ONE_STREAM | STREAMS_OF_A_GRAPH:
        assert answer["retimed_unlike"] == []
    if expected and expected[0][0] not in GO_ON:
        assert answer["outcome"] == 64
        assert any(answer["status"])
    elif not expected:
        assert answer["status"] == [0] * len(answer["status"]), shown


@pytest.mark.long
@pytest.mark.parametrize("name", ["message_larger_receive", "message_dtype_differs", "pipeline_last_batch_valid"])
def test_messages_are_compared_without_data(server, name):
    path = HERE / "programs" / f"{name}.py"
    answer = ask(server, path, no_data=True)
    expected = [] if name.endswith("_valid") else ["collective-mismatch"]
    assert [code for code, *_ in answer["findings"] if code != "assumed-value"] == expected, json.dumps(answer)
    assert any(answer["status"]) == bool(expected)


def test_as_many_programs_are_valid_as_are_not():
    valid = sum(path.stem.endswith("_valid") for path in PROGRAMS)
    assert len(PROGRAMS) >= 40
    assert 0.4 <= valid / len(PROGRAMS) <= 0.6


@pytest.mark.long
def test_ranks_that_all_idle_are_told_once_where(server):
    answer = ask(server, PROGRAMS[0].with_name("idle_on_the_host_valid.py"))
    said = "no rank has given its GPU any work for 1 s, and none waits for another; rank 0 is at "
    assert "".join(answer["output"].values()).count(said) == 1
    assert answer["findings"] == []
