"""The options that describe an emulation, the same for every command that has one."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from windtunnel import described, faults, gpus, hosts, libraries, networks
from windtunnel.cost import measured
from windtunnel.errors import UsageError
from windtunnel.gpus import versions
from windtunnel.seam.host_memory import parse_size
from windtunnel.settings import variable
from windtunnel.trace.plain import Json

F = TypeVar("F", bound=Callable[..., object])
CLOCKS = ("virtual", "real")
LANDINGS = ("late", "clock", "stale")
HOST_TIMES = ("modelled", "measured")
COMPATIBLE = ("d2l",)
CHECKED_KERNELS = ("all", "sample", "none")
CUDA_COMPILERS = ("clang", "nvcc")


def _without(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return libraries.require(value)


def _kernels(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return described.require(value)


def _gpus(context: click.Context, parameter: click.Parameter, value: object) -> str | None:
    if value is None:
        return None
    gpus.parse(str(value))
    return gpus.absolute(str(value))


def _cuda_version(context: click.Context, parameter: click.Parameter, value: object) -> str | None:
    if value is None:
        return None
    versions.parse_version(str(value))
    return str(value)


def _curves(context: click.Context, parameter: click.Parameter, value: object) -> str | None:
    if value is None:
        return None
    path = os.path.abspath(str(value))
    try:
        measured.load(path)
    except OSError as error:
        raise UsageError(f"{value} cannot be read: {error.strerror}") from error
    return path


def _host(context: click.Context, parameter: click.Parameter, value: object) -> str | None:
    if value is None:
        return None
    found = hosts.find(str(value))
    return found.name if found.name in hosts.names() else os.path.abspath(str(value))


def _network(context: click.Context, parameter: click.Parameter, value: object) -> str | None:
    if value is None:
        return None
    (name,) = networks.parse(str(value)) if "," not in str(value) else (str(value),)
    networks.find(name, "")
    return name


def _factor(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"--host-factor cannot be {value:g}: it must be a positive number")
    return value


def _seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise UsageError(f"--stuck-after cannot be {value:g}: it must be a positive number of seconds, or inf")
    return value


def _faults(context: click.Context, parameter: click.Parameter, value: object) -> tuple[str, ...]:
    texts = tuple(faults.described(one) if isinstance(one, dict) else str(one) for one in _several(value))
    faults.parse(texts)
    return texts


def _several(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else () if value is None else (value,)


def _literal(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """A number or a truth as Python writes it; also `nan` and `inf`."""
    if value is None:
        return None
    try:
        found = (
            float(value) if value.strip().lstrip("+-").lower() in ("nan", "inf") else ast.literal_eval(value.strip())
        )
    except (SyntaxError, ValueError):
        found = None
    if not isinstance(found, (bool, int, float)):
        raise UsageError(
            f"--assume cannot be {value}: it must be a number or a Python Boolean: 0, 1e-3, True, False, nan"
        )
    return found


def _size(context: click.Context, parameter: click.Parameter, value: object) -> int | None:
    return None if value is None else parse_size(str(value))


def _choice(name: str, values: tuple[str, ...], help: str) -> Callable[[F], F]:
    return click.option(f"--{name}", type=click.Choice(values), envvar=variable(name), help=help)


def _gpus_option(default: str) -> Callable[[F], F]:
    what = "GPUs to emulate: 2xV100, V100:2, V100,A100 or a bare number (of V100-SXM2-16GB); 0 for none."
    return click.option(
        "--gpus",
        metavar="SPEC",
        envvar="WINDTUNNEL_GPUS",
        callback=_gpus,
        help=f"{what}  [default: {default}]",
    )


gpus_option = _gpus_option("2")
experiment_gpus_option = _gpus_option("this machine's own")
cuda_version_option = click.option(
    "--cuda-version",
    metavar="X.Y",
    envvar="WINDTUNNEL_CUDA_VERSION",
    callback=_cuda_version,
    help="CUDA version of the driver and the program.  [default: what the installed PyTorch and the GPUs need]",
)
seed_option = click.option(
    "--seed",
    type=int,
    metavar="N",
    envvar="WINDTUNNEL_SEED",
    help="Random seed of Python, NumPy and the framework.  [default: none is set]",
)
assume_option = click.option(
    "--assume",
    metavar="VALUE",
    envvar="WINDTUNNEL_ASSUME",
    callback=_literal,
    help="With --no-data: what the program gets where it reads a value (`.item()`, a condition): 0, 1e-3, False.",
)
curves_option = click.option(
    "--curves",
    metavar="FILE",
    envvar="WINDTUNNEL_CURVES",
    callback=_curves,
    help="Take times from what `windtunnel calibrate` measured, for GPUs of that generation.",
)
host_option = click.option(
    "--host",
    metavar="NAME|FILE",
    envvar="WINDTUNNEL_HOST",
    callback=_host,
    help=f"The host that issues the work: {', '.join(hosts.names())}, or a file of `windtunnel calibrate --host`."
    f"  [default: {hosts.DEFAULT}]",
)
network_option = click.option(
    "--network",
    metavar="NAME|FILE",
    envvar="WINDTUNNEL_NETWORK",
    callback=_network,
    help="What connects several nodes: p5, a3-mega, dgx-h100, roce-400, ethernet-25, ..., a .toml file, or a file with "
    "what nccl-tests printed.  [default: what systems of such GPUs usually have]",
)
jitter_option = click.option(
    "--jitter",
    type=int,
    metavar="SEED",
    envvar="WINDTUNNEL_JITTER",
    help="Let GPUs of one model differ as those of a cluster do, drawn by this seed; each step waits for the slowest.",
)
kernels_option = click.option(
    "--kernels",
    metavar="FILE",
    multiple=True,
    envvar="WINDTUNNEL_KERNELS",
    callback=_kernels,
    help="Run this Python file first, which describes a library's operators (windtunnel.kernel); may be given "
    "several times.",
)

verbose_option = click.option("-v", "--verbose", is_flag=True, help="The whole report, not 15 lines of it.")

EMULATION = (
    gpus_option,
    cuda_version_option,
    seed_option,
    _choice("clock", CLOCKS, "What time.time() and the like tell the program: the GPU's modelled time, or real time."),
    _choice(
        "async",
        LANDINGS,
        "When a non_blocking copy lands: as late as CUDA allows, or by the modelled clock; stale: as late, and streams "
        "that forgot to wait read old values.",
    ),
    _choice("host-time", HOST_TIMES, "Where the host's time between operations comes from."),
    click.option(
        "--host-factor",
        type=float,
        metavar="FACTOR",
        envvar="WINDTUNNEL_HOST_FACTOR",
        callback=_factor,
        help="With --host-time measured: multiply what was measured on this machine, 0.5 for a host twice as fast."
        "  [default: 1]",
    ),
    click.option(
        "--no-data",
        is_flag=True,
        envvar="WINDTUNNEL_NO_DATA",
        help="Shapes, time and memory only: no values are computed, so that any model fits on this machine.",
    ),
    assume_option,
    click.option(
        "--share-gpus",
        is_flag=True,
        envvar="WINDTUNNEL_SHARE_GPUS",
        help='Let several ranks work on one GPU, which NCCL refuses ("Duplicate GPU detected").',
    ),
    click.option("--stacks", is_flag=True, envvar="WINDTUNNEL_STACKS", help="Keep whole stacks, not only lines."),
    click.option(
        "--memory-history",
        is_flag=True,
        envvar="WINDTUNNEL_MEMORY_HISTORY",
        help="Keep every allocation with its line: what held memory at the peak. Snapshots and HTML reports do so too.",
    ),
    curves_option,
    host_option,
    network_option,
    jitter_option,
    click.option(
        "--host-memory-limit",
        metavar="SIZE",
        envvar="WINDTUNNEL_HOST_MEMORY_LIMIT",
        callback=_size,
        help="How much of this machine's memory emulated tensors may take in each process: 8GiB, 500MB or bytes."
        "  [default: what the machine can give]",
    ),
    click.option(
        "--overcommit",
        is_flag=True,
        envvar="WINDTUNNEL_OVERCOMMIT",
        help="Serve requests for memory beyond what the GPUs have, to see how much a program needs that does not fit.",
    ),
    click.option(
        "--stop-after",
        type=click.IntRange(min=1),
        metavar="STEPS",
        envvar="WINDTUNNEL_STOP_AFTER",
        help="End each process at once after so many steps of its optimizers, with exit code 0.",
    ),
    click.option(
        "--stuck-after",
        type=float,
        metavar="SECONDS",
        envvar="WINDTUNNEL_STUCK_AFTER",
        callback=_seconds,
        help="How long a rank may give its devices no work while others wait for it, before the run ends with a "
        "finding; inf: for ever.  [default: 60]",
    ),
    click.option(
        "--fault",
        metavar="NAME[:WHERE,...]",
        multiple=True,
        envvar="WINDTUNNEL_FAULT",
        callback=_faults,
        help="Inject a fault: oom, die, hang, slow, xid, nan, bit-flip, disk-full, "
        "data-worker-dies or slow-data, as die:rank=1,step=3; may be given several times.",
    ),
    click.option(
        "--without",
        metavar="LIBRARY",
        multiple=True,
        envvar="WINDTUNNEL_WITHOUT",
        callback=_without,
        help="Offer no stand-in for this library, such as d2l, where it is not installed; may be given several times.",
    ),
    kernels_option,
    _choice(
        "check-kernels",
        CHECKED_KERNELS,
        "Which launches of the program's own CUDA kernels are checked: all, none, or the first ones of each shape and "
        "a sample of later ones.  [default: sample]",
    ),
    _choice(
        "cuda-compiler",
        CUDA_COMPILERS,
        "What makes PTX of the program's CUDA C++: clang, or your own nvcc (in CUDA_HOME or on the PATH).  "
        "[default: clang]",
    ),
    _choice("compat", COMPATIBLE, "Answer as frameworks did when that text was printed: JAX's `x.device()`."),
)

# The name that each option has in options.Options.
FIELDS = {
    "gpus": "gpus",
    "cuda_version": "cuda_version",
    "seed": "seed",
    "clock": "clock",
    "async": "async_copies",
    "host_time": "host_time",
    "host_factor": "host_factor",
    "no_data": "no_data",
    "assume": "assume",
    "share_gpus": "share_gpus",
    "stacks": "stacks",
    "memory_history": "memory_history",
    "check_kernels": "check_kernels",
    "cuda_compiler": "cuda_compiler",
    "compat": "compat",
    "curves": "curves",
    "host": "host",
    "network": "network",
    "jitter": "jitter",
    "host_memory_limit": "host_memory_limit",
    "overcommit": "overcommit",
    "stop_after": "stop_after",
    "stuck_after": "stuck_after",
    "fault": "faults",
    "without": "without",
    "kernels": "kernels",
}


def emulation_options(command: F) -> F:
    """Add all options that describe an emulation to a command."""
    for option in reversed(EMULATION):
        command = option(command)
    return command


def given(options: Json) -> dict[str, object]:
    """The fields of `options.Options` that the person set; the others keep their defaults."""
    return {
        field: options[name]
        for name, field in FIELDS.items()
        if options[name] is not None and options[name] != () and (options[name] is not False or name == "assume")
    }
