"""The seam into MXNet 1.9: gpu(i) is the CPU context 1000 + i below the C interface.

MXNet's Python calls one C library through ctypes, so every context, operator, copy and wait passes there by name. The
C++ engine computes on CPU contexts that Python never sees. Random numbers of all emulated GPUs and of the CPU come from
one stream, because MXNet keeps one for all CPU contexts.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Callable, Iterable, MutableSequence, Sequence

from windtunnel.seam.mxnet.program import COPIES, Shape, backward, has_kernel, signature_of, symbol_work
from windtunnel.seam.mxnet.types import CachedOp, MXNetValue, Reference, References, ResultReference, Symbol
from windtunnel.seam.patching import Patch, Patches, undone
from windtunnel.seam.recorder import Holding, Installed, OutOfMemory, Session, Work, WorkRecorder

FIRST = 1000
"""The CPU context behind gpu(0)."""

_CPU, _GPU = 1, 2
_GPU_NAME = re.compile(rb"gpu\((\d+)\)")
_STRING = 11  # the type code of a string argument (mxnet/_ffi/runtime_ctypes.py)
_SIZES = {0: (4, "float32"), 1: (8, "float64"), 2: (2, "float16"), 3: (1, "uint8"), 4: (4, "int32"), 5: (1, "int8"),
          6: (8, "int64"), 7: (1, "bool"), 12: (2, "bfloat16")}  # fmt: skip
_VIEWS = ("MXNDArrayReshape64", "MXNDArrayReshape", "MXNDArraySlice", "MXNDArraySlice64", "MXNDArrayAt",
          "MXNDArrayAt64", "MXNDArrayDetach", "MXNDArrayGetGrad", "MXShallowCopyNDArray")  # fmt: skip


def install(session: Session) -> Installed:
    """Give MXNet the session's GPUs; returns what takes them away again. Call it after `import mxnet`."""
    seam = _MxnetSeam(session)
    patches = Patches()
    with undone(patches.restore):
        patches.apply(seam.patches())

    def uninstall() -> None:
        patches.restore()
        seam.recorder.close()

    return Installed(uninstall)


