"""What other processes can see of a running emulation: memory in use and errors, in a small file of the run folder.

The counters of each device's memory *are* the file (it is mapped), so keeping it up to date costs nothing, and an
emulated nvidia-smi that runs beside the program reads true numbers at any moment.
"""

from __future__ import annotations

import mmap
import os
from array import array
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.machine.memory.driver import DeviceMemory, Holder

OCCUPIED, RESERVED, XID, WORDS = 0, 1, 2, 3
SUFFIX = ".live"
ENDED = (b"Z", b"X")
"""What Linux says of a process that has ended, though nobody waited for it yet."""


class SharedMemory(DeviceMemory):
    """One device's memory, its two counters of bytes in use and its last Xid kept in `words`.

    What other processes hold of the device is read from their files in `folder`, if there is one.
    """

    __slots__ = ("__weakref__", "_index", "folder", "words")

    def __init__(
        self,
        words: memoryview[int],
        total_bytes: int,
        occupied_bytes: int = 0,
        device: int = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.words, self.folder, self._index = words, folder, device
        super().__init__(total_bytes, occupied_bytes, device)

    def others(self) -> list[Holder]:
        """The other processes of the run that hold memory of this GPU now, by number; those of its own node."""
        if self.folder is None:
            return []
        found = []
        for path in Path(self.folder).glob(f"*{SUFFIX}"):
            words = _words(path)
            at, node = self._index * WORDS, words.pop() if len(words) % WORDS else 0
            used = sum(words[at : at + XID])
            if used and node == _node() and path.stem != str(os.getpid()) and _lives(path.stem):
                found.append(Holder(int(path.stem), used))
        return sorted(found)

    @property
    def occupied_bytes(self) -> int:
        """Bytes used by the CUDA context and the like."""
        return self.words[OCCUPIED]

    @occupied_bytes.setter
    def occupied_bytes(self, value: int) -> None:
        self.words[OCCUPIED] = value

    @property
    def reserved_bytes(self) -> int:
        """Bytes got from the driver."""
        return self.words[RESERVED]

    @reserved_bytes.setter
    def reserved_bytes(self, value: int) -> None:
        self.words[RESERVED] = value

    @property
    def xid(self) -> int:
        """The last of NVIDIA's Xid errors."""
        return self.words[XID]

    @xid.setter
    def xid(self, value: int) -> None:
        self.words[XID] = value


class Process(NamedTuple):
    """A process of this run: `used_bytes` by device, the context included; 0 where it has no context."""

    pid: int
    name: str
    used_bytes: tuple[int, ...]


def counters(folder: str | os.PathLike[str], devices: int) -> list[memoryview[int]]:
    """The words of this process's file, one view a device; the file is made. Its last word is the process's node."""
    size = (max(1, devices) * WORDS + 1) * 8
    with open(Path(folder) / f"{os.getpid()}{SUFFIX}", "a+b") as file:
        file.truncate(size)
        words = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
    words[-1] = _node()
    return [words[index * WORDS : (index + 1) * WORDS] for index in range(devices)]


def processes(folder: str | os.PathLike[str]) -> list[Process]:
    """The processes that use a GPU of the run in `folder` at this moment, by number."""
    import psutil  # here, because the program's own Python may have none

    found = []
    for path in Path(folder).glob(f"*{SUFFIX}"):
        try:
            name = psutil.Process(int(path.stem)).cmdline()[0]
        except (
            psutil.NoSuchProcess,
            IndexError,
            ValueError,
        ):  # a process that has ended, though nobody waited for it yet
            continue
        words = _words(path)
        used = tuple(words[i + OCCUPIED] + words[i + RESERVED] for i in range(0, len(words) - XID, WORDS))
        if any(used):
            found.append(Process(int(path.stem), name, used))
    return sorted(found)


def errors(folder: str | os.PathLike[str]) -> dict[int, int]:
    """The last Xid error of each device that has had one in the run in `folder`, also of processes that have ended."""
    files = [_words(path) for path in sorted(Path(folder).glob(f"*{SUFFIX}"))]
    return {i // WORDS: words[i + XID] for words in files for i in range(0, len(words) - XID, WORDS) if words[i + XID]}


def _words(path: Path) -> array[int]:
    """A process's counters; none where the file is gone, or the program's own."""
    try:
        data = foreign.read_bytes(path)
    except (OSError, FileFormatError):
        return array("q")
    return array("q", data[: len(data) // 8 * 8])


def _node() -> int:
    """This process's node, as torchrun numbers them."""
    node = os.environ.get("GROUP_RANK", "")
    return int(node) if node.isdecimal() else 0


def _lives(pid: str) -> bool:
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in ENDED
    except FileNotFoundError:
        return not os.path.isdir("/proc/self") and _answers(pid)


def _answers(pid: str) -> bool:
    """Whether a process is there to get a signal, where there is no /proc."""
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError):
        return False
    return True


def device_memory(index: int, devices: int, total_bytes: int, folder: str | None) -> DeviceMemory:
    """The memory of one of `devices` GPUs: readable from outside when there is a run folder to put the file in."""
    if not folder or not os.path.isdir(folder):
        return DeviceMemory(total_bytes, 0, index)
    made = SharedMemory(counters(folder, devices)[index], total_bytes, 0, index, folder)
    if not _FOLDER:
        os.register_at_fork(after_in_child=_forked)
    _MAPPED[made] = index
    _FOLDER[:] = [(folder, devices)]
    return made


_MAPPED: WeakKeyDictionary[SharedMemory, int] = WeakKeyDictionary()
"""The memory of this process's devices, with their numbers."""
_FOLDER: list[tuple[str, int]] = []


def _forked() -> None:
    """A forked process shares its parent's mapping, but neither its context nor its memory on a device.

    Where the parent has used a device already, CUDA cannot be used in the child: what it counts there is nobody's.
    """
    used = any(memory.occupied_bytes or memory.reserved_bytes for memory in _MAPPED)
    own = None if used or not os.path.isdir(_FOLDER[0][0]) else counters(*_FOLDER[0])
    for memory, index in _MAPPED.items():
        memory.words = memoryview(array("q", memory.words)) if own is None else own[index]
