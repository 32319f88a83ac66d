"""The seam into TensorFlow: GPU i is logical CPU i + 1 under another name.

TensorFlow itself places and computes; it copies between devices silently by default, as it does on real GPUs. What is
replaced: device names on their way in and out, the lists of devices, and the default device, which is GPU:0. What an
operation did is seen through TensorFlow's own op callbacks. Checked on tensorflow 2.21.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from windtunnel.errors import InstallError
from windtunnel.seam.buffer_slot import BufferSlot
from windtunnel.seam.patching import Patch, Patches, undone
from windtunnel.seam.recorder import Holding, Installed, OutOfMemory, Session, Work, WorkRecorder
from windtunnel.seam.tensorflow import exchange
from windtunnel.seam.tensorflow.devices import Devices
from windtunnel.seam.tensorflow.names import gpu_index, to_cpu, to_gpu
from windtunnel.seam.tensorflow.program import ON_HOST, FunctionGraph, has_kernel, read, shape_of, signature_of, size_of
from windtunnel.seam.tensorflow.types import AtomicFunction, Context, DType, FuncGraph, Tensor
from windtunnel.trace.plain import Json

_SHARING = frozenset(
    {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "ReadVariableOp", "PreventGradient"}
)
_DEFAULT = "/job:localhost/replica:0/task:0/device:CPU:{}"
_RESERVED_MIB = {3: 500, 5: 500, 6: 500, 7: 1050, 8: 1536}
"""What TensorFlow leaves free, by compute capability (MinSystemMemory in gpu_device.cc); 1800 from 9 on."""


def install(session: Session) -> Installed:
    """Give TensorFlow the session's GPUs; returns what takes them away again.

    Call it after `import tensorflow` and before its first operation; raises InstallError where that is too late.
    """
    seam = _TensorflowSeam(session)
    seam.prepare()
    patches = Patches()
    with undone(patches.restore):
        patches.apply(seam.patches())
        seam.enter_thread()

    def uninstall() -> None:
        seam.leave_thread()
        patches.restore()
        seam.recorder.close()

    return Installed(uninstall)


class _TensorflowSeam:
    """What the replacements share."""

    def __init__(self, session: Session) -> None:
        from tensorflow.python.eager import context  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from tensorflow.python.framework import ops  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self.context = context
        self.recorder = WorkRecorder(session, lambda size: size)
        for device, pool in zip(self.recorder.devices, self.recorder.pools, strict=True):
            reserved = _RESERVED_MIB.get(device.gpu.compute_capability[0], 1800) << 20
            pool.limit_bytes = max(0, device.gpu.memory_bytes - reserved)
        self.devices = Devices(self.recorder)
        self.raw_device = ops.EagerTensor.__dict__["device"]
        self.functions: weakref.WeakValueDictionary[str, AtomicFunction] = weakref.WeakValueDictionary()
        self.graphs: weakref.WeakKeyDictionary[AtomicFunction, tuple[int, FunctionGraph]] = weakref.WeakKeyDictionary()
        self.batch = 1
        self.busy = threading.local()

    # ------------------------------------------------------------------ start

    def prepare(self) -> None:
        """Make one more logical CPU for each GPU. Raises InstallError when TensorFlow has started without them."""
        wanted = len(self.recorder.devices) + 1
        context = self.context.context()
        if context._initialized:
            have = sum(1 for device in context.list_logical_devices("CPU"))
            if have < wanted:
                raise InstallError(
                    f"TensorFlow has already started with {have} logical CPUs, which cannot be changed; start the "
                    f"emulation before its first operation (it needs {wanted} for {wanted - 1} GPUs)"
                )
        else:
            configuration = self.context.LogicalDeviceConfiguration()
            cpu = context.list_physical_devices("CPU")[0]
            context.set_logical_device_configuration(cpu, [configuration] * wanted)
        self.devices.cpus = context.list_physical_devices("CPU")

    def enter_thread(self) -> None:
        """Let this thread's default device be GPU:0, and see its operations."""
        from tensorflow.python.framework import op_callbacks  # type: ignore[import-not-found, import-untyped, unused-ignore]

        context = self.context.context()
        if self.devices.visible and not context._thread_local_data.device_name:
            name = _DEFAULT.format(1)
            context._set_device(name, self.spec(name))
        op_callbacks.add_op_callback(self.seen)

    def leave_thread(self) -> None:
        """Undo `enter_thread` in the thread that ends the emulation."""
        from tensorflow.python.framework import op_callbacks

        op_callbacks.remove_op_callback(self.seen)
        context = self.context.context()
        if context._thread_local_data.device_name == _DEFAULT.format(1):
            context._set_device("", self.spec(""))

    def spec(self, name: str) -> object:
        """TensorFlow's parsed form of a device name."""
        from tensorflow.python.framework import device  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return device.DeviceSpec.from_string(name)

    def patches(self) -> list[Patch]:
        """Everything that is replaced in tensorflow (and the start of threads)."""
        from tensorflow.python import pywrap_tfe  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from tensorflow.python.client import device_lib  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from tensorflow.python.distribute import device_util  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from tensorflow.python.eager.polymorphic_function import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            atomic_function,
        )
        from tensorflow.python.framework import constant_op, ops

        scope, spec, operation = self.context._EagerDeviceContext, ops._UserDeviceSpec, ops.Operation
        tensor, base = ops.EagerTensor, ops._EagerTensorBase
        return [
            *self.devices.patches(self.context),
            *exchange.patches(self.place),
            Patch(device_lib, "list_local_devices", self.devices.local(device_lib.list_local_devices)),
            Patch(device_util, "current", _answered(device_util.current)),
            Patch(self.context, "get_device_name", _answered(self.context.get_device_name)),
            Patch(scope, "__init__", self._scope(scope.__init__)),
            Patch(spec, "__init__", self._graph_scope(spec.__init__)),
            Patch(operation, "device", _shown(operation.__dict__["device"])),
            Patch(operation, "_set_device_from_string", _mapped(operation._set_device_from_string)),
            Patch(tensor, "device", _shown(tensor.__dict__["device"])),
            Patch(tensor, "backing_device", _shown(tensor.__dict__["backing_device"])),
            Patch(tensor, "_numpy_internal", self._numpy(tensor._numpy_internal)),
            Patch(base, "_copy_nograd", self._copy(base._copy_nograd)),
            Patch(base, "__array__", _array(base.__array__)),
            Patch(BufferSlot(tensor), "function", None),
            Patch(atomic_function.AtomicFunction, "__init__", self._function(atomic_function.AtomicFunction.__init__)),
            Patch(constant_op, "convert_to_eager_tensor", self._constant(constant_op.convert_to_eager_tensor)),
            Patch(pywrap_tfe, "TFE_Py_FastPathExecute", self._fast_path(pywrap_tfe.TFE_Py_FastPathExecute)),
            Patch(threading.Thread, "_bootstrap_inner", self._thread(threading.Thread._bootstrap_inner)),  # type: ignore[attr-defined]
        ]

    # ------------------------------------------------------------------ names on their way in

    def _scope(self, original: Callable[..., object]) -> Callable[..., object]:
        def init(scope: object, ctx: Context, device_name: object) -> None:
            if isinstance(device_name, str):
                device_name = self.devices.placed(device_name, ctx)
            if not device_name and self.devices.visible:
                device_name = _DEFAULT.format(1)  # no wish: TensorFlow's default, GPU:0
            original(scope, ctx, device_name)

        return init

    def _graph_scope(self, original: Callable[..., object]) -> Callable[..., object]:
        def init(spec: object, device_name_or_function: object) -> None:
            wish = device_name_or_function
            if hasattr(wish, "to_string"):
                wish = wish.to_string()
            if isinstance(wish, str):
                wish = self.devices.placed(wish, self.context.context())
            original(spec, wish)

        return init

    def _thread(self, original: Callable[..., object]) -> Callable[..., object]:
        def bootstrap(thread: object) -> object:
            self.enter_thread()
            return original(thread)

        return bootstrap

    def _function(self, original: Callable[..., object]) -> Callable[..., object]:
        def init(function: AtomicFunction, *args: object, **options: object) -> None:
            original(function, *args, **options)
            self.functions[_text(function.name)] = function

        return init

    # ------------------------------------------------------------------ what happens

    def place(self, tensor: object) -> int:
        """The machine's device that holds an eager tensor, -1 for the host."""
        return self.devices.physical(gpu_index(self.raw_device.__get__(tensor)))

    def seen(
        self, op_type: str | bytes, inputs: Sequence[Tensor], attrs: Sequence[Any] | None, outputs: Sequence[Tensor],
        op_name: object = None, graph: object = None,
    ) -> None:  # fmt: skip
        """One eager operation has run: TensorFlow's op callback."""
        if graph is not None or getattr(self.busy, "now", False):
            return
        name = _text(op_type)
        if "BatchDataset" in name and len(inputs) > 1:
            self.batch = max(1, int(inputs[1].numpy()))
        self.busy.now = True
        try:
            self._seen(name, inputs, dict(zip(attrs[::2], attrs[1::2], strict=False)) if attrs else {}, outputs)
        except OutOfMemory as error:
            raise self._exhausted(name, error, outputs[0] if outputs else inputs[-1]) from None
        finally:
            self.busy.now = False

    def _seen(self, name: str, inputs: Sequence[Tensor], attrs: Json, outputs: Sequence[Tensor]) -> None:
        place = self._where(inputs, outputs)
        for tensor in inputs:
            if tensor.dtype.name not in ON_HOST and (source := self.place(tensor)) != place:
                self.recorder.copy(source, place, size_of(tensor), blocking=min(source, place) < 0)
        function = self.functions.get(name)
        if function is not None:
            self._run_graph(name, self._graph(function), place)
        elif place >= 0 and has_kernel(name):
            self.recorder.run(place, [Work(signature_of(name, inputs, outputs, attrs, 1))])
        self._hold(name, inputs, outputs)

    def _where(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        for tensor in (*[t for t in inputs if t.dtype.name == "resource"], *outputs):
            place = self.place(tensor)
            if place >= 0:
                return place
        if outputs:
            return -1
        return self.devices.physical(gpu_index(self.context.context()._thread_local_data.device_name or ""))

    def _graph(self, function: AtomicFunction) -> FunctionGraph:
        known = self.graphs.get(function)
        if known is None or known[0] != self.batch:
            known = self.graphs[function] = (self.batch, read(function.graph, self._graph_named, self.batch))
        return known[1]

    def _graph_named(self, name: str) -> FuncGraph | None:
        function = self.functions.get(name)
        return None if function is None else function.graph

    def _run_graph(self, name: str, graph: FunctionGraph, place: int) -> None:
        recorder = self.recorder
        if graph.unknown_loops:
            recorder.not_modelled("loop", name=name)
        if graph.unknown_shapes:
            recorder.not_modelled("shape", name=name, assumed=self.batch)
        waiting: dict[str, dict[int, int]] = {}
        for step in graph.steps:
            at = self._step_place(step.device, place)
            if at < 0:
                continue
            for source, size in step.sources:
                origin = self._step_place(source, place)
                if origin >= 0 and origin != at:
                    recorder.copy(origin, at, size, blocking=False)
            if not step.collective:
                recorder.run(at, [step.work])
                continue
            met = waiting.setdefault(step.collective, {})
            if at in met:
                self._meet(step.collective, met)
            met[at] = step.work.signature.read_bytes
        for kind, met in waiting.items():
            self._meet(kind, met)

    def _meet(self, kind: str, met: dict[int, int]) -> None:
        if len(met) > 1:
            self.recorder.collective(kind, max(met.values()), sorted(met))
        met.clear()

    def _step_place(self, device: str, default: int) -> int:
        return self.devices.physical(gpu_index(to_cpu(device))) if device else default

    # ------------------------------------------------------------------ memory

    def _hold(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        if name == "AssignVariableOp" and not getattr(inputs[0], "_wt", None):
            inputs[0]._wt = getattr(inputs[1], "_wt", None)
        for tensor in outputs:
            place = self.place(tensor)
            if place < 0 or tensor.dtype.name in ON_HOST:
                continue
            shared = getattr(inputs[0], "_wt", None) if name in _SHARING and inputs else None
            tensor._wt = shared if shared and shared.device == place else self.recorder.hold(place, size_of(tensor))

    def _exhausted(self, name: str, error: OutOfMemory, tensor: Tensor) -> Exception:
        return self._oom(list(shape_of(tensor, 1)), tensor.dtype, error.device, name)

    def _oom(self, shape: list[int], dtype: DType, device: int, name: str) -> Exception:
        from tensorflow.python.framework import errors_impl  # type: ignore[import-not-found, import-untyped, unused-ignore]

        kind = {"float32": "float", "float16": "half", "float64": "double"}.get(dtype.name, dtype.name)
        text = (
            f"OOM when allocating tensor with shape{shape} and type {kind} on "
            f"/job:localhost/replica:0/task:0/device:GPU:{device} by allocator GPU_{device}_bfc [Op:{name}]"
        ).replace(", ", ",")
        return errors_impl.ResourceExhaustedError(None, None, text)  # type: ignore[no-any-return, unused-ignore]

    def _fast_path(self, original: Callable[..., object]) -> Callable[..., object]:
        def execute(context: object, op: object, name: object, *args: Any) -> object:
            if op == "Fill":
                self._check_fill(args[0], args[1])
            return original(context, op, name, *args)

        return execute

    def _check_fill(self, dims: Any, value: object) -> None:
        """`Fill` alone can ask for much memory with small inputs: ask before the CPU tries."""
        place = self.devices.physical(gpu_index(self.context.context()._thread_local_data.device_name or ""))
        if place < 0 or not hasattr(value, "dtype"):
            return
        shape = [int(n) for n in (dims.numpy() if hasattr(dims, "numpy") else dims)]
        size = int(getattr(value.dtype, "size", 4) or 1)
        for n in shape:
            size *= n
        try:
            self.recorder.check(place, size)
        except OutOfMemory:
            raise self._oom(shape, value.dtype, place, "Fill") from None

    # ------------------------------------------------------------------ transfers

    def _constant(self, original: Callable[..., Tensor]) -> Callable[..., object]:
        def convert(value: object, ctx: object, dtype: object = None) -> object:
            tensor = original(value, ctx, dtype)
            if tensor is not value and not hasattr(tensor, "_wt"):
                place = self.place(tensor)
                if place >= 0 and tensor.dtype.name not in ON_HOST:
                    tensor._wt = self._arrived(tensor, place)
            return tensor

        return convert

    def _arrived(self, tensor: Tensor, place: int) -> Holding:
        try:
            holding = self.recorder.hold(place, size_of(tensor))
        except OutOfMemory as error:
            raise self._exhausted("_EagerConst", error, tensor) from None
        self.recorder.copy(-1, place, size_of(tensor), blocking=True)
        return holding

    def _numpy(self, original: Callable[..., object]) -> Callable[..., object]:
        def numpy(tensor: Tensor) -> object:
            place = self.place(tensor)
            if place >= 0 and tensor.dtype.name not in ON_HOST:
                self.recorder.copy(place, -1, size_of(tensor), blocking=True)
            return original(tensor)

        return numpy

    def _copy(self, original: Callable[..., Tensor]) -> Callable[..., object]:
        def copy_nograd(tensor: Tensor, ctx: object = None, device_name: str | None = None) -> object:
            source = self.place(tensor)
            result = original(tensor, ctx, to_cpu(device_name) if device_name else device_name)
            place = self.place(result)
            if place != source:
                self.recorder.copy(source, place, size_of(tensor), blocking=place < 0)
            if place >= 0:
                result._wt = self.recorder.hold(place, size_of(tensor))
            return result

        return copy_nograd


def _shown(raw: property) -> property:
    return property(lambda owner: to_gpu(raw.__get__(owner)))


def _array(original: Callable[..., object]) -> Callable[..., object]:
    import numpy

    def array(tensor: object, dtype: object = None, copy: bool | None = None) -> object:
        # A scalar's value is a NumPy scalar, which the buffer interface used to hide; NumPy 2 asks for `copy`.
        return numpy.array(original(tensor, dtype), copy=bool(copy)) if copy else numpy.asarray(original(tensor, dtype))

    return array


def _answered(original: Callable[[], object]) -> Callable[[], object]:
    def answer() -> object:
        name = original()
        return to_gpu(name) if isinstance(name, str) else name

    return answer


def _mapped(original: Callable[..., object]) -> Callable[..., object]:
    def set_device(op: object, device: str) -> object:
        return original(op, to_cpu(device))

    return set_device


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
