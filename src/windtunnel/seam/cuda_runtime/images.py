"""Modules, libraries and kernels of the driver's interface, and its linker, whose output is PTX."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.addresses import Allocation
from windtunnel.seam.cuda_runtime.binaries import MAGIC, ptx_at
from windtunnel.seam.cuda_runtime.memory import put, word
from windtunnel.seam.cuda_runtime.modules import Binary, KernelFunction, Modules
from windtunnel.seam.cuda_runtime.process import Process

BASE = 0x5584_0000_0000
HANDLES = itertools.count(BASE, 16)
"""No two emulations of a process have the same: a library keeps what it knows of one."""
WRAPPER = 0x466243B1
PTX_INPUT = 1
HEADER = re.compile(r"^\s*\.(version|target|address_size)\b[^\n]*\n", re.MULTILINE)
EXTERN = re.compile(r"^\.extern \.(?:func|global)[^;]*;\n?", re.MULTILINE | re.DOTALL)
DEFINED = re.compile(r"^(?:\.visible |\.weak )*\.(?:func|entry|global)[^;{]*?([\w$]+)\s*(?:\(|=|;|\[)", re.MULTILINE)


@dataclass
class Linked:
    """What a linker has been given."""

    texts: list[str] = field(default_factory=list)
    made: ctypes.Array[ctypes.c_char] | None = None


class ImageCalls:
    """cuModule..., cuLibrary..., cuKernel... and cuLink..."""

    def __init__(self, process: Process, modules: Modules) -> None:
        self.process = process
        self.modules = modules
        self.loaded: dict[int, Binary] = {}
        self.handles: dict[tuple[int, str], int] = {}
        self.linkers: dict[int, Linked] = {}
        self._names: dict[int, ctypes.Array[ctypes.c_char]] = {}

    # ------------------------------------------------------------------ modules

    def load(self, out: int, image: int, *_: int) -> int:
        """Load PTX, or a binary with PTX in it."""
        self.process.begin()
        handle = next(HANDLES)
        self.loaded[handle] = self._binary(text_at(image))
        put(out, handle)
        return errors.SUCCESS

    def load_file(self, out: int, path: int) -> int:
        """The same of a file."""
        file = Path(ctypes.string_at(path).decode())
        if not file.is_file():
            return errors.FILE_NOT_FOUND
        self.process.begin()
        data = ctypes.create_string_buffer(file.read_bytes())
        handle = next(HANDLES)
        self.loaded[handle] = self._binary(text_at(ctypes.addressof(data), str(file)))
        put(out, handle)
        return errors.SUCCESS

    def _binary(self, text: str) -> Binary:
        return Binary.of(text, "a module", self.modules.cache())

    def unload(self, handle: int) -> int:
        """Forget a module; its kernels' handles are of no use any more."""
        if self.loaded.pop(handle, None) is None:
            return errors.INVALID_HANDLE
        for key in [key for key in self.handles if key[0] == handle]:
            self.modules.functions.pop(self.handles.pop(key), None)
        return errors.SUCCESS

    def same(self, out: int, handle: int) -> int:
        """A library's module, or a kernel's function: here they are one."""
        put(out, handle)
        return errors.SUCCESS

    def function(self, out: int, handle: int, name: int) -> int:
        """The handle of a kernel."""
        binary = self.loaded.get(handle)
        if binary is None:
            return errors.INVALID_HANDLE
        text = ctypes.string_at(name).decode()
        if text not in binary.module.kernels:
            return errors.NOT_FOUND
        put(out, self._handle(handle, binary, text))
        return errors.SUCCESS

    def _handle(self, module: int, binary: Binary, name: str) -> int:
        found = self.handles.get((module, name))
        if found is None:
            found = self.handles[module, name] = next(HANDLES)
            self.modules.functions[found] = KernelFunction(binary, name)
        return found

    def count(self, out: int, handle: int) -> int:
        """How many kernels a library has."""
        binary = self.loaded.get(handle)
        if binary is None:
            return errors.INVALID_HANDLE
        put(out, len(binary.module.kernels), 4)
        return errors.SUCCESS

    def enumerate(self, out: int, most: int, handle: int) -> int:
        """Their handles."""
        binary = self.loaded.get(handle)
        if binary is None:
            return errors.INVALID_HANDLE
        for at, name in enumerate(list(binary.module.kernels)[:most]):
            put(out + 8 * at, self._handle(handle, binary, name))
        return errors.SUCCESS

    def name(self, out: int, handle: int) -> int:
        """A kernel's name."""
        known = self.modules.functions.get(handle)
        if known is None:
            return errors.INVALID_HANDLE
        kept = self._names.setdefault(handle, ctypes.create_string_buffer(known.name.encode()))
        put(out, ctypes.addressof(kept))
        return errors.SUCCESS

    def parameter(self, handle: int, index: int, offset: int, size: int) -> int:
        """Where one of a kernel's parameters lies."""
        known = self.modules.functions.get(handle)
        if known is None:
            return errors.INVALID_HANDLE
        if index >= len(known.kernel.parameters):
            return errors.INVALID_VALUE
        found = known.kernel.parameters[index]
        put(offset, found.offset)
        if size:
            put(size, found.size)
        return errors.SUCCESS

    def variable(self, address: int, size: int, handle: int, name: int) -> int:
        """Where a variable of a module lies, and how large it is."""
        binary = self.loaded.get(handle)
        if binary is None:
            return errors.INVALID_HANDLE
        found = binary.module.variables.get(ctypes.string_at(name).decode())
        if found is None:
            return errors.NOT_FOUND
        if self.process.addresses.allocation(found.address) is None:
            made = Allocation(found.address, found.size, found.name, device=self.process.device())
            self.process.addresses.add(made)
        if address:
            put(address, found.address)
        if size:
            put(size, found.size)
        return errors.SUCCESS

    # ------------------------------------------------------------------ the linker

    def link(self, count: int, options: int, values: int, out: int) -> int:
        """Begin to link."""
        handle = next(HANDLES)
        self.linkers[handle] = Linked()
        put(out, handle)
        return errors.SUCCESS

    def add(self, state: int, kind: int, data: int, size: int, name: int, *_: int) -> int:
        """One input more."""
        linked = self.linkers.get(state)
        if linked is None:
            return errors.INVALID_HANDLE
        if kind == PTX_INPUT:
            linked.texts.append(ctypes.string_at(data, size).split(b"\0")[0].decode())
        else:
            linked.texts.append(text_at(data))
        return errors.SUCCESS

    def add_file(self, state: int, kind: int, path: int, *_: int) -> int:
        """One input more, in a file."""
        file = Path(ctypes.string_at(path).decode())
        if not file.is_file():
            return errors.FILE_NOT_FOUND
        data = file.read_bytes()
        kept = ctypes.create_string_buffer(data)
        return self.add(state, kind, ctypes.addressof(kept), len(data), 0)

    def complete(self, state: int, out: int, size: int) -> int:
        """What it makes of them."""
        linked = self.linkers.get(state)
        if linked is None:
            return errors.INVALID_HANDLE
        linked.made = ctypes.create_string_buffer(joined(linked.texts).encode())
        put(out, ctypes.addressof(linked.made))
        if size:
            put(size, len(linked.made))
        return errors.SUCCESS

    def end_link(self, state: int) -> int:
        """Its output is gone with it."""
        return errors.SUCCESS if self.linkers.pop(state, None) else errors.INVALID_HANDLE


