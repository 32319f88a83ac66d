"""The formats that windtunnel reads: small files of each, how to get at the values in them, and who reads them."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel import cli
from windtunnel.errors import WindtunnelError
from windtunnel.planning.cache import Cache, checksum
from windtunnel.planning.measurement import DeviceNeed, Measurement
from windtunnel.ranks import flight_recorder
from windtunnel.ranks.calls import Call, Channel, Group, Operation, Rank, State
from windtunnel.trace.operation import Site

PROGRAM = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
side = torch.cuda.Stream()
for step in range(3):
    x = torch.randn(8, 16).cuda(non_blocking=True)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
    with torch.cuda.stream(side):
        x.add_(1)
"""
TRAINING = """
import sys, torch
from windtunnel.train import Trainer, Tensors
model = torch.nn.Linear(4, 1)
x = torch.arange(32.0).view(8, 4)
trainer = Trainer(2, 0, progress=False, checkpoint=sys.argv[1])
trainer.fit(model, Tensors(x, x.sum(1, keepdim=True), batch_size=4), loss=torch.nn.MSELoss(),
            optimizer=torch.optim.Adam(model.parameters()))
"""
NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor)
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid 1 on host0 device  0 [0x10] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on host1 device  0 [0x10] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    20.00    0.00    0.00      0    20.10    0.00    0.00      0
     1048576        262144     float     sum      -1    61.00   17.19   17.19      0    61.30   17.11   17.11      0
"""
CURVES = """gpu = "V100-SXM2-16GB"
generation = "volta"

[[curve]]
class = "matmul"
precision = "fp32"
roofline_us = [3.0, 30.0, 300.0]
efficiency = [0.2, 0.5, 0.8]
band = [0.05, 0.05, 0.05]
source = "a fuzzer"

[dispatch_us]
add = 5.0

[driver]
malloc_us = 30.0

[links]
h2d_pinned = 11.0e9
"""
SHARED_ROW = """{"format": 1, "program": "0123456789abcdef", "gpu": "T4", "gpus": 1, "driver": "580.95", "cuda": "12.8",
 "versions": {"torch": "2.9.0"}, "host": "a processor", "stand_in": false,
 "measured": {"steps": 9, "median_ms": 2.0, "least_ms": 1.9, "most_ms": 2.2},
 "predicted": {"median_ms": 1.8, "within_ms": [1.6, 2.1]}}
"""
SETTINGS = """[project]
name = "x"

