"""Running the sides of a stage as processes, within their time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.hardware import stages, worker
from tools.hardware.context import OVER, Context

NATIVE, EMULATED = "native", "emulated"
ATTEMPTS = 3  # a worker that dies itself, not one of its items, is started again


@dataclass
class Run:
    """A run of the stages: where its files are, how much time is left, and what stands in for the GPU ("" for none)."""

    folder: Path
    ends_at: float
    stand_in: str = ""
    short: bool = False
    items: tuple[str, ...] = ()
    model: str = ""
    cuda_version: str = ""
    gpus: int = 2
    seconds: dict[str, float] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)  # stages of sides still to come, which must have time too

    def side(self, name: str, side: str) -> dict[str, Any]:
        """The results of one side of a stage; what was done before is not done again."""
        path = self.folder / f"{name}.{side}.jsonl"
        _forget_unfinished(path)
        begin = time.monotonic()
        limit = self._share(name, self.ends_at - begin)
        for _ in range(ATTEMPTS):
            before = len(worker.read(path))
            code = self._process(self._command(name, side, path), begin + limit, side)
            if code in (0, None) or len(worker.read(path)) == before:
                break
        self.seconds[f"{name}.{side}"] = round(time.monotonic() - begin, 1)
        return dict(_values(path, code))

    def known(self, name: str, side: str) -> dict[str, Any]:
        """The results of one side of a stage that an earlier run left, perhaps on another machine."""
        return dict(_values(self.folder / f"{name}.{side}.jsonl", 0))

    def _share(self, name: str, left_s: float) -> float:
        """The time for a side of a stage: its limit, or its part of what is left for all that are still to come."""
        if name in self.waiting:
            self.waiting.remove(name)
        limit = float(stages.load(name).LIMIT_S)
        all_s = limit + sum(stages.load(other).LIMIT_S for other in self.waiting)
        return min(limit, left_s * limit / all_s)

    def is_real(self, side: str) -> bool:
        """Whether a side runs on real GPUs."""
        return side == NATIVE and not self.stand_in

    def environment(self, side: str) -> dict[str, str]:
        """The variables of a side; natively nothing of the emulation. What would set the sides apart is left out."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDTUNNEL_", "PYTORCH_"))}
        devices = kept.pop("CUDA_VISIBLE_DEVICES", "")
        if self.is_real(side):
            chosen = devices.split(",") if devices else [str(number) for number in range(self.gpus)]
            kept["CUDA_VISIBLE_DEVICES"] = ",".join(chosen[: self.gpus])
        path = [str(ROOT / "src"), str(ROOT)]
        kept["PYTHONPATH"] = os.pathsep.join([*path, *kept.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
        return kept

    def emulation(self) -> list[str]:
        """The command that emulates what comes after it."""
        version = ["--cuda-version", self.cuda_version] if self.cuda_version else []
        spec = f"{self.gpus}x{self.model or self.stand_in}"
        return [sys.executable, "-m", "windtunnel", "run", "-q", "--seed", "0", "--gpus", spec, *version]

    def _command(self, name: str, side: str, path: Path) -> list[str]:
        stage = stages.load(name)
        context = Context(
            side, self.is_real(side), self.model or self.stand_in, self.gpus, str(self.folder / "artifacts"), self.short
        )
        prefix = [sys.executable] if self.is_real(side) else [*self.emulation(), *stage.OPTIONS]
        return [*prefix, "-m", "tools.hardware.worker", name, str(path), context.text(), *self.items]

    def _process(self, command: list[str], ends_at: float, side: str) -> int | None:
        """Its exit code; None when its time was over."""
        left = ends_at - time.monotonic()
        if left <= 0:
            return None
        with (self.folder / "log.txt").open("ab") as log:
            child = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(side),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                return child.wait(left)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def _forget_unfinished(path: Path) -> None:
    """An item that had only begun when an earlier run was stopped is run again."""
    lines = worker.read(path)
    if lines and "begun" in lines[-1]:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]), encoding="utf-8")


def _values(path: Path, code: int | None) -> Iterator[tuple[str, Any]]:
    begun = None
    for line in worker.read(path):
        begun = line["item"] if "begun" in line else None
        if "value" in line:
            yield line["item"], line["value"]
    if begun is not None:
        yield begun, {"error": OVER if code is None else "the stage's process ended"}
