"""Files that anybody may have written: read within bounds of size, memory, time and type, or refused in a sentence.

Every format that windtunnel reads from outside goes through here. A pickle is first unpickled in a process of its own,
whose memory and time are limited and which admits no classes and no functions; only one that came through is read here.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import psutil

from windtunnel.errors import FileFormatError, UsageError
from windtunnel.foreign import weigh_pickle

MIB = 1 << 20
MOST_BYTES = 4 << 30
"""Largest size of a file after unpacking, bytes."""
EXPANSION = 200
"""How many bytes one packed byte may unpack to; rows of traces unpack to 10 to 30."""
ROOM_BYTES = 16 * MIB
"""What any packed file may unpack to, bytes."""
UNPACKING = 3
"""How many times its size a file takes of memory while it is unpacked and becomes text."""
SMALL_CHARACTERS = 32 * MIB
"""JSON of fewer is read whatever the machine has free."""
JSON_BYTES = {"{": 400, "[": 130, ",": 130}
"""About what objects, lists and values of JSON take of memory while they are read and copied once: an event of
torch.profiler took 2.7 kB in CPython 3.11, and takes 2.9 kB by this."""
DEPTH = 200
"""How deeply lists and dictionaries may be nested."""
PICKLE_SECONDS = 10
"""What checking a pickle may take, and one more a MiB."""
GZIP = b"\x1f\x8b"

OBEYED = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Characters that are not text: controls other than tab and newline, changes of direction, lone surrogates."""

UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors raised by code that walks plain data of an unexpected shape."""

T = TypeVar("T")


def refuse_program(path: str | Path) -> None:
    """Refuse a Python program where something recorded is to be read.

    Raises:
        FileFormatError: its name says that it is one.
    """
    if Path(path).suffix == ".py":
        raise FileFormatError(f"{path} is a Python program: `windtunnel run {path}` runs it and reports")


def read_bytes(path: str | Path, first: int = -1) -> bytes:
    """The content of a regular file, or its `first` bytes.

    Raises:
        FileFormatError: it is no regular file (a pipe or a device could be read without end), or too large.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        return file.read(first)