[tool.windtunnel]
gpus = "2xV100"
fail-on = ["host-sync=2", "error"]
report = ["a.json"]
seed = 3
host-factor = 1.5
memory-history = true
cuda-version = "11.2"
host-memory-limit = "8GiB"
async = "late"
"""


@dataclass(frozen=True)
class Format:
    """One format: the name its files end in, who reads them, and how to get at the values in them, where they have any.

    `read` returns where the reader gave an answer, and raises whatever else escaped it. `modules` are those of
    windtunnel that read such files: a test holds them against all that read files of others.
    """

    name: str
    file: str
    read: Callable[[Path], None]
    decode: Callable[[bytes], Any] | None = None
    encode: Callable[[Any], bytes] | None = None
    modules: tuple[str, ...] = ()


class Seeds:
    """Files to begin with, made by running programs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "training.py").write_text(TRAINING)
        outputs = ["--trace", "out.trace"]
        for name in ("out.json", "out.snapshot.pickle", "out.kineto.json"):
            outputs += ["--report", name]
        command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", "--memory-history", *outputs]
        subprocess.run([*command, "program.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sys.executable, "training.py", "logs"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        checkpoint = next(path for path in sorted((folder / "logs").rglob("*")) if (path / "state.json").is_file())
        shutil.copytree(checkpoint, folder / "checkpoint")
        import windtunnel.gpus
        import windtunnel.networks

        models, networks = Path(windtunnel.gpus.__file__).parent, Path(windtunnel.networks.__file__).parent
        snapshot = (folder / "out.snapshot.pickle").read_bytes()
        self.checkpoint = folder / "checkpoint"
        self._files = {
            "trace": [(folder / "out.trace").read_bytes()],
            "journal": [journal_of(folder / "out.trace")],
            "snapshot": [snapshot],
            "snapshot-json": [gzip.compress(json.dumps(pickle.loads(snapshot)).encode(), mtime=0)],
            "kineto": [(folder / "out.kineto.json").read_bytes()],
            "report": [(folder / "out.json").read_bytes()],
            "curves": [CURVES.encode()],
            "host": [(models.parent / "hosts" / f"{name}.toml").read_bytes() for name in ("laptop", "h200-vm")],
            "gpu": [(models / f"{name}.toml").read_bytes() for name in ("T4", "H100-NVL-94GB")],
            "network": [(networks / f"{name}.toml").read_bytes() for name in ("p5", "gb200-nvl72")],
            "nccl-tests": [NCCL_TESTS.encode()],
            "shared-row": [SHARED_ROW.encode()],
            "settings": [SETTINGS.encode()],
            "state": [(self.checkpoint / "state.json").read_bytes()],
            "flight-recorder": dumps(folder),
            "plan-cache": [rehearsed()],
            "tensors": [path.read_bytes() for path in sorted(self.checkpoint.glob("*.safetensors"))],
        }

    def of(self, kind: Format) -> list[bytes]:
        """The files of a format."""
        return self._files[kind.name]


def journal_of(path: Path) -> bytes:
    """A saved trace as a journal."""
    from windtunnel.trace import journal
    from windtunnel.trace.trace import Trace

    return journal.MAGIC + b"".join(journal.Pages(Trace.load(path)).last())


# ---------------------------------------------------------------------- who reads


def dumps(folder: Path) -> list[bytes]:
    """Flight Recorder's dumps of two ranks, of which the second one's is left for those that the first is read with."""
    world, half = Group("default_pg", (0, 1)), Group("mesh_tp", (0, 1))
    found = []
    for rank in range(2):
        way, waits = ("send", "recv")[rank], State.WAITING if rank else State.DONE
        made = (
            (Channel("0"), Operation("all_reduce", ((8,),), ("float32",), (8,)), State.DONE),
            (Channel("1"), Operation("all_gather", ((4,),), ("float32",), (4,), received=(4, 4)), State.DONE),
            (Channel("1", way, 1 - rank), Operation(way, ((4,),), ("int64",), (4,)), State.DONE),
            (Channel("0"), Operation("all_to_all_single", ((4,),), ("int64",), sent=(2, 2), received=(2, 2)), waits),
        )
        calls = [
            Call(channel, 1 + (number == 3), operation, Site("train.py", number), state, number)
            for number, (channel, operation, state) in enumerate(made)
        ]
        counts = {call.channel: call.number for call in calls}
        found.append(flight_recorder.dump(Rank(rank, {"0": world, "1": half}, calls, counts)))
    (folder / "nccl_trace_rank_1").write_bytes(found[1])
    return found


KEY = "0" * 40


def rehearsed() -> bytes:
    """An entry of a plan's cache."""
    need = DeviceNeed(16 << 30, 300 << 20, 1 << 30, 2 << 30, 1 << 30, 0.02)
    measurement = Measurement("ran", devices=(need,), processes=1, steps=3, step_ns=10**7, causes={"launch": 0.5})
    return _entry({"measurement": measurement.to_json(), "files": {}, "trace": ""})


def _entry(content: Any) -> bytes:
    """An entry whose checksum is that of what it holds."""
    plain = json.loads(json.dumps(content))
    return _json({"checksum": checksum(KEY, plain), "content": plain})


def _cached(file: Path) -> None:
    entry = file.with_name(f"{KEY}.json")
    shutil.copy(file, entry)
    file.parent.chmod(0o700)
    known = Cache(file.parent).get(KEY)
    if known is not None:
        json.dumps(known[0].to_json())
        [(need.upper_bytes, need.taken_bytes) for need in known[0].devices]


def commands(*lines: str) -> Callable[[Path], None]:
    """A reader: commands, in which FILE stands for the file; each must end as a command ends."""

    def read(file: Path) -> None:
        out = file.parent / "out"
        out.mkdir(exist_ok=True)
        seeds = file.parents[2] / "seeds"
        places = {"FILE": str(file), "OUT": str(out), "SEEDS": str(seeds)}
        for line in lines:
            words = [re.sub("^(FILE|OUT|SEEDS)", lambda place: places[place[0]], word) for word in line.split()]
            code = cli._run(words)
            if code not in (0, 1, 2, 64):
                raise AssertionError(f"exit code {code} of {line}")

    return read


def answered(function: Callable[[Path], object]) -> Callable[[Path], None]:
    """A reader: a function, which returns or raises an error of windtunnel's."""

    def read(file: Path) -> None:
        try:
            function(file)
        except (WindtunnelError, OSError) as error:
            print(error)

    return read


def _journal(file: Path) -> None:
    from windtunnel import checks
    from windtunnel.trace import journal

    checks.run(journal.read(file)[0].canonical())


def _curves(file: Path) -> None:
    import torch

    import windtunnel

    with windtunnel.emulate("1xV100", curves=str(file)):
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()


def _host(file: Path) -> None:
    import torch

    import windtunnel

    with windtunnel.emulate("1xV100", host=str(file)):
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()


def _gpu(file: Path) -> None:
    import torch

    import windtunnel

    with windtunnel.emulate(f"1x{file}"), contextlib.suppress(torch.OutOfMemoryError):  # the card may be tiny
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()


def _network(file: Path) -> None:
    from windtunnel import gpus, networks
    from windtunnel.cost.model import CostModel

    gpu = gpus.find("H100")
    model = CostModel(gpu, network=networks.find(str(file), gpu.key))
    for name in ("all_reduce", "all_gather", "alltoall", "send 0->8"):
        model.collective_ns(name, 1 << 20, 16, networks.Spread(16, 2))


def _shared_row(file: Path) -> None:
    from windtunnel.analysis import shared_rows

    print(shared_rows.load(file).is_held_back)


def _settings(file: Path) -> None:
    shutil.copy(file, file.parent / "pyproject.toml")
    os.chdir(file.parent)
    commands("run nothing.py", "gpus")(file)


def _checkpoint(name: str) -> Callable[[Path], None]:
    def read(file: Path) -> None:
        from windtunnel.train.checkpoint import read_checkpoint

        folder = file.parent / "step"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(file.parents[2] / "seeds" / "checkpoint", folder)
        target = folder / name if name else next(iter(sorted(folder.glob("*.safetensors"))))
        shutil.copy(file, target)
        read_checkpoint(folder)

    return answered(read)


# ---------------------------------------------------------------------- values in files


def _trace_values(data: bytes) -> Any:
    magic, header, body = gzip.decompress(data).split(b"\n", 2)
    rows = array("q")
    rows.frombytes(body)
    return {"magic": magic.decode(), "header": json.loads(header), "rows": rows.tolist()}


def _trace_bytes(value: Any) -> bytes:
    rows = value.get("rows") if isinstance(value, dict) else None
    whole = [one for one in rows if type(one) is int and abs(one) < 1 << 63] if isinstance(rows, list) else []
    header = json.dumps(value.get("header") if isinstance(value, dict) else value)
    return gzip.compress(f"windtunnel-trace 2\n{header}\n".encode() + array("q", whole).tobytes(), mtime=0)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=4)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _packed(value: Any) -> bytes:
    return gzip.compress(_json(value), mtime=0)


def _toml(value: Any, name: str = "") -> bytes:
    """TOML of plain data, as far as it has any."""
    if not isinstance(value, dict):
        return f"x = {_toml_value(value)}\n".encode()
    plain = {key: one for key, one in value.items() if not isinstance(one, dict)}
    lines = [f"{json.dumps(str(key))} = {_toml_value(one)}" for key, one in plain.items()]
    text = (f"[{name}]\n" if name else "") + "\n".join(lines) + "\n"
    out = text.encode(errors="backslashreplace")
    for key, one in value.items():
        if isinstance(one, dict):
            out += _toml(one, f"{name}.{json.dumps(str(key))}" if name else json.dumps(str(key)))
    return out


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return '""' if value is None else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def _from_toml(data: bytes) -> Any:
    return tomllib.loads(data.decode())


REPORTS = " ".join(f"-o OUT/o.{suffix}" for suffix in ("html", "json", "md", "txt", "sarif", "kineto.json"))
FORMATS = {
    kind.name: kind
    for kind in (
        Format(
            "trace",
            "x.trace",
            commands("report FILE", f"report FILE {REPORTS}", "compare FILE FILE", "retime FILE T4"),
            _trace_values,
            _trace_bytes,
            ("trace/trace.py", "analysis/compare.py", "cli/_files.py", "cli/compare.py"),
        ),
        Format("journal", "x.journal", answered(_journal), modules=("trace/journal.py",)),
        Format(
            "snapshot",
            "x.snapshot.pickle",
            commands("memory FILE", f"report FILE {REPORTS}"),
            pickle.loads,
            _pickled,
            ("analysis/snapshot_file.py", "measure/snapshot.py"),
        ),
        Format(
            "snapshot-json",
            "x.snapshot.json.gz",
            commands("memory FILE --alloc-conf expandable_segments:True"),
            lambda data: json.loads(gzip.decompress(data)),
            _packed,
        ),
        Format(
            "kineto",
            "x.json",
            commands(f"report FILE {REPORTS}", "compare FILE FILE", "retime FILE T4"),
            json.loads,
            _json,
            ("measure/kineto.py",),
        ),
        Format("report", "x.json", commands("compare FILE FILE"), json.loads, _json),
        Format("curves", "x.toml", answered(_curves), _from_toml, _toml, modules=("cost/measured.py",)),
        Format("host", "x.toml", answered(_host), _from_toml, _toml, modules=("hosts/host.py",)),
        Format("gpu", "x.toml", answered(_gpu), _from_toml, _toml, modules=("gpus/files.py",)),
        Format("network", "x.toml", answered(_network), _from_toml, _toml, modules=("networks/network.py",)),
        Format("nccl-tests", "x.txt", answered(_network), modules=("networks/nccl_tests.py",)),
        Format("shared-row", "x.json", answered(_shared_row), json.loads, _json, modules=("analysis/shared_rows.py",)),
        Format("settings", "x.toml", _settings, _from_toml, _toml, modules=("settings.py",)),
        Format("state", "x.json", _checkpoint("state.json"), json.loads, _json),
        Format("tensors", "x.safetensors", _checkpoint("")),
        Format(
            "flight-recorder",
            "nccl_trace_rank_0",
            commands(f"report FILE {REPORTS}", "report FILE SEEDS/nccl_trace_rank_1"),
            pickle.loads,
            _pickled,
            ("ranks/flight_recorder.py",),
        ),
        Format(
            "plan-cache",
            "x.json",
            _cached,
            lambda data: json.loads(data)["content"],
            _entry,
            modules=("planning/cache.py",),
        ),
    )
}