class _MxnetSeam:
    """What the replaced C functions share. `held` maps an array's handle to the memory that it keeps."""

    def __init__(self, session: Session) -> None:
        from mxnet import base  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from mxnet.ndarray import ndarray  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self.base = base
        self.lib = base._LIB
        self.recorder = WorkRecorder(session, lambda size: size, generator="mxnet")
        self.held: dict[int, Holding] = {}
        self.tape: list[tuple[int, Work]] = []
        self.symbols: dict[int, Symbol] = {}
        self.programs: dict[tuple[int, tuple[Shape, ...]], list[Work]] = {}
        self.names = self._operator_names()
        # Kept from before the replacement: what the seam asks the library itself.
        self._get_context = self.lib.MXNDArrayGetContext
        self._wide = bool(ndarray._int64_enabled())
        self._get_shape = self.lib.MXNDArrayGetShapeEx64 if self._wide else self.lib.MXNDArrayGetShapeEx
        self._get_type = self.lib.MXNDArrayGetDType
        self._is_recording = self.lib.MXAutogradIsRecording

    def patches(self) -> list[Patch]:
        """Everything that is replaced: functions of MXNet's C library, and the making of hybridized blocks."""
        lib = self.lib
        from mxnet._ctypes import ndarray  # type: ignore[import-not-found, import-untyped, unused-ignore]

        answers: dict[str, Callable[..., int]] = {
            "MXGetGPUCount": self._count,
            "MXGetGPUMemoryInformation64": self._memory,
            "MXNDArrayGetContext": self._context(lib.MXNDArrayGetContext),
            "MXNDArrayCreateEx": self._create(lib.MXNDArrayCreateEx, 2),
            "MXNDArrayCreateEx64": self._create(lib.MXNDArrayCreateEx64, 2),
            "MXNDArrayCreateSparseEx": self._create(lib.MXNDArrayCreateSparseEx, 3),
            "MXNDArrayFree": self._free(lib.MXNDArrayFree),
            "MXNDArraySyncCopyFromCPU": self._from_host(lib.MXNDArraySyncCopyFromCPU),
            "MXNDArraySyncCopyToCPU": self._to_host(lib.MXNDArraySyncCopyToCPU),
            "MXNDArrayWaitToRead": self._wait(lib.MXNDArrayWaitToRead, "wait_to_read"),
            "MXNDArrayWaitToWrite": self._wait(lib.MXNDArrayWaitToWrite, "wait_to_write"),
            "MXNDArrayWaitAll": self._wait_all(lib.MXNDArrayWaitAll),
            "MXRandomSeedContext": self._placed(lib.MXRandomSeedContext, 1),
            "MXStorageEmptyCache": self._placed(lib.MXStorageEmptyCache, 0),
            "MXExecutorSimpleBindEx": self._placed(lib.MXExecutorSimpleBindEx, 1),
            "MXExecutorSimpleBindEx64": self._placed(lib.MXExecutorSimpleBindEx64, 1),
            "MXExecutorBindEX": self._placed(lib.MXExecutorBindEX, 1),
            "MXImperativeInvokeEx": self._invoke(lib.MXImperativeInvokeEx),
            "MXNetFuncCall": self._call(lib.MXNetFuncCall),
            "MXInvokeCachedOpEx": self._cached(lib.MXInvokeCachedOpEx),
            "MXFreeCachedOp": self._forget(lib.MXFreeCachedOp),
            "MXAutogradBackwardEx": self._backward(lib.MXAutogradBackwardEx),
        }
        answers.update((name, self._view(getattr(lib, name))) for name in _VIEWS)
        return [
            *(Patch(lib, name, answer) for name, answer in answers.items()),
            Patch(ndarray.CachedOp, "__init__", self._hybridized(ndarray.CachedOp.__init__)),
        ]

    def _operator_names(self) -> dict[int, str]:
        """Operator handles and their names, for imperative calls and for calls of the newer interface."""
        count, listed = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
        self.base.check_call(self.lib.MXListAllOpNames(ctypes.byref(count), ctypes.byref(listed)))
        names: dict[int, str] = {}
        handle = ctypes.c_void_p()
        for i in range(count.value):
            self.base.check_call(self.lib.NNGetOpHandle(listed[i], ctypes.byref(handle)))
            if handle.value is not None:
                names.setdefault(handle.value, listed[i].decode())
        for module in [module for name, module in sys.modules.items() if name.endswith("._api_internal")]:
            for name, function in vars(module).items():
                if hasattr(function, "is_global") and getattr(function, "handle", None):
                    names[_number(function.handle)] = f"_npi_{name}"
        return names

    # ------------------------------------------------------------------ contexts

    def _check_index(self, index: int) -> None:
        if index >= len(self.recorder.devices):
            raise self.base.MXNetError("Check failed: e == cudaSuccess: CUDA: invalid device ordinal")

    def _below(self, kind: object, index: object) -> tuple[ctypes.c_int, ctypes.c_int]:
        """A context as the library gets it."""
        number = _number(index)
        if _number(kind) != _GPU:
            return ctypes.c_int(_number(kind)), ctypes.c_int(number)
        self._check_index(number)
        return ctypes.c_int(_CPU), ctypes.c_int(FIRST + number)

    def _rename(self, text: bytes) -> bytes:
        match = _GPU_NAME.fullmatch(text)
        if match is None:
            return text
        self._check_index(int(match[1]))
        return b"cpu(%d)" % (FIRST + int(match[1]))

    def place(self, handle: object) -> int:
        """The machine's device that holds an array, -1 for the host."""
        kind, index = ctypes.c_int(), ctypes.c_int()
        self._get_context(handle, ctypes.byref(kind), ctypes.byref(index))
        return index.value - FIRST if kind.value == _CPU and index.value >= FIRST else -1

    def _context(self, original: Callable[..., int]) -> Callable[..., int]:
        def get_context(handle: object, kind: Reference, index: Reference) -> int:
            code = original(handle, kind, index)
            if code == 0 and kind._obj.value == _CPU and index._obj.value >= FIRST:
                kind._obj.value, index._obj.value = _GPU, index._obj.value - FIRST
            return code

        return get_context

    def _placed(self, original: Callable[..., int], position: int) -> Callable[..., int]:
        def call(*args: object) -> int:
            return original(*args[:position], *self._below(*args[position : position + 2]), *args[position + 2 :])

        return call

    def _count(self, out: Reference) -> int:
        out._obj.value = len(self.recorder.devices)
        return 0

    def _memory(self, index: object, free: Reference, total: Reference) -> int:
        number = _number(index)
        self._check_index(number)
        self.recorder.drain()
        device, pool = self.recorder.devices[number], self.recorder.pools[number]
        total._obj.value = device.gpu.memory_bytes
        free._obj.value = device.gpu.memory_bytes - pool.used_bytes
        return 0

    # ------------------------------------------------------------------ arrays

    def shape(self, handle: object) -> Shape:
        """An array's shape; () when it is not known yet."""
        rank = ctypes.c_int()
        data = ctypes.POINTER(ctypes.c_int64 if self._wide else ctypes.c_int)()
        if self._get_shape(handle, ctypes.byref(rank), ctypes.byref(data)) != 0 or rank.value < 0:
            return ()
        return tuple(int(data[i]) for i in range(rank.value))

    def kind(self, handle: object) -> tuple[int, str]:
        """The bytes of one element and the name of its type."""
        number = ctypes.c_int()
        self._get_type(handle, ctypes.byref(number))
        return _SIZES.get(number.value, (4, "float32"))

    def size(self, handle: object) -> int:
        """An array's bytes."""
        return math.prod(self.shape(handle)) * self.kind(handle)[0]

    def _hold(self, handle: object) -> None:
        place = self.place(handle)
        number = _number(handle)
        if place < 0 or number in self.held:
            return
        try:
            self.held[number] = self.recorder.hold(place, self.size(handle))
        except OutOfMemory:
            raise self.base.MXNetError("cudaMalloc retry failed: out of memory") from None

    def _create(self, original: Callable[..., int], position: int) -> Callable[..., int]:
        def create(*args: object) -> int:
            place = self._below(*args[position : position + 2])
            code = original(*args[:position], *place, *args[position + 2 :])
            if code == 0 and place[1].value >= FIRST:
                self._hold(getattr(args[-1], "_obj", None))
            return code

        return create

    def _free(self, original: Callable[..., int]) -> Callable[..., int]:
        def free(handle: object) -> int:
            self.held.pop(_number(handle), None)
            return original(handle)

        return free

    def _view(self, original: Callable[..., int]) -> Callable[..., int]:
        def view(handle: object, *args: object) -> int:
            code = original(handle, *args)
            new = getattr(args[-1], "_obj", None)
            if code == 0 and getattr(new, "value", None) and (holding := self.held.get(_number(handle))):
                self.held[new.value] = holding  # type: ignore[union-attr]
            return code

        return view

    # ------------------------------------------------------------------ operators

    def _invoke(self, original: Callable[..., int]) -> Callable[..., int]:
        def invoke(
            op: object, count: object, inputs: Sequence[object], out_count: Reference, outputs: References,
            pairs: object, keys: Sequence[bytes], values: MutableSequence[bytes], *rest: object,
        ) -> int:  # fmt: skip
            for i in range(_number(pairs)):
                if keys[i] == b"ctx":
                    values[i] = self._rename(values[i])
            name = self.names.get(_number(op), "operator")
            given = [inputs[i] for i in range(_number(count))]
            self._same_device(name, given)
            code = original(op, count, inputs, out_count, outputs, pairs, keys, values, *rest)
            if code == 0:
                self._ran(name, given, [outputs._obj[i] for i in range(out_count._obj.value)])
            return code

        return invoke

    def _call(self, original: Callable[..., int]) -> Callable[..., int]:
        arrays = 14  # the type code of an array (mxnet/_ffi/runtime_ctypes.py)

        def call(
            function: object, values: Sequence[MXNetValue], codes: Sequence[int], count: object,
            result: ResultReference, result_code: Reference,
        ) -> int:  # fmt: skip
            given = []
            for i in range(_number(count)):
                if codes[i] == _STRING and values[i].v_str:
                    values[i].v_str = self._rename(values[i].v_str)
                elif codes[i] == arrays:
                    given.append(values[i].v_handle)
            name = self.names.get(_number(function), "function")
            self._same_device(name, given)
            code = original(function, values, codes, count, result, result_code)
            if code == 0 and result_code._obj.value == arrays:
                self._ran(name, given, [result._obj.v_handle])
            return code

        return call

    def _same_device(self, name: str, inputs: Sequence[object]) -> None:
        """MXNet's rule, applied between GPUs as well: all inputs of an operator live on one context."""
        if len(inputs) < 2 or name in COPIES or _is_update(name):
            return
        places = [self.place(ctypes.c_void_p(_number(handle))) for handle in inputs]
        for number, place in enumerate(places):
            if place != places[0]:
                raise self.base.MXNetError(
                    f"Check failed: inputs[i]->ctx() == ctx: Operator {name} require all inputs live on the same "
                    f"context. But the first argument is on {_shown(places[0])} while the {number + 1}-th argument is "
                    f"on {_shown(place)}"
                )

    def _ran(self, name: str, inputs: Iterable[object], outputs: Iterable[object]) -> None:
        given = [ctypes.c_void_p(_number(handle)) for handle in inputs]
        made = [ctypes.c_void_p(_number(handle)) for handle in outputs]
        for handle in made:
            self._hold(handle)
        place = self.place(made[0]) if made else -1
        if _is_update(name):
            place = max(map(self.place, given), default=place)
        if name in COPIES and given and made:
            source = self.place(given[0])
            if source >= 0 or place >= 0:
                self.recorder.copy(source, place, self.size(given[0]), blocking=False)
        elif place >= 0 and has_kernel(name):
            size, dtype = self.kind(made[0])
            work = Work(signature_of(name, [self.shape(h) for h in given], [self.shape(h) for h in made], size, dtype))
            self._run(place, [work])

    def _run(self, place: int, work: list[Work]) -> None:
        self.recorder.run(place, work)
        recording = ctypes.c_bool()
        self._is_recording(ctypes.byref(recording))
        if recording.value:
            self.tape.extend((place, one) for one in work)

    # ------------------------------------------------------------------ hybridized blocks

    def _hybridized(self, original: Callable[..., object]) -> Callable[..., object]:
        def init(cached: CachedOp, sym: Symbol, flags: object = ()) -> None:
            original(cached, sym, flags)
            self.symbols[cached.handle.value] = sym

        return init

    def _forget(self, original: Callable[..., int]) -> Callable[..., int]:
        def free(handle: object) -> int:
            self.symbols.pop(_number(handle), None)
            return original(handle)

        return free

    def _cached(self, original: Callable[..., int]) -> Callable[..., int]:
        def invoke(
            cached: object, count: object, inputs: Sequence[object], out_count: Reference, outputs: References,
            *rest: object,
        ) -> int:  # fmt: skip
            given = [inputs[i] for i in range(_number(count))]
            self._same_device("CachedOp", given)
            code = original(cached, count, inputs, out_count, outputs, *rest)
            if code == 0:
                made = [ctypes.c_void_p(_number(outputs._obj[i])) for i in range(out_count._obj.value)]
                for handle in made:
                    self._hold(handle)
                place = self.place(made[0]) if made else -1
                if place >= 0:
                    self._run(place, self._program(_number(cached), [ctypes.c_void_p(_number(h)) for h in given]))
            return code

        return invoke

    def _program(self, cached: int, inputs: Sequence[object]) -> list[Work]:
        symbol = self.symbols.get(cached)
        if symbol is None:
            return []
        shapes = tuple(self.shape(handle) for handle in inputs)
        work = self.programs.get((cached, shapes))
        if work is None:
            internals = symbol.get_internals()
            known = dict(zip(symbol.list_inputs(), shapes, strict=False))
            inferred = internals.infer_shape_partial(**known)[1] or []
            named = {**known, **dict(zip(internals.list_outputs(), map(tuple, inferred), strict=False))}
            size, dtype = self.kind(inputs[0]) if inputs else (4, "float32")
            work = self.programs[cached, shapes] = symbol_work(symbol.tojson(), named, size, dtype)
        return work

    def _backward(self, original: Callable[..., int]) -> Callable[..., int]:
        def run(*args: object) -> int:
            code = original(*args)
            tape = self.tape
            if not _number(args[5]):
                self.tape = []
            if tape:
                self.recorder.not_modelled("backward")
            for place, work in reversed(tape):
                self.recorder.run(place, [backward(work)])
            return code

        return run

    # ------------------------------------------------------------------ host

    def _from_host(self, original: Callable[..., int]) -> Callable[..., int]:
        def copy(handle: object, *args: object) -> int:
            place = self.place(handle)
            if place >= 0:
                self.recorder.copy(-1, place, self.size(handle), blocking=True)
            return original(handle, *args)

        return copy

    def _to_host(self, original: Callable[..., int]) -> Callable[..., int]:
        def copy(handle: object, *args: object) -> int:
            place = self.place(handle)
            if place >= 0:
                self.recorder.copy(place, -1, self.size(handle), blocking=True)
            return original(handle, *args)

        return copy

    def _wait(self, original: Callable[..., int], name: str) -> Callable[..., int]:
        def wait(handle: object) -> int:
            place = self.place(handle)
            if place >= 0:
                self.recorder.wait(place, name)
            return original(handle)

        return wait

    def _wait_all(self, original: Callable[..., int]) -> Callable[..., int]:
        def wait() -> int:
            for place in range(len(self.recorder.devices)):
                self.recorder.wait(place, "waitall")
            return original()

        return wait


def _number(value: object) -> int:
    return int(getattr(value, "value", value) or 0)  # type: ignore[call-overload, no-any-return]  # whatever has a value


def _is_update(name: str) -> bool:
    """Whether an operator is an optimizer's: the key-value store runs it with weights of its own on the CPU."""
    return name.endswith("_update")


def _shown(place: int) -> str:
    return f"gpu({place})" if place >= 0 else "cpu(0)"
