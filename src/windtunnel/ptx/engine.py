"""LLVM: machine code from IR, and the runtime's C files compiled once on this machine. Both are cached as object
files."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from windtunnel.compiler.clang import MISSING, CompileError, required
from windtunnel.errors import MissingPackageError, UsageError
from windtunnel.folders import private_folder, user_cache

RUNTIME = Path(__file__).parent / "runtime"
FILES = ("schedule", "checks", "shadows", "counts", "atomics", "numbers", "functions")
FLAGS = [
    "-O3",
    "-mprefer-vector-width=512",  # a warp's cells in two vectors, where the processor has such
    "-ffreestanding",
    "-fPIC",
    "-fno-math-errno",
    "-fno-builtin-memcpy",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-w",
    "-c",
]


@functools.cache
def binding() -> ModuleType:
    try:
        llvm = importlib.import_module("llvmlite.binding")
    except ImportError as error:
        raise MissingPackageError(
            f"CUDA kernels are run by llvmlite, which is not installed: {MISSING}", name="llvmlite"
        ) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def cache_folder(given: Path | None) -> Path:
    name = str(given) if given is not None else user_cache("kernels")
    return Path(private_folder(name)) if name else Path(tempfile.mkdtemp(prefix="windtunnel-kernels-"))


@functools.cache
def _machine(level: int) -> object:
    llvm = binding()
    # 32 lanes of 32 bits fill whole registers of any width.
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(opt=level, cpu=llvm.get_host_cpu_name(), features=features)


def _host() -> str:
    llvm = binding()
    return (
        f"{llvm.llvm_version_info} {llvm.get_default_triple()} {llvm.get_host_cpu_name()} "
        f"{llvm.get_host_cpu_features().flatten()}"
    )


def _kept(folder: Path, key: str, make: object) -> bytes:
    """The object file of that key, from the cache or made now."""
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.o"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pass
    made: bytes = make()  # type: ignore[operator]
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(made)
    os.replace(file.name, path)
    return made


_engines: dict[Path, object] = {}
_making = threading.RLock()


def runtime(folder: Path) -> object:
    """An engine with the runtime's functions: one for all threads, since its end takes their code away."""
    with _making:
        if folder not in _engines:
            _engines[folder] = _runtime(folder)
        return _engines[folder]


def _runtime(folder: Path) -> object:
    llvm = binding()
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
    )
    header = (RUNTIME / "runtime.h").read_text()
    for name in FILES:
        text = (RUNTIME / f"{name}.c").read_text()
        data = _kept(folder, "\0".join((_host(), header, text, *FLAGS)), functools.partial(_compile_c, name))
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    engine.run_static_constructors()
    return engine


def _compile_c(name: str) -> bytes:
    clang = required()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.o"
        options = ["-x", "c", "-march=native", *FLAGS]
        if clang.headers:  # ziglang's knows a system of its own
            options += [f"--target={binding().get_default_triple()}", "-nostdinc", "-isystem", clang.headers]
        try:
            clang.run(*options, RUNTIME / f"{name}.c", "-o", out)
        except CompileError as error:
            raise UsageError(f"clang could not compile windtunnel's own {name}.c: {str(error)[-400:]}") from error
        return out.read_bytes()


@functools.cache
def runtime_address(folder: Path, name: str) -> int:
    return int(runtime(folder).get_function_address(name))  # type: ignore[attr-defined]


class Code:
    """Compiled functions, by address."""

    def __init__(self, text: str, needs: Iterable[str], folder: Path, level: int) -> None:
        llvm = binding()
        for name in needs:
            address = runtime_address(folder, name)
            if not address:
                raise AssertionError(f"the runtime has no {name}")
            llvm.add_symbol(name, address)
        data = _kept(folder, f"{_host()}\0{level}\0{text}", functools.partial(self._object, text, level))
        self.engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
        )
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self.engine.finalize_object()
        self._addresses: dict[str, int] = {}

    @staticmethod
    def _object(text: str, level: int) -> bytes:
        llvm = binding()
        module = llvm.parse_assembly(text)
        machine = _machine(level)
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        made: bytes = machine.emit_object(module)  # type: ignore[attr-defined]
        return made

    def address(self, name: str) -> int:
        if name not in self._addresses:
            self._addresses[name] = int(self.engine.get_function_address(name))
        return self._addresses[name]
