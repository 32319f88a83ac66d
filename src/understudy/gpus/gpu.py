"""The catalogue of GPUs: facts with their sources, one `.toml` file a model in this folder.

Adding a GPU is adding a file. Facts that depend on the CUDA version as well (the size of a CUDA context, the driver
that ships with a toolkit) are in `tables/` and are read by `versions.py`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from understudy.errors import FileFormatError, UnknownGpuError, UsageError

FOLDER = Path(__file__).parent
DEFAULT = "V100-SXM2-16GB"
MOST_GPUS = 1024


@dataclass(frozen=True)
class Gpu:
    """One model of GPU. Sizes in bytes, bandwidths in bytes a second and one direction, peaks in operations a second.

    `name` is what torch and nvidia-smi print. `memory_bytes` is what `cudaMemGetInfo` and torch's `total_memory` say;
    `smi_memory_mib` is nvidia-smi's total, which counts the reserved part as well since driver 510. `peak_flops` has
    the keys fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8 and int8, where a missing key means "not supported";
    fp16, bf16 and fp8 are tensor-core rates from compute capability 7.0 on. `nvlink_bandwidth_bytes_per_s` is 0 without
    NVLink. `peer_access` says whether two of them may read one another's memory (`cudaDeviceCanAccessPeer`); where not,
    copies between them go through the host. `sustained_share` is what the card keeps under load of what the same chip
    does with more power, 1.0 where nothing else is published. `sources` says for each fact where it is from.
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
    sources: Mapping[str, str] = field(compare=False, repr=False)
    price_usd_per_hour: float | None = None
    sustained_share: float = 1.0
    peer_access: bool = True

    @property
    def has_tensor_cores(self) -> bool:
        """Whether matrix products of half precision run on tensor cores (compute capability 7.0 and later)."""
        return self.compute_capability >= (7, 0)

    def is_peer(self, other: Gpu) -> bool:
        """Whether one GPU of this model and one of the other may read one another's memory."""
        return self.peer_access and other.peer_access

    def smi_total_mib(self, driver: str) -> int:
        """The total that nvidia-smi shows in MiB under a driver such as "460.106.00"."""
        return self.smi_memory_mib_before_r510 if int(driver.split(".")[0]) < 510 else self.smi_memory_mib


_OPTIONAL = {"price_usd_per_hour", "sustained_share", "peer_access"}
_PAIRS = {"aliases", "compute_capability"}


@cache
def _read(path: Path) -> Gpu:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Gpu)}
    missing = known - _OPTIONAL - data.keys()
    unknown = data.keys() - known
    if missing or unknown:
        wrong = ", ".join(sorted(f"{name} is missing" for name in missing) + sorted(f"{n} is unknown" for n in unknown))
        raise FileFormatError(f"{path.name} does not describe a GPU: {wrong}; compare it with {DEFAULT}.toml")
    facts: dict[str, Any] = {name: tuple(value) if name in _PAIRS else value for name, value in data.items()}
    return Gpu(**facts)


@cache
def _files() -> dict[str, Path]:
    return {path.stem.lower(): path for path in sorted(FOLDER.glob("*.toml"))}


@cache
def _aliases() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _files().values():
        gpu = _read(path)
        for alias in (*gpu.aliases, gpu.name):
            found[_plain(alias)] = path
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip()).lower()


def names() -> list[str]:
    """The keys of all GPUs in the catalogue, sorted."""
    return sorted(path.stem for path in _files().values())


def find(name: str) -> Gpu:
    """The GPU of that key, alias or full name; upper and lower case are the same, and so are space, `_` and `-`.

    "V100" is the V100-SXM2-16GB, "A100" the A100-SXM4-40GB, "H100" the H100-SXM5-80GB: of each family the first
    model with NVLink. `understudy gpus` lists all of them.

    Raises:
        UnknownGpuError: there is no such GPU; the text names the nearest ones.
    """
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
    return f"no GPU is called {name!r}: {hint}`understudy gpus` lists all {len(_files())} models"


def parse(spec: str) -> tuple[Gpu, ...]:
    """The GPUs that a `--gpus` value asks for, in order.

    "2xV100" and "V100:2" are two V100, "V100,A100" one of each, "2xV100,A100" three; a bare "2" is two
    V100-SXM2-16GB (the documents' card), and "0" is none.

    Raises:
        UnknownGpuError: a name is not in the catalogue.
        UsageError: the text is not of that form.
    """
    parts = [part.strip() for part in spec.split(",")]
    if parts == ["0"]:
        return ()
    gpus = tuple(gpu for part in parts for gpu in _part(part, spec))
    if len(gpus) > MOST_GPUS:
        raise UsageError(
            f"{spec!r} asks for {len(gpus)} GPUs, and one process emulates at most {MOST_GPUS}: ask for fewer"
        )
    return gpus


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
        raise UsageError(f"{spec!r} is no list of GPUs: write 2xV100, V100:2, V100,A100 or a bare number such as 2")
    return (find(name),) * min(int(count), MOST_GPUS + 1)
