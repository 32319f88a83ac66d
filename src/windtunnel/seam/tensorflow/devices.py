"""TensorFlow's lists of devices and its settings for GPUs, answered for the emulated ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.recorder import WorkRecorder
from windtunnel.seam.tensorflow.names import gpu_index, to_cpu, to_gpu
from windtunnel.seam.tensorflow.types import Configuration, Context, PhysicalDevice


class Devices:
    """The emulated GPUs as `tf.config` shows them; `visible` are the machine's devices behind GPU:0, GPU:1, ..."""

    def __init__(self, recorder: WorkRecorder) -> None:
        self.recorder = recorder
        self.visible = list(range(len(recorder.devices)))
        self.growth: dict[int, bool | None] = dict.fromkeys(self.visible)
        self.cpus: list[PhysicalDevice] = []
        self._physical: list[PhysicalDevice] = []
        self._logical_type: Callable[[str, str], PhysicalDevice]

    def physical(self, logical: int) -> int:
        """The machine's device behind logical GPU `logical`; -1 for the host."""
        return self.visible[logical] if 0 <= logical < len(self.visible) else -1

    def placed(self, name: str, context: Context) -> str:
        """Where work for the device `name` is computed; soft placement takes GPU 0 for one that does not exist.

        Raises InvalidArgumentError, TensorFlow's own, for such a one without soft placement. Source: SelectDevice in
        tensorflow/core/common_runtime/eager/context.cc (a GPU comes before the CPU).
        """
        place = to_cpu(name)
        if gpu_index(place) < len(self.visible) or not self.visible:
            return place
        if context.soft_device_placement:
            return to_cpu("/device:GPU:0")
        from tensorflow.python.framework import errors  # type: ignore[import-not-found, import-untyped, unused-ignore]

        raise errors.InvalidArgumentError(
            None,
            None,
            f"Could not satisfy device specification '{name}'. enable_soft_placement=0. Supported device types "
            f"[GPU, CPU]. All available devices [{', '.join(context.devices())}].",
        )

    def local(self, original: Callable[..., list[object]]) -> Callable[..., list[object]]:
        """tensorflow.python.client.device_lib.list_local_devices, with the GPUs."""

        def list_local_devices(session_config: object = None) -> list[object]:
            host = original(session_config)[:1]
            return host + [self._attributes(type(host[0]), i) for i in range(len(self.visible))]

        return list_local_devices

    def _attributes(self, message: Callable[..., object], logical: int) -> object:
        index = self.physical(logical)
        gpu = self.recorder.devices[index].gpu
        capability = ".".join(str(part) for part in gpu.compute_capability)
        return message(
            name=f"/device:GPU:{logical}",
            device_type="GPU",
            memory_limit=self.recorder.pools[index].limit_bytes,
            physical_device_desc=f"device: {logical}, name: {gpu.name}, compute capability: {capability}",
        )

    def patches(self, context: ModuleType) -> list[Patch]:
        """The methods of TensorFlow's context that answer for GPUs."""
        cls = context.Context
        self._physical = [context.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in self.visible]
        self._logical_type = context.LogicalDevice
        answers: dict[str, Callable[..., object]] = {
            "list_physical_devices": lambda _, device_type=None: self._of(device_type, self.cpus, self._physical),
            "get_visible_devices": lambda _, device_type=None: self._of(device_type, self.cpus, self._seen()),
            "list_logical_devices": self._logical(cls.list_logical_devices),
            "set_visible_devices": self._set_visible(cls.set_visible_devices),
            "get_memory_growth": self._for_gpu(cls.get_memory_growth, lambda i: self.growth[i]),
            "set_memory_growth": self._set_growth(cls.set_memory_growth),
            "get_device_details": self._for_gpu(cls.get_device_details, self._details),
            "get_memory_info": self._memory(cls.get_memory_info),
            "reset_memory_stats": self._reset(cls.reset_memory_stats),
            "set_logical_device_configuration": self._limit(cls.set_logical_device_configuration),
            "num_gpus": lambda _: len(self.visible),
            "devices": self._names(cls.devices),
            "_set_device": self._set_device(cls._set_device),
            "sync_executors": self._sync(cls.sync_executors),
        }
        return [Patch(cls, name, answer) for name, answer in answers.items()]

    # ------------------------------------------------------------------ lists

    def _of(self, kind: str | None, cpus: list[PhysicalDevice], gpus: list[PhysicalDevice]) -> list[PhysicalDevice]:
        return [device for device in (*cpus[:1], *gpus) if kind is None or device.device_type == kind]

    def _seen(self) -> list[PhysicalDevice]:
        return [self._physical[i] for i in self.visible]

    def _logical(self, original: Callable[..., list[PhysicalDevice]]) -> Callable[..., object]:
        def list_logical_devices(context: Context, device_type: str | None = None) -> list[PhysicalDevice]:
            first = original(context, "CPU")[:1]
            gpus = [self._logical_type(f"/device:GPU:{i}", "GPU") for i in range(len(self.visible))]
            return self._of(device_type, first, gpus)

        return list_logical_devices

    def _names(self, original: Callable[..., list[str]]) -> Callable[..., object]:
        def devices(context: Context) -> list[str]:
            return [to_gpu(name) for name in original(context)[: len(self.visible) + 1]]

        return devices

    def _set_visible(self, original: Callable[..., object]) -> Callable[..., object]:
        def set_visible_devices(
            context: Context, devices: PhysicalDevice | list[PhysicalDevice], device_type: str | None = None
        ) -> None:
            wanted: list[PhysicalDevice] = [*devices] if isinstance(devices, list | tuple) else [devices]
            gpus = [d for d in wanted if getattr(d, "device_type", None) == "GPU"]
            if device_type in (None, "GPU"):
                if context._initialized:
                    raise RuntimeError("Visible devices cannot be modified after being initialized")
                self.visible = [self._physical.index(d) for d in gpus]
            rest = [d for d in wanted if d not in gpus]
            if rest:
                original(context, rest, "CPU")

        return set_visible_devices

    # ------------------------------------------------------------------ settings and numbers of one GPU

    def _index(self, device: object) -> int:
        return self._physical.index(device) if device in self._physical else -1

    def _for_gpu(self, original: Callable[..., object], answer: Callable[[int], object]) -> Callable[..., object]:
        def ask(context: object, *device: object, **named: object) -> object:  # `device` in one, `dev` in another
            index = self._index(next(iter((*device, *named.values()))))
            return answer(index) if index >= 0 else original(context, *device, **named)

        return ask

    def _details(self, index: int) -> dict[str, object]:
        gpu = self.recorder.devices[index].gpu
        return {"compute_capability": tuple(gpu.compute_capability), "device_name": gpu.name}

    def _set_growth(self, original: Callable[..., object]) -> Callable[..., object]:
        def set_memory_growth(context: Context, dev: object, enable: bool) -> None:
            index = self._index(dev)
            if index < 0:
                original(context, dev, enable)
                return
            if context._initialized and self.growth[index] != enable:
                raise RuntimeError("Physical devices cannot be modified after being initialized")
            self.growth[index] = enable

        return set_memory_growth

    def _limit(self, original: Callable[..., object]) -> Callable[..., object]:
        def set_logical_device_configuration(
            context: Context, dev: object, virtual_devices: Sequence[Configuration]
        ) -> None:
            parts = virtual_devices
            index = self._index(dev)
            if index < 0:
                original(context, dev, parts)
                return
            if len(parts) != 1:
                raise UnsupportedError(
                    f"splitting an emulated GPU into {len(parts)} logical devices is not supported; "
                    "ask for more GPUs instead (windtunnel run --gpus)"
                )
            if parts[0].memory_limit is not None:
                self.recorder.pools[index].limit_bytes = int(parts[0].memory_limit) << 20

        return set_logical_device_configuration

    def _gpu_named(self, name: object) -> int:
        return self.physical(gpu_index(to_cpu(str(getattr(name, "name", name)))))

    def _memory(self, original: Callable[..., object]) -> Callable[..., object]:
        def get_memory_info(context: object, dev: object) -> object:
            index = self._gpu_named(dev)
            if index < 0:
                return original(context, dev)
            self.recorder.drain()
            pool = self.recorder.pools[index]
            return {"current": pool.used_bytes, "peak": pool.peak_bytes}

        return get_memory_info

    def _reset(self, original: Callable[..., object]) -> Callable[..., object]:
        def reset_memory_stats(context: object, dev: object) -> object:
            index = self._gpu_named(dev)
            if index < 0:
                return original(context, dev)
            self.recorder.drain()
            pool = self.recorder.pools[index]
            pool.peak_bytes = pool.used_bytes
            return None

        return reset_memory_stats

    def _sync(self, original: Callable[..., object]) -> Callable[..., object]:
        def sync_executors(context: object) -> object:
            for index in self.visible:
                self.recorder.wait(index, "sync_executors")
            return original(context)

        return sync_executors

    def _set_device(self, original: Callable[..., object]) -> Callable[..., object]:
        def set_device(context: Context, device_name: object, device_spec: object) -> object:
            name = self.placed(device_name, context) if isinstance(device_name, str) else device_name
            return original(context, name, device_spec)

        return set_device