def opened(path: str | Path) -> BinaryIO:
    """A regular file, to be read; raises what `read_bytes` does."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with ExitStack() as stack:
        file = stack.enter_context(open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"))
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise FileFormatError(f"{path} is a pipe or a device: give a file")
        if found.st_size > MOST_BYTES:
            raise FileFormatError(
                f"{path} holds {found.st_size:,} bytes, and {MOST_BYTES:,} are the most that can be read"
            )
        stack.pop_all()
        return file


def beginning(data: bytes, path: str | Path, size: int) -> bytes:
    """The first `size` bytes of gzipped data, fewer where it holds fewer.

    Raises:
        FileFormatError: the data is damaged.
    """
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, size)
    except zlib.error as error:
        raise FileFormatError(f"{path} is not a complete gzip file: {error}") from None


def unpacked(data: bytes, path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The content of gzipped data, `most` bytes; what is not gzipped comes back as it is.

    Raises:
        FileFormatError: the data is damaged, ends early, or grows beyond all that a file of that size should hold or
            this machine has free.
    """
    if data[:2] != GZIP:
        return data
    free = psutil.virtual_memory().available
    most = min(most, MOST_BYTES, ROOM_BYTES + EXPANSION * len(data))
    room = max(free // UNPACKING, ROOM_BYTES)
    parts: list[bytes] = []
    size, rest = 0, data
    while rest:  # gzip allows several members, one after the other
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            part = unpacker.decompress(rest, min(most, room) - size + 1)
        except zlib.error as error:
            raise FileFormatError(f"{path} is not a complete gzip file: {error}") from None
        parts.append(part)
        size += len(part)
        if size > most:
            raise FileFormatError(f"{path} would unpack to more than {most:,} bytes, so it is not read")
        if size > room:
            raise FileFormatError(f"{path} takes more memory to read than the {free / 2**30:,.1f} GiB that are free")
        if not unpacker.eof:
            raise FileFormatError(f"{path} is not a complete gzip file: it is truncated")
        rest = unpacker.unused_data.lstrip(b"\0")
    return b"".join(parts)


def from_json(data: bytes | str, path: str | Path, what: str = "JSON") -> Any:
    """JSON as Python's objects; `what` says in the error what the file should have been.

    Raises:
        FileFormatError: it is not JSON, is nested deeper than anything that windtunnel reads, or takes more memory
            than this machine has free.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    if len(text) > SMALL_CHARACTERS:
        needed = sum(text.count(mark) * size for mark, size in JSON_BYTES.items())
        if needed > (free := psutil.virtual_memory().available):
            raise FileFormatError(
                f"{path} takes about {needed / 2**30:,.0f} GiB of memory to read, and {free / 2**30:,.0f} GiB are free"
            )
    try:
        return json.loads(text)
    except RecursionError:
        raise FileFormatError(f"{path} is not {what}: it is nested too deeply") from None
    except ValueError as error:
        raise FileFormatError(f"{path} is not {what}: {error}") from None


def printable(value: object, path: str | Path, depth: int = DEPTH) -> Any:
    """Plain data whose texts hold nothing that a terminal would obey: such characters are written as escapes.

    Raises:
        FileFormatError: the data is nested deeper than anything that windtunnel reads.
    """
    if isinstance(value, str):
        return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    if depth == 0:
        raise FileFormatError(f"{path} is damaged: it is nested too deeply")
    if isinstance(value, list):
        return [printable(one, path, depth - 1) for one in value]
    if isinstance(value, dict):
        return {printable(key, path): printable(one, path, depth - 1) for key, one in value.items()}
    return value


def line(text: str) -> str:
    """A text as one line that holds nothing that a terminal would obey."""
    return str(printable(text, "")).replace("\n", "\\n")


def typed(value: object, kind: type[T], path: str | Path, wrong: str) -> T:
    """Plain data as `kind`, whose annotations say what it must hold; `wrong` is the verdict of data that does not.

    Raises:
        FileFormatError: something in it has another type or is missing; the sentence says where.
    """
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        raise FileFormatError(f"{path} {wrong}: it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise FileFormatError(f"{path} {wrong}: {_lower(str(error))}") from None


def from_toml(path: str | Path, name: str | None = None) -> dict[str, Any]:
    """The tables of a TOML file, which errors call `name`, or by its path.

    Raises:
        FileFormatError: it is not TOML.
        OSError: it cannot be read.
    """
    try:
        return tomllib.loads(read_bytes(path).decode())
    except RecursionError:
        raise FileFormatError(f"{name or path} is not TOML: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{name or path} is not TOML: {error}") from None


def facts(path: Path, subject: str, advice: str = "") -> Any:
    """The tables of a TOML file of facts, of a GPU, a host or a network; errors call it `subject` and add `advice`.

    Raises:
        FileFormatError: it is not TOML.
        UsageError: it cannot be read.
    """
    try:
        return printable(from_toml(path, path.name), path.name)
    except OSError as error:
        raise UsageError(f"{subject} cannot be read: {error.strerror}{advice}") from error


def from_pickle(data: bytes, path: str | Path) -> Any:
    """A memory snapshot: a pickle of plain data (numbers, texts, lists, tuples, dictionaries). Reading it runs nothing.

    Raises:
        FileFormatError: it is damaged, holds anything but plain data, or would take memory or time out of proportion.
    """
    seconds = PICKLE_SECONDS + len(data) // MIB
    limits = [str(512 * MIB + 60 * len(data)), str(seconds), str(DEPTH)]
    command = [sys.executable, "-I", "-S", str(Path(weigh_pickle.__file__)), *limits]
    checked = subprocess.run(command, input=data, capture_output=True, check=False, env={})
    if checked.returncode:
        wrong = "is not a pickle of plain data (it takes more memory or time than its size explains)"
        if checked.returncode == weigh_pickle.REFUSED:
            wrong = checked.stdout.decode("utf-8", "replace")
        raise FileFormatError(f"{path} {wrong}; torch.cuda.memory._dump_snapshot writes a memory snapshot")
    return weigh_pickle.PlainUnpickler(io.BytesIO(data)).load()


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
