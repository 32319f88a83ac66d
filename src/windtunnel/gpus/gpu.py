"""The catalogue of GPUs: facts with their sources, one `.toml` file a model in this folder.

Adding a GPU is adding a file, here or anywhere: a spec may name a path. Facts that depend on the CUDA version as well
(the size of a CUDA context, the driver that ships with a toolkit) are in `tables/` and are read by `versions.py`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from windtunnel.errors import FileFormatError, UnknownGpuError, UsageError
from windtunnel.gpus import files

FOLDER = Path(__file__).parent
DEFAULT = "V100-SXM2-16GB"
MOST_GPUS = 128
HEAD_LINES = 3
"""A file's first lines: key, name and aliases."""


@dataclass(frozen=True)
class Gpu:
    """One model of GPU. Sizes in bytes, bandwidths in bytes a second and one direction, peaks in operations a second.

    `name` is what torch and nvidia-smi print. `memory_bytes` is what `cudaMemGetInfo` and torch's `total_memory` say;
    `smi_memory_mib` is nvidia-smi's total, which counts the reserved part as well since driver 510. `peak_flops` has
    the keys fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, fp4 and int8, where a missing key means "not supported";
    fp16, bf16, fp8 and fp4 are tensor-core rates from compute capability 7.0 on. `nvlink_bandwidth_bytes_per_s` is 0
    without NVLink. `peer_access` says whether two of them may read one another's memory (`cudaDeviceCanAccessPeer`);
    where not, copies between them go through the host. `sustained_share` is what the card keeps under load of what the
    same chip does with more power, 1.0 where nothing else is published; `clock_share` is at which part of `clock_mhz`
    it runs kernels that need little power. `sources` says for each fact where it is from.
    """

    key: str
    name: str
    aliases: tuple[str, ...]
    generation: str
    compute_capability: tuple[int, int]
    release_year: int
    sm_count: int
    clock_mhz: int
    memory_clock_mhz: int
    memory_bytes: int
    smi_memory_mib: int
    smi_memory_mib_before_r510: int
    memory_bandwidth_bytes_per_s: int
    l2_bytes: int
    pcie_generation: int
    pcie_bandwidth_bytes_per_s: int
    nvlink_bandwidth_bytes_per_s: int
    power_limit_w: int
    max_threads_per_sm: int
    registers_per_sm: int
    shared_memory_per_block_bytes: int
    shared_memory_per_block_optin_bytes: int
    shared_memory_per_sm_bytes: int
    peak_flops: Mapping[str, float] = field(compare=False)
    sources: Mapping[str, str] = field(compare=False, repr=False, default_factory=dict)
    price_usd_per_hour: float | None = None
    sustained_share: float = 1.0
    clock_share: float = 1.0
    peer_access: bool = True

    @property
    def has_tensor_cores(self) -> bool:
        """Whether matrix products of half precision run on tensor cores (compute capability 7.0 and later)."""
        return self.compute_capability >= (7, 0)

    @property
    def cycles_per_us(self) -> float:
        """The cycles of a multiprocessor in a microsecond of a kernel that needs little power."""
        return self.clock_mhz * self.clock_share

    def spread_ns(self, cycles: float) -> float:
        """The nanoseconds of so many cycles that all multiprocessors share."""
        return 1000.0 * cycles / (self.sm_count * self.cycles_per_us)

    def is_peer(self, other: Gpu) -> bool:
        """Whether one GPU of this model and one of the other may read one another's memory."""
        return self.peer_access and other.peer_access

    def smi_total_mib(self, driver: str) -> int:
        """The total that nvidia-smi shows in MiB under a driver such as "460.106.00"."""
        return self.smi_memory_mib_before_r510 if int(driver.split(".")[0]) < 510 else self.smi_memory_mib


@cache
def _read(path: Path) -> Gpu:
    gpu = files.read(path, Gpu, f"{DEFAULT}.toml")
    if path.parent != FOLDER:
        _require_generation(gpu, path.name)
    return gpu


def _require_generation(gpu: Gpu, name: str) -> None:
    """Efficiencies, links and drivers are known by generation."""
    known = sorted({_read(path).generation for path in _files().values()})
    if gpu.generation not in known:
        raise FileFormatError(
            f"{name} does not describe a GPU: generation must be one of {', '.join(known)}, whichever is nearest"
        )


def describe(gpu: Gpu) -> dict[str, object]:
    """A GPU as plain JSON for a trace: in full where a user's file describes it, else what reports need and its key."""
    own = {"compute_capability": list(gpu.compute_capability)}
    if _plain(gpu.key) in _files() and find(gpu.key) is gpu:
        return {name: own.get(name) or copy(getattr(gpu, name)) for name in _DESCRIBED}
    return {**asdict(gpu), **own, "aliases": list(gpu.aliases)}


