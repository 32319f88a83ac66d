"""One side of a stage: runs the items, each in a process of its own, and writes each result down as it comes.

    python -m hardware.worker STAGE RESULTS CONTEXT [ITEM...]

RESULTS is a file of JSON lines. Items that it names already are not run again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.hardware import stages
from tools.hardware.context import Context

ERROR_CHARACTERS = 400


def main(stage_name: str, results: str, context: str, *only: str) -> None:
    """Run what is left of a stage."""
    stage = stages.load(stage_name)
    import torch  # noqa: F401  # once, for all items; nothing here touches CUDA, which could not be forked then

    path = Path(results)
    known = {line["item"] for line in read(path)}
    for name, call in stage.items(Context(**json.loads(context))).items():
        if name not in known and (not only or name in only):
            write(path, {"item": name, "begun": True})
            write(path, {"item": name, "value": in_a_process(call, stage.ITEM_S)})


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; a last one that was cut off does not count."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


def write(path: Path, line: dict[str, Any]) -> None:
    """Append a line, on disk before the next item begins."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def in_a_process(call: Callable[[], Any], limit_s: int) -> Any:
    """What a call gives in a fork of this process; {"error": ...} where it raises, crashes or takes too long."""
    with tempfile.TemporaryDirectory(prefix="hardware-") as folder:
        answer, errors = Path(folder, "answer"), Path(folder, "errors")
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _child(call, limit_s, answer, errors)
        _, status = os.waitpid(child, 0)
        if answer.exists():
            return json.loads(answer.read_text("utf-8"))
        return {"error": _reason(os.waitstatus_to_exitcode(status), errors.read_text("utf-8", "replace"), limit_s)}


def _child(call: Callable[[], Any], limit_s: int, answer: Path, errors: Path) -> None:
    code = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit_s)
        text = json.dumps(call())
        part = answer.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.rename(answer)
        code = 0
    except BaseException:
        with errors.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise
    finally:
        os._exit(code)


def _reason(code: int, errors: str, limit_s: int) -> str:
    if code == -signal.SIGALRM:
        return f"took more than {limit_s} s"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return first_line(errors)


def first_line(errors: str) -> str:
    """The first line of the exception at the end of a traceback, with its class."""
    lines = errors.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    after = [line for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip()]
    for number in reversed(range(len(lines))):
        if lines[number].startswith("Traceback (most recent"):
            after = [line for line in lines[number + 1 :] if line and not line.startswith(" ")]
            break
    return (after[0] if after else "no message")[:ERROR_CHARACTERS]


if __name__ == "__main__":
    main(*sys.argv[1:])
