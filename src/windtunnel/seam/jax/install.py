"""The seam into JAX: n emulated GPUs as a second CPU client of the PJRT runtime, registered as backend `cuda`.

JAX itself places, checks and computes: arrays of an emulated GPU belong to a client of their own, so JAX's own errors
on mixed devices, its shardings and its meshes work as they are. What is replaced: the names that the client's devices
show, the C++ fast path of `jit` (so that every execution passes through Python), and the few functions that move values
between devices and the host. Checked on jax 0.10.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from windtunnel.errors import InstallError, UnsupportedError
from windtunnel.seam.buffer_slot import BufferSlot
from windtunnel.seam.jax import exchange
from windtunnel.seam.jax.gpu_compiler import CompileOptions, GpuCompiler, GpuProgram, installed
from windtunnel.seam.jax.program import JitProgram, collectives_of, program_of
from windtunnel.seam.jax.types import (
    Array,
    Aval,
    ClosedJaxpr,
    Device,
    ExecuteReplicated,
    LoweringContext,
    MeshExecutable,
    ResultHandler,
    Sharding,
)
from windtunnel.seam.patching import Patch, Patches, undone
from windtunnel.seam.recorder import Holding, Installed, OutOfMemory, Session, Work, WorkRecorder
from windtunnel.trace.operation import Signature

NO_PALLAS = "Only interpret mode is supported on CPU backend."
"""What JAX says of a Pallas kernel on a CPU (jax/_src/pallas/pallas_call.py)."""
PREALLOCATED = 0.75
"""Part of a GPU that XLA's allocator takes for itself unless told otherwise (docs.jax.dev, GPU memory allocation)."""

SKIP = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
CUDA_PLATFORM_VERSION = "PJRT C API\ncuda 12000"


def install(session: Session) -> Installed:
    """Give JAX the session's GPUs; returns what takes them away again.

    Call it after `import jax`. Raises InstallError when JAX already runs on real GPUs.
    """
    from jax._src import xla_bridge  # type: ignore[import-untyped, unused-ignore]

    started = xla_bridge.backends_are_initialized()
    if started and "cuda" in xla_bridge._backends:
        raise InstallError(
            "JAX has already started with GPUs of its own, which cannot be replaced; start the emulation before the "
            "first use of jax"
        )
    seam = _JaxSeam(session)
    patches = Patches()
    with undone(patches.restore):
        patches.apply(seam.patches())
        if started:
            patches.apply(_late(xla_bridge, seam.client()))
        seam.forget()

    def uninstall() -> None:
        patches.restore()
        if not started and xla_bridge.backends_are_initialized():
            xla_bridge._clear_backends()
        seam.forget()
        seam.recorder.close()

    return Installed(uninstall)


def _late(xla_bridge: ModuleType, client: object) -> list[Patch]:
    """JAX has started already, on CPUs: add the client to what it has."""
    return [
        Patch(xla_bridge, "_backends", {**xla_bridge._backends, "cuda": client}),
        Patch(xla_bridge, "_default_backend", client),
    ]


def _limit(memory_bytes: int) -> int:
    fraction = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", PREALLOCATED))
    platform = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() in {"platform", "cuda_async"}
    return memory_bytes if platform else int(memory_bytes * fraction)