_DESCRIBED = (
    "key",
    "name",
    "memory_bytes",
    "compute_capability",
    "sm_count",
    "memory_bandwidth_bytes_per_s",
    "peak_flops",
)


def from_description(facts: Mapping[str, object]) -> Gpu:
    """The GPU that `describe` wrote down.

    Raises:
        KeyError: the facts have no key.
        UnknownGpuError: the key is not in the catalogue and the facts are not complete.
    """
    if "power_limit_w" in facts:
        return files.checked(facts, Gpu, f"the trace's {facts['key']}", f"{DEFAULT}.toml")
    return find(str(facts["key"]))


@cache
def _files() -> dict[str, Path]:
    return {path.stem.lower(): path for path in sorted(FOLDER.glob("*.toml"))}


@cache
def _aliases() -> dict[str, Path]:
    """The other names of the catalogue's GPUs, which are in the first lines of their files: to read all takes long."""
    found: dict[str, Path] = {}
    for path in _files().values():
        with path.open(encoding="utf-8") as file:
            head = tomllib.loads("".join(islice(file, HEAD_LINES)))
        for alias in (*head["aliases"], head["name"]):
            found[_plain(alias)] = path
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip()).lower()


def names() -> list[str]:
    """The keys of all GPUs in the catalogue, sorted."""
    return sorted(path.stem for path in _files().values())


def find(name: str) -> Gpu:
    """The GPU of that key, alias or full name; upper and lower case are the same, and so are space, `_` and `-`.

    What ends in ".toml" is the path of a file with the facts of a GPU. "V100" is the V100-SXM2-16GB, "A100" the
    A100-SXM4-40GB, "H100" the H100-SXM5-80GB: of each family the first model with NVLink. `windtunnel gpus` lists all
    of them.

    Raises:
        UnknownGpuError: there is no such GPU; the text names the nearest ones.
        FileFormatError: the file does not describe a GPU.
        UsageError: the file cannot be read.
    """
    if name.strip().lower().endswith(".toml"):
        return _read(Path(name).absolute())
    plain = _plain(name)
    path = _files().get(plain) or _aliases().get(plain)
    if path is None:
        raise UnknownGpuError(_unknown(name, plain))
    return _read(path)


def _unknown(name: str, plain: str) -> str:
    keys = {**_files(), **_aliases()}
    near = difflib.get_close_matches(plain, keys, n=5, cutoff=0.5)
    near += [key for key in keys if plain and plain in key]
    models = list(dict.fromkeys(keys[key].stem for key in near))[:3]
    hint = f"did you mean {' or '.join(models)}? " if models else ""
    return f"no GPU is called {name!r}: {hint}`windtunnel gpus` lists all {len(_files())} models"


def parse(spec: str) -> tuple[Gpu, ...]:
    """The GPUs that a `--gpus` value asks for, in order.

    "2xV100" and "V100:2" are two V100, "V100,A100" one of each, "2xV100,A100" three; a bare "2" is two
    V100-SXM2-16GB (the documents' card), and "0" is none. A name that ends in ".toml" is a file: "2xmy.toml".

    Raises:
        UnknownGpuError: a name is not in the catalogue.
        FileFormatError: a file does not describe a GPU.
        UsageError: the text is not of that form.
    """
    parts = [part.strip() for part in spec.split(",")]
    if parts == ["0"]:
        return ()
    gpus = tuple(gpu for part in parts for gpu in _part(part, spec))
    if len(gpus) > MOST_GPUS:
        raise UsageError(
            f"{spec!r} asks for more than {MOST_GPUS} GPUs, the most that one process emulates: ask for fewer"
        )
    return gpus


def absolute(spec: str) -> str:
    """The same spec with the paths of files from the root on, for processes that work in another folder."""
    return ",".join(_COUNTED.sub(lambda found: found[1] + os.path.abspath(found[2]), part) for part in spec.split(","))


_COUNTED = re.compile(r"^\s*((?:\d+\s*[xX*]\s*)?)(\S.*\.toml)", re.IGNORECASE)


def _part(part: str, spec: str) -> tuple[Gpu, ...]:
    if match := re.fullmatch(r"(\d+)\s*[xX*]\s*(.*)", part):
        count, name = match[1], match[2]
    elif match := re.fullmatch(r"(.*\S)\s*:\s*(\d+)", part):
        count, name = match[2], match[1]
    elif part.isascii() and part.isdigit() and _plain(part) not in _aliases():
        count, name = part, DEFAULT
    else:
        count, name = "1", part
    named = re.search("[a-zA-Z]", name) or _plain(name) in _aliases()
    if not named or len(count) > 6 or not int(count):
        raise UsageError(f"{spec!r} is not a list of GPUs: write 2xV100, V100:2, V100,A100 or a bare number such as 2")
    return (find(name),) * min(int(count), MOST_GPUS + 1)