def text_at(image: int, source: str = "a module") -> str:
    """The PTX of an image: its text, or that in a fat binary.

    Raises:
        UnsupportedError: the image has machine code of a GPU alone.
    """
    first = word(image, 4)
    if first == WRAPPER:  # magic, version, then where the binary is
        image = word(image + 8)
        first = MAGIC
    if first == MAGIC:
        return ptx_at(image, source)
    if ctypes.string_at(image, 4) == b"\x7fELF":
        raise UnsupportedError(
            f"{source} is machine code of a GPU (a cubin), which an emulated GPU cannot run: load its PTX instead"
        )
    return ctypes.string_at(image).decode("utf-8", "replace")


def joined(texts: list[str]) -> str:
    """PTX of several modules as one: what one of them has the others need not declare."""
    if len(texts) == 1:
        return texts[0]
    header = "".join(found.group(0) for found in HEADER.finditer(texts[0]))
    bodies = [HEADER.sub("", text) for text in texts]
    defined = {name for body in bodies for name in DEFINED.findall(EXTERN.sub("", body))}

    def declared(found: re.Match[str]) -> str:
        return "" if any(name in defined for name in re.findall(r"[\w$]+", found.group(0))) else found.group(0)

    return header + "\n".join(EXTERN.sub(declared, body) for body in bodies)