class _JaxSeam:
    """What the replacements share: the recorder, the client and what is known of compiled programs."""

    def __init__(self, session: Session) -> None:
        self.recorder = WorkRecorder(session, _limit)
        self.old_api = getattr(getattr(session, "options", None), "compat", None) == "d2l"
        self.programs: weakref.WeakKeyDictionary[ExecuteReplicated, JitProgram] = weakref.WeakKeyDictionary()
        self.lowered: weakref.WeakKeyDictionary[object, JitProgram] = weakref.WeakKeyDictionary()
        self.collectives: weakref.WeakKeyDictionary[ExecuteReplicated, list[tuple[str, int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._client: object = None
        self.compiled: dict[int, tuple[object, GpuProgram]] = {}  # by identity of the CPU's executable, which is kept
        self._compiler: GpuCompiler | None = None
        version = installed() if len({device.gpu.key for device in self.recorder.devices}) == 1 else None
        self.has_compiler = version is not None
        says = (
            f"XLA's GPU compiler ({version})" if version else "windtunnel's rule of fusion, memory inside not counted"
        )
        self.recorder.machine.trace.facts.setdefault("versions", {})["jit of JAX by"] = says

    # ------------------------------------------------------------------ the client

    def client(self) -> object:
        """The CPU client that stands in for the GPUs, made when it is first needed."""
        from jax._src import distributed  # type: ignore[import-untyped, unused-ignore]
        from jax._src.lib import xla_client  # type: ignore[import-untyped, unused-ignore]

        if distributed.global_state.client is not None:
            raise UnsupportedError(
                "jax.distributed over emulated GPUs of several processes is not supported; "
                "use one process with several GPUs (jax.make_mesh, shard_map, pmap)"
            )
        if self._client is None:
            self._client = xla_client.make_cpu_client(asynchronous=True, num_devices=len(self.recorder.devices))
        return self._client

    def index(self, device: Device) -> int:
        """The GPU's index, or -1 for a CPU device."""
        return int(device.id) if self._client is not None and device.client is self._client else -1

    def places(self, array: object) -> list[int]:
        """The device index of each shard of an array; [-1] for a value of the host."""
        sharding = getattr(array, "_sharding", None)
        if sharding is None:
            return [-1]
        return [self.index(device) for device in sharding._device_assignment]

    def forget(self) -> None:
        """Empty what JAX remembers about backends and compiled functions."""
        import jax
        from jax._src import xla_bridge

        for cached in (xla_bridge.get_backend, xla_bridge.local_devices, xla_bridge.process_count):
            cached.cache_clear()
        jax.clear_caches()

    # ------------------------------------------------------------------ the table

    def patches(self) -> list[Patch]:
        """Everything that is replaced in jax and jaxlib."""
        from jax._src import array, compiler, dispatch, hardware_utils, pjit, xla_bridge
        from jax._src.interpreters import mlir, pxla
        from jax._src.lib import xla_client

        registration = xla_bridge.BackendRegistration(self.client, priority=500, fail_quietly=False)
        original_discovery = xla_bridge._discover_and_register_pjrt_plugins

        def discover() -> None:
            with _without_libraries():
                original_discovery()
            xla_bridge._backend_factories["cuda"] = registration

        calls = [
            Patch(xla_bridge, "_backend_factories", {**xla_bridge._backend_factories, "cuda": registration}),
            Patch(xla_bridge, "_discover_and_register_pjrt_plugins", discover),
            Patch(hardware_utils, "has_visible_nvidia_gpu", lambda: True),
            Patch(mlir.ModuleContext, "get_backend", self._backend(mlir.ModuleContext.get_backend)),
            Patch(pjit, "_get_fastpath_data", lambda *args, **kwargs: None),
            Patch(pjit, "_resolve_and_lower", self._lower(pjit._resolve_and_lower)),
            Patch(pxla.MeshExecutable, "create_cpp_call", lambda self, params: None),
            Patch(pxla.MeshComputation, "compile", self._compile(pxla.MeshComputation.compile)),
            Patch(compiler, "compile_or_get_cached", self._compile_for_gpu(compiler.compile_or_get_cached)),
            Patch(pxla.MeshExecutable, "as_text", self._answered("as_text", pxla.MeshExecutable)),
            Patch(pxla.MeshExecutable, "memory_analysis", self._answered("memory_analysis", pxla.MeshExecutable)),
            Patch(pxla.MeshExecutable, "cost_analysis", self._costed(pxla.MeshExecutable.cost_analysis)),
            Patch(pxla.ExecuteReplicated, "__call__", self._execute(pxla.ExecuteReplicated.__call__)),
            Patch(xla_client, "batched_device_put", self._put(xla_client.batched_device_put)),
            Patch(dispatch._DeferredShardArg, "result_handler", _keep(dispatch._DeferredShardArg.result_handler)),
            Patch(pxla, "batched_device_put", self._reuse(pxla.batched_device_put)),
            Patch(array.ArrayImpl, "_value", self._value(array.ArrayImpl._value)),
            Patch(array.ArrayImpl, "delete", self._delete(array.ArrayImpl.delete)),
            Patch(array.ArrayImpl, "block_until_ready", self._block(array.ArrayImpl.block_until_ready)),
            Patch(xla_client, "batched_block_until_ready", self._block_all(xla_client.batched_block_until_ready)),
            Patch(BufferSlot(array.ArrayImpl), "function", None),
        ]
        lent = exchange.patches(lambda array: self.places(array)[0], self.index)
        return [*calls, *self._device_names(), *lent]

    def _device_names(self) -> list[Patch]:
        from jaxlib import _jax  # type: ignore[import-untyped, unused-ignore]

        cls, client = _jax.Device, _jax.Client
        devices = self.recorder.devices

        def of(name: str, answer: Callable[[int], object], default: object = None) -> Patch:
            before = cls.__dict__.get(name)

            def read(device: Device) -> object:
                index = self.index(device)
                if index >= 0:
                    return answer(index)
                if before is None:
                    raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
                return before.__get__(device) if default is None else default

            return Patch(cls, name, property(read))

        def method(name: str, answer: Callable[[int], object]) -> Patch:
            before = cls.__dict__[name]

            def call(device: Device) -> object:
                index = self.index(device)
                return answer(index) if index >= 0 else before(device)

            return Patch(cls, name, call)

        shown = "gpu(id={})" if self.old_api else "CudaDevice(id={})"
        platform, version = client.__dict__["platform"], client.__dict__["platform_version"]
        table = [
            of("platform", lambda i: "gpu"),
            of("device_kind", lambda i: devices[i].gpu.name),
            of("compute_capability", lambda i: ".".join(map(str, devices[i].gpu.compute_capability))),
            of("core_count", lambda i: devices[i].gpu.sm_count),
            method("__repr__", shown.format),
            method("__str__", shown.format if self.old_api else "cuda:{}".format),
            method("memory_stats", self.memory_stats),
            Patch(client, "platform", property(lambda c: "gpu" if c is self._client else platform.__get__(c))),
            Patch(
                client,
                "platform_version",
                property(lambda c: CUDA_PLATFORM_VERSION if c is self._client else version.__get__(c)),
            ),
        ]
        if self.old_api:
            table.append(Patch(cls, "__call__", lambda device: device))
        return table

    def memory_stats(self, index: int) -> dict[str, int]:
        """What `Device.memory_stats()` shows on a GPU; bytes, with XLA's rounding to 256."""
        self.recorder.drain()
        pool = self.recorder.pools[index]
        return {
            "num_allocs": pool.allocations,
            "bytes_in_use": pool.used_bytes,
            "peak_bytes_in_use": pool.peak_bytes,
            "largest_alloc_size": pool.largest_bytes,
            "bytes_limit": pool.limit_bytes,
            "bytes_reserved": 0,
            "peak_bytes_reserved": 0,
            "largest_free_block_bytes": 0,
        }

    # ------------------------------------------------------------------ programs

    def _backend(self, original: Callable[..., object]) -> Callable[..., object]:
        def get_backend(context: LoweringContext, *args: object, **options: object) -> object:
            # Programs are lowered for the CPU that computes them, under a client that calls itself a GPU's.
            if self._client is not None and context.backend is self._client:
                return self._client
            return original(context, *args, **options)

        return get_backend

    def _lower(self, original: Callable[..., object]) -> Callable[..., object]:
        def resolve_and_lower(args: object, jaxpr: ClosedJaxpr, *rest: object, **options: object) -> object:
            try:
                computation = original(args, jaxpr, *rest, **options)
            except ValueError as error:
                if str(error) != NO_PALLAS:
                    raise
                raise UnsupportedError(
                    "a Pallas kernel is compiled for the GPU itself, and an emulated GPU has no processor to run it "
                    "on: give `pallas_call` interpret=True, write it with jax.numpy, or run this part on a real GPU"
                ) from error
            if computation not in self.lowered:
                self.lowered[computation] = program_of(jaxpr)
            return computation

        return resolve_and_lower

    def _compile(self, original: Callable[..., MeshExecutable]) -> Callable[..., object]:
        def compile(computation: object, *args: object, **options: object) -> object:
            executable = original(computation, *args, **options)
            program = self.lowered.get(computation)
            if program is not None:
                self.programs[executable.unsafe_call] = program
            return executable

        return compile

    def _compile_for_gpu(self, original: Callable[..., object]) -> Callable[..., object]:
        def compile_or_get_cached(
            backend: object, computation: object, devices: Sequence[Device], compile_options: CompileOptions,
            *rest: object, **named: object,
        ) -> object:  # fmt: skip
            executable = original(backend, computation, devices, compile_options, *rest, **named)
            if self.has_compiler and backend is self._client:
                made = self._for_gpu(computation, len(devices), compile_options)
                if made is not None:
                    self.compiled[id(executable)] = executable, made
            return executable

        return compile_or_get_cached

    def _for_gpu(self, computation: object, count: int, options: CompileOptions) -> GpuProgram | None:
        """A program as the GPU's compiler makes it; None where that refuses what was lowered for a CPU."""
        import jax

        if self._compiler is None:
            self._compiler = GpuCompiler(self.recorder.devices[0].gpu, len(self.recorder.devices))
        try:
            return self._compiler.compile(computation, count, options)
        except jax.errors.JaxRuntimeError as error:
            self.recorder.not_modelled("compiler", name=str(error).splitlines()[0][:200])
            return None

    def _of(self, executable: object) -> GpuProgram | None:
        known = self.compiled.get(id(executable))
        return None if known is None else known[1]

    def _answered(self, name: str, cls: type) -> Callable[..., object]:
        """What `Compiled.as_text()` and `memory_analysis()` say: the GPU's program, where there is one."""
        stock: Callable[..., object] = getattr(cls, name)

        def answer(executable: MeshExecutable) -> object:
            made = self._of(executable.xla_executable)
            return stock(executable if made is None else _Answering(made.executable))

        return answer

    def _costed(self, original: Callable[..., object]) -> Callable[..., object]:
        """What `Compiled.cost_analysis()` says: XLA's analysis of the GPU's program."""

        def cost_analysis(executable: MeshExecutable) -> object:
            from jax._src.lib import _jax  # type: ignore[import-untyped, unused-ignore]

            made = self._of(executable.xla_executable)
            if made is None:
                return original(executable)
            costs: Counter[str] = Counter()
            for module in made.executable.hlo_modules():
                costs.update(_jax.hlo_module_cost_analysis(self._client, module))
            return dict(costs)

        return cost_analysis

    def _execute(self, original: Callable[..., Iterable[Array]]) -> Callable[..., object]:
        def execute(call: ExecuteReplicated, *args: Array) -> object:
            places = [self.index(device) for device in call._local_devices]
            if min(places, default=-1) < 0:
                return original(call, *args)
            sizes = [_shard_bytes(aval, sharding) for aval, sharding in _outputs(call.out_handler)]
            made = self._of(call.xla_executable)
            inside = 0 if made is None else made.temporary_bytes
            self._require(places, sum(sizes) + inside - (0 if made is None else made.alias_bytes))
            temporary = [self.recorder.hold(place, inside) for place in places] if inside else []
            with self._on_this_machine(sum(sizes) * len(places)):
                outs = original(call, *args)
            self._record(call, places, args)
            for out, size in zip(outs, sizes, strict=False):
                _tag(out, [self.recorder.hold(place, size) for place in self.places(out)])
            for arg in args:
                if getattr(arg, "_wt", None) and arg.is_deleted():
                    arg._wt = ()
            del temporary  # given back when the program has ended
            return outs

        return execute

    def _record(self, call: ExecuteReplicated, places: list[int], args: Sequence[Array]) -> None:
        made = self._of(call.xla_executable)
        program = self.programs.get(call) if made is None else made.program
        if program is None:
            self.recorder.not_modelled("program", name=str(call.name))
            return
        if program.unknown_loops:
            self.recorder.not_modelled("loop", name=str(call.name))
        split = len(places) > 1 and not program.local and any(_partitioned(arg) for arg in args)
        work = program.work or (Work(_nothing(call.name)),) if len(places) == 1 else program.work
        for place in places:
            self.recorder.run(place, work, len(places) if split else 1)
        if len(places) > 1:
            for name, size in self._collectives(call):
                self.recorder.collective(name, size, places)

    def _collectives(self, call: ExecuteReplicated) -> list[tuple[str, int]]:
        found = self.collectives.get(call)
        if found is None:
            made = self._of(call.xla_executable)
            modules = call.xla_executable.hlo_modules() if made is None else ()
            found = [pair for m in modules for pair in collectives_of(m.to_string())]
            found = self.collectives[call] = found if made is None else made.collectives
        return found

    @contextmanager
    def _on_this_machine(self, size_bytes: int) -> Iterator[None]:
        """The values are computed here, after the GPUs have been asked: what runs out now is not theirs."""
        import jax

        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("RESOURCE_EXHAUSTED"):
                raise
            raise self.recorder.host_is_full(size_bytes) from error

    def _require(self, places: list[int], size_bytes: int) -> None:
        try:
            for place in places:
                self.recorder.check(place, size_bytes)
        except OutOfMemory as error:
            raise _exhausted(error.size_bytes) from None

    # ------------------------------------------------------------------ transfers

    def _put(self, original: Callable[..., Array]) -> Callable[..., object]:
        def batched_device_put(
            aval: Aval, sharding: Sharding, xs: Sequence[Array], devices: Sequence[Device], *rest: object,
            **options: object,
        ) -> object:  # fmt: skip
            targets = [self.index(device) for device in devices]
            sources = [self.places(x)[0] for x in xs]
            size = _shard_bytes(aval, sharding)
            for source, target in zip(sources, targets, strict=True):
                if target >= 0 and source != target:
                    self._require([target], size)
            with self._on_this_machine(size * len(targets)):
                result = original(aval, sharding, xs, devices, *rest, **options)
            held = []
            for x, source, target in zip(xs, sources, targets, strict=True):
                stays = source == target >= 0
                shared = _held(x, target) if stays and not _fresh(x, result) else []
                if stays and not shared:
                    self._require([target], size)
                if source != target or (stays and not shared):
                    self.recorder.copy(source, target, size, blocking=False)
                if target >= 0:
                    held += shared or [self.recorder.hold(target, size)]
            _tag(result, held)
            return result

        return batched_device_put

    def _reuse(self, original: Callable[..., Array]) -> Callable[..., object]:
        def batched_device_put(
            aval: object, sharding: object, xs: Sequence[Array], *rest: object, **options: object
        ) -> object:
            result = original(aval, sharding, xs, *rest, **options)
            if not hasattr(result, "_wt"):
                _tag(result, [holding for x in xs for holding in getattr(x, "_wt", ())])
            return result

        return batched_device_put

    def _value(self, original: property) -> property:
        def value(array: Array) -> object:
            if array._npy_value is None and not array.is_deleted():
                read: set[int] = set()
                for place in self.places(array):
                    if place >= 0 and not (array.is_fully_replicated and read):
                        read.add(place)
                        self.recorder.copy(place, -1, _shard_bytes(array.aval, array.sharding), blocking=True)
            return original.__get__(array)

        return property(value)

    def _delete(self, original: Callable[..., object]) -> Callable[..., object]:
        def delete(array: Array) -> object:
            result = original(array)
            _tag(array, ())
            return result

        return delete

    def _block(self, original: Callable[..., object]) -> Callable[..., object]:
        def block_until_ready(array: object) -> object:
            self._wait([array])
            return original(array)

        return block_until_ready

    def _block_all(self, original: Callable[..., object]) -> Callable[..., object]:
        def batched_block_until_ready(arrays: Sequence[object]) -> object:
            self._wait(arrays)
            return original(arrays)

        return batched_block_until_ready

    def _wait(self, arrays: Iterable[object]) -> None:
        for place in sorted({place for array in arrays for place in self.places(array)}):
            if place >= 0:
                self.recorder.wait(place, "block_until_ready")


class _Answering:
    """Stands for an executable where JAX asks one about itself."""

    def __init__(self, executable: object) -> None:
        self._executable = executable

    def xla_extension_executable(self) -> object:
        """What JAX asks."""
        return self._executable


@contextmanager
def _without_libraries() -> Iterator[None]:
    """JAX's plugin for CUDA looks for cuBLAS, cuDNN and a driver when it is found; compiling needs none of them."""
    before = os.environ.get(SKIP)
    os.environ[SKIP] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SKIP]
        else:
            os.environ[SKIP] = before


def _tag(array: Array, held: Sequence[Holding]) -> None:
    array._wt = tuple(held)


def _keep(original: Callable[..., Array]) -> Callable[..., object]:
    def result_handler(self: object, shard_arg_result: object) -> object:
        result = original(self, shard_arg_result)
        if not hasattr(result, "_wt"):
            _tag(result, getattr(shard_arg_result, "_wt", ()))
        return result

    return result_handler


def _held(x: Array, place: int) -> list[Holding]:
    """An array's memory on one device."""
    return [holding for holding in getattr(x, "_wt", ()) if holding.device == place]


def _fresh(x: Array, result: Array) -> bool:
    """Whether a transfer to the same device made a buffer of its own."""
    one = getattr(result, "is_fully_addressable", False) and len(result._arrays) == 1
    return one and not x.is_deleted() and x.unsafe_buffer_pointer() != result.unsafe_buffer_pointer()


def _outputs(handler: ResultHandler) -> list[tuple[Aval, Sharding]]:
    return list(zip(handler.out_avals, handler.out_shardings, strict=True))


def _shard_bytes(aval: Aval, sharding: Sharding) -> int:
    """Bytes of one device's part of an array."""
    shape = tuple(getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not hasattr(dtype, "itemsize"):
        return 0
    elements = 1
    for n in sharding.shard_shape(shape):
        elements *= int(n)
    return elements * int(dtype.itemsize)


def _partitioned(arg: Array) -> bool:
    return hasattr(arg, "_sharding") and not arg.is_fully_replicated


def _nothing(name: str) -> Signature:
    return Signature(str(name))


def _exhausted(size_bytes: int) -> Exception:
    import jax

    return jax.errors.JaxRuntimeError(  # type: ignore[no-any-return, unused-ignore]
        f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {size_bytes} bytes."
    )
