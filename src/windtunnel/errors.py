"""Every exception that windtunnel raises on its own behalf.

Errors that a framework would raise on real hardware are the framework's own classes and are not here.

    WindtunnelError
    ├── UsageError            the caller asked for something that cannot be: say what, why, what to do
    │   ├── UnknownGpuError   no GPU of that name in the catalogue
    │   ├── InstallError      the emulation cannot start here (too late, nested wrongly, real GPUs in use)
    │   │   └── MissingPackageError  a package is not installed; the text has the pip line
    │   ├── FileFormatError   a trace, snapshot or settings file that is not what it should be
    │   └── EmulationEndedError  what lived on an emulated GPU is used after the emulation's end
    ├── UnsupportedError      the program met something that the emulation must refuse
    │   ├── MissingNameError  a name that a library has and the stand-in for it has not
    │   └── HostMemoryError   this machine's memory cannot hold the values of the emulated tensors
    └── InternalError         a bug in windtunnel; the text says how to report it
"""

from __future__ import annotations

FORMER_NAME = "understudy"
"""What windtunnel was called until 0.1.0: its traces, caches and settings are refused by `renamed`."""
ON_WINDOWS = "Windows itself is not supported: install windtunnel in WSL (`wsl --install`), where it runs as on Linux"


def renamed(what: str, instead: str) -> str:
    """The sentence that refuses what belongs to the former name, and says what to do instead."""
    return f"{what} belongs to {FORMER_NAME}, which is called windtunnel now: {instead}"


class WindtunnelError(Exception):
    """Base of every error that windtunnel raises."""


class UsageError(WindtunnelError):
    """The request cannot be carried out as it stands; the text says what to change."""


class UnknownGpuError(UsageError):
    """No GPU of that name is in the catalogue."""


class InstallError(UsageError):
    """The emulation cannot be installed in this process."""


class MissingPackageError(InstallError, ModuleNotFoundError):
    """A required package is not installed. It is an ImportError too, for programs that can go on without it."""


def torch_is_missing() -> MissingPackageError:
    """The error to raise when PyTorch is needed but not installed."""
    return MissingPackageError("PyTorch is not installed: pip install 'windtunnel[torch]'", name="torch")


class FileFormatError(UsageError):
    """A file is not in the format that its name or the command promises."""


class EmulationEndedError(UsageError, RuntimeError):
    """A tensor that lived on an emulated GPU is used after `windtunnel.stop()`."""


class UnsupportedError(WindtunnelError):
    """The program met something that the emulation cannot do and must not pretend to do."""


class MissingNameError(UnsupportedError, AttributeError):
    """A stand-in for a library that is not installed has no such name. `hasattr` says so too."""


class HostMemoryError(UnsupportedError, MemoryError):
    """The values of emulated tensors would take more memory than this machine, or `host_memory_limit`, has for them.

    It is neither a `torch.OutOfMemoryError` nor a RuntimeError, so that a program which answers those with a smaller
    batch does not mistake it for the GPU's.
    """


class InternalError(WindtunnelError):
    """windtunnel broke one of its own rules: please report it with the trace."""
