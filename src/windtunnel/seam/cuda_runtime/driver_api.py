"""CUDA's driver interface (`cu...`) over the emulated runtime: what Numba, CuPy and cuda-python call.

Names are those without a version, of which the newest is meant. Source: CUDA Driver API reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

from windtunnel.gpus import Gpu
from windtunnel.seam import cuda_driver
from windtunnel.seam.cuda_runtime import errors, limits
from windtunnel.seam.cuda_runtime.contexts import ContextCalls
from windtunnel.seam.cuda_runtime.driver import HostCodeDriver, registers_of
from windtunnel.seam.cuda_runtime.entries import Export
from windtunnel.seam.cuda_runtime.images import ImageCalls
from windtunnel.seam.cuda_runtime.memory import BETWEEN, DEVICE, HOST, TO_DEVICE, TO_HOST, put, word

ANY = 4
CODES = {
    9: errors.INVALID_VALUE,
    errors.INVALID_FUNCTION: errors.INVALID_HANDLE,
    errors.INVALID_SYMBOL: errors.NOT_FOUND,
}
"""The runtime's errors that have another number in the driver."""
BUFFER, SIZE = 1, 2
"""CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE."""
COOPERATIVE = 2
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE; an attribute takes 72 bytes, its value begins after 8."""
CREATE_DESCRIBED = "cuCtxCreate_v4"
"""What takes cuCtxCreate's place from CUDA 13 on."""
UNCONCERNED = ("cuGetError", "cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGet", "cuDriverGetVersion")
"""How the functions begin that succeed in a context that a kernel has lost."""
POOL = 0x5585_0000_0000
POOL_FLAGS = 3
"""The last of CUmemPool_attribute that are flags of 32 bits; the others are sizes."""
SHARED_OPT_IN, CARVEOUT = 8, 9
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES and ..._PREFERRED_SHARED_MEMORY_CARVEOUT."""


class DriverApi:
    """The functions of one process's driver, over what its runtime has."""

    unsupported, failed = errors.NOT_SUPPORTED, errors.UNKNOWN

    def __init__(self, runtime: HostCodeDriver, devices: cuda_driver.DriverFunctions) -> None:
        self.runtime = runtime
        self.process = runtime.process
        self.devices = devices
        self.contexts = ContextCalls(runtime.process)
        self.images = ImageCalls(runtime.process, runtime.modules)
        self.flags: dict[int, int] = {}  # of streams
        self.table = {
            **self._of_devices(), **self._of_contexts(), **self._of_images(), **self._of_kernels(),
            **self._of_memory(), **self._of_streams(),
        }  # fmt: skip

    def answer(self, name: str, *arguments: int) -> int:
        """What a call gives, as CUresult."""
        lost = self.process.lost()
        if lost and not name.startswith(UNCONCERNED):
            return lost
        try:
            found = int(self.table[name].answer(*arguments))
        except RuntimeError:  # PyTorch's, of the kernel that the host has just waited for
            found = self.process.lost()
            if not found:
                raise
        return CODES.get(found, found)

    def _succeed(self, *_: int) -> int:
        return errors.SUCCESS

    def _refuse(self, *_: int) -> int:
        return errors.NOT_SUPPORTED

    # ------------------------------------------------------------------ devices

    def _of_devices(self) -> dict[str, Export]:
        known = {
            "cuInit": "u", "cuDriverGetVersion": "q", "cuDeviceGetCount": "q", "cuDeviceGet": "qi",
            "cuDeviceGetName": "qii", "cuDeviceGetUuid": "qi", "cuDeviceTotalMem": "qi",
            "cuDeviceComputeCapability": "qqi", "cuGetErrorName": "iq", "cuGetErrorString": "iq",
        }  # fmt: skip
        return {
            **{name: Export(kinds, self.devices.function(name)) for name, kinds in known.items()},
            "cuDeviceGetAttribute": Export("qii", self.runtime.attribute),
            "cuDeviceCanAccessPeer": Export("qii", self.runtime.peer),
            "cuProfilerStart": Export("", self._succeed),
            "cuProfilerStop": Export("", self._succeed),
        }  # fmt: skip

    # ------------------------------------------------------------------ contexts

    def _of_contexts(self) -> dict[str, Export]:
        contexts = self.contexts
        return {
            "cuDevicePrimaryCtxRetain": Export("qi", contexts.retain),
            "cuDevicePrimaryCtxRelease": Export("i", contexts.release),
            "cuDevicePrimaryCtxReset": Export("i", self._succeed),
            "cuDevicePrimaryCtxSetFlags": Export("iu", self._succeed),
            "cuDevicePrimaryCtxGetState": Export("iqq", contexts.state),
            "cuCtxCreate": Export("qui", contexts.create),
            CREATE_DESCRIBED: Export("qqui", lambda out, _, flags, device: contexts.create(out, flags, device)),
            "cuCtxDestroy": Export("q", contexts.destroy),
            "cuCtxPushCurrent": Export("q", contexts.push),
            "cuCtxPopCurrent": Export("q", contexts.pop),
            "cuCtxSetCurrent": Export("q", contexts.make_current),
            "cuCtxGetCurrent": Export("q", contexts.get_current),
            "cuCtxGetDevice": Export("q", contexts.get_device),
            "cuCtxGetApiVersion": Export("qq", contexts.api_version),
            "cuCtxGetStreamPriorityRange": Export("qq", self.runtime.priorities),
            "cuCtxEnablePeerAccess": Export("qu", self._succeed),
            "cuCtxDisablePeerAccess": Export("q", self._succeed),
            "cuCtxSetLimit": Export("iq", self._succeed),
            "cuCtxSetCacheConfig": Export("i", self._succeed),
            "cuCtxSynchronize": Export("", self.runtime.synchronize),
        }

    # ------------------------------------------------------------------ modules

    def _of_images(self) -> dict[str, Export]:
        images = self.images
        return {
            "cuModuleLoad": Export("qq", images.load_file),
            "cuModuleLoadData": Export("qq", images.load),
            "cuModuleLoadDataEx": Export("qquqq", images.load),
            "cuModuleLoadFatBinary": Export("qq", images.load),
            "cuModuleUnload": Export("q", images.unload),
            "cuModuleGetFunction": Export("qqq", images.function),
            "cuModuleGetGlobal": Export("qqqq", images.variable),
            "cuModuleGetFunctionCount": Export("qq", images.count),
            "cuModuleEnumerateFunctions": Export("quq", images.enumerate),
            "cuLibraryLoadData": Export("qqqquqqu", images.load),
            "cuLibraryUnload": Export("q", images.unload),
            "cuLibraryGetKernel": Export("qqq", images.function),
            "cuLibraryGetModule": Export("qq", images.same),
            "cuLibraryGetKernelCount": Export("qq", images.count),
            "cuLibraryEnumerateKernels": Export("quq", images.enumerate),
            "cuLibraryGetGlobal": Export("qqqq", images.variable),
            "cuKernelGetFunction": Export("qq", images.same),
            "cuKernelGetName": Export("qq", images.name),
            "cuFuncGetName": Export("qq", images.name),
            "cuKernelGetParamInfo": Export("qqqq", images.parameter),
            "cuFuncGetParamInfo": Export("qqqq", images.parameter),
            "cuLinkCreate": Export("uqqq", images.link),
            "cuLinkAddData": Export("qiqqquqq", images.add),
            "cuLinkAddFile": Export("qiquqq", images.add_file),
            "cuLinkComplete": Export("qqq", images.complete),
            "cuLinkDestroy": Export("q", images.end_link),
        }

    # ------------------------------------------------------------------ kernels

    def _of_kernels(self) -> dict[str, Export]:
        return {
            "cuLaunchKernel": Export("quuuuuuuqqq", self.launch),
            "cuLaunchCooperativeKernel": Export("quuuuuuuqq", partial(self.launch, cooperative=1)),
            "cuLaunchKernelEx": Export("qqqq", self.launch_by),
            "cuFuncGetAttribute": Export("qiq", self.fact),
            "cuKernelGetAttribute": Export("qiqi", lambda out, attribute, kernel, _: self.fact(out, attribute, kernel)),
            "cuFuncSetAttribute": Export("qii", self.set_fact),
            "cuKernelSetAttribute": Export("iiqi", lambda what, value, kernel, _: self.set_fact(kernel, what, value)),
            "cuFuncSetCacheConfig": Export("qi", self._succeed),
            "cuKernelSetCacheConfig": Export("qii", self._succeed),
            "cuFuncSetSharedMemConfig": Export("qi", self._succeed),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": Export("qqiq", self.runtime.occupancy),
            "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": Export(
                "qqiqu", lambda out, kernel, threads, shared, _: self.runtime.occupancy(out, kernel, threads, shared)
            ),
            "cuOccupancyMaxPotentialBlockSize": Export("qqqqqi", self.best_block),
            "cuOccupancyMaxPotentialBlockSizeWithFlags": Export("qqqqqiu", self.best_block),
        }

    def launch(
        self, kernel: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
        given: int, packed: int = 0, cooperative: int = 0,
    ) -> int:  # fmt: skip
        """Launch a kernel: arguments are pointers to each, or one buffer of them all."""
        found = self.runtime.function(kernel)
        if found is None:
            return errors.INVALID_HANDLE
        count = len(found.kernel.parameters)
        pointers = (ctypes.c_uint64 * max(1, count))()
        if given:
            ctypes.memmove(pointers, given, 8 * count)
        elif count:
            buffer = 0
            while packed and (kind := word(packed)):
                if kind == BUFFER:
                    buffer = word(packed + 8)
                packed += 16
            if not buffer:
                return errors.INVALID_VALUE
            pointers[:count] = [buffer + parameter.offset for parameter in found.kernel.parameters]
        address = ctypes.addressof(pointers)
        error = self.runtime.launch(kernel, gx, gy, gz, bx, by, bz, address, shared, stream, cooperative)
        self.runtime.error_read()  # the call itself gives it
        return error

    def launch_by(self, settings: int, kernel: int, given: int, packed: int) -> int:
        """The same, described by a CUlaunchConfig."""
        sizes = [word(settings + 4 * at, 4) for at in range(7)]
        stream, attributes, count = word(settings + 32), word(settings + 40), word(settings + 48, 4)
        cooperative = 0
        for at in range(attributes, attributes + 72 * count, 72):
            if word(at, 4) == COOPERATIVE:
                cooperative = word(at + 8, 4)
        gx, gy, gz, bx, by, bz, shared = sizes
        return self.launch(kernel, gx, gy, gz, bx, by, bz, shared, stream, given, packed, cooperative)

    def fact(self, out: int, attribute: int, handle: int) -> int:
        """What is known of a kernel."""
        found = self.runtime.function(handle)
        if found is None:
            return errors.INVALID_HANDLE
        kernel, gpu = found.kernel, self._gpu()
        major, minor = gpu.compute_capability
        dynamic = self.runtime.opted.get(handle, gpu.shared_memory_per_block_bytes - kernel.shared_bytes)
        constant = sum(one.size for one in found.binary.module.variables.values() if one.constant)
        facts = (
            kernel.max_threads, kernel.shared_bytes, constant, kernel.local_bytes, registers_of(kernel),
            10 * major + minor, 10 * major + minor, 0, dynamic, -1, 0, 0, 0, 0, 0, 0,
        )  # fmt: skip
        if not 0 <= attribute < len(facts):
            return errors.INVALID_VALUE
        put(out, facts[attribute], 4)
        return errors.SUCCESS

    def set_fact(self, handle: int, attribute: int, value: int) -> int:
        """Allow a kernel more shared memory."""
        if attribute not in (SHARED_OPT_IN, CARVEOUT):
            return errors.INVALID_VALUE
        return self.runtime.set_attribute(handle, attribute, value)

    def best_block(self, grid: int, block: int, kernel: int, shared_of: int, shared: int, most: int, *_: int) -> int:
        """The block with which a kernel fills an SM best, and how many of them fill the GPU."""
        found = self.runtime.function(kernel)
        if found is None:
            return errors.INVALID_HANDLE
        gpu, best, held = self._gpu(), 0, 0
        largest = min(found.kernel.max_threads, limits.MOST_THREADS, most or limits.MOST_THREADS)
        ask = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(shared_of) if shared_of else None
        for threads in range(largest - largest % 32 or largest, 0, -32):
            dynamic = int(ask(threads)) if ask is not None else shared
            blocks = limits.resident(threads, dynamic + found.kernel.shared_bytes, registers_of(found.kernel), gpu)
            if blocks * threads > held * best:
                best, held = threads, blocks
        put(grid, held * gpu.sm_count, 4)
        put(block, best, 4)
        return errors.SUCCESS

    def _gpu(self) -> Gpu:
        return self.process.machine.devices[self.process.device()].gpu

    # ------------------------------------------------------------------ memory

    def _of_memory(self) -> dict[str, Export]:
        memory = self.runtime.memory

        real = self.process.addresses.real

        def copy(kind: int) -> Callable[..., int]:
            return lambda to, of, size: memory.memcpy(real(to), real(of), size, kind)

        def copy_async(kind: int) -> Callable[..., int]:
            return lambda to, of, size, stream: memory.memcpy_async(real(to), real(of), size, kind, stream)

        kinds = (("HtoD", TO_DEVICE), ("DtoH", TO_HOST), ("DtoD", BETWEEN))
        sets = (("D8", 1), ("D16", 2), ("D32", 4))
        return {
            **{f"cuMemcpy{name}": Export("qqq", copy(kind)) for name, kind in kinds},
            **{f"cuMemcpy{name}Async": Export("qqqq", copy_async(kind)) for name, kind in kinds},
            "cuMemcpy": Export("qqq", copy(ANY)),
            "cuMemcpyAsync": Export("qqqq", copy_async(ANY)),
            **{f"cuMemset{name}": Export("quq", self._filling(size)) for name, size in sets},
            **{f"cuMemset{name}Async": Export("quqq", self._filling(size)) for name, size in sets},
            "cuMemAlloc": Export("qq", lambda out, size: memory.malloc(out, size, "cuMemAlloc")),
            "cuMemAllocManaged": Export(
                "qqu", lambda out, size, _: memory.malloc(out, size, "cuMemAllocManaged", True)
            ),
            "cuMemFree": Export("q", memory.free),
            "cuMemAllocAsync": Export("qqq", memory.malloc_async),
            "cuMemAllocFromPoolAsync": Export(
                "qqqq", lambda out, size, _, stream: memory.malloc_async(out, size, stream)
            ),
            "cuMemFreeAsync": Export("qq", memory.free_async),
            "cuDeviceGetDefaultMemPool": Export("qi", self._pool),
            "cuDeviceGetMemPool": Export("qi", self._pool),
            "cuMemPoolSetAttribute": Export("qiq", self._succeed),
            "cuMemPoolGetAttribute": Export("qiq", self.pool_fact),
            "cuMemPoolTrimTo": Export("qq", self._succeed),
            "cuMemAllocHost": Export("qq", memory.malloc_host),
            "cuMemHostAlloc": Export("qqu", lambda out, size, _: memory.malloc_host(out, size)),
            "cuMemFreeHost": Export("q", memory.free_host),
            "cuMemHostRegister": Export("qqu", memory.nothing),
            "cuMemHostUnregister": Export("q", memory.nothing),
            "cuMemHostGetDevicePointer": Export("qqu", lambda out, address, _: self.images.same(out, address)),
            "cuMemGetInfo": Export("qq", memory.info),
            "cuMemGetAddressRange": Export("qqq", self.address_range),
            "cuPointerGetAttribute": Export("qiq", self.pointer),
            "cuPointerGetAttributes": Export("uqqq", self.pointers),
        }

    def _filling(self, size: int) -> Callable[..., int]:
        """cuMemset... of elements of a size."""
        memory = self.runtime.memory

        def fill(address: int, value: int, count: int, stream: int = 0) -> int:
            address = self.process.addresses.real(address)
            pattern = (value % (1 << 8 * size)).to_bytes(size, "little")
            error = memory.memset_async(address, pattern[0], size * count, stream)
            known = self.process.addresses.allocation(address)
            if not error and len(set(pattern)) > 1 and known and self.process.addresses.has_bytes(known):
                with memory.managed.opened([(address, address + size * count)]):
                    ctypes.memmove(address, pattern * count, size * count)
            return error

        return fill

    def _pool(self, out: int, device: int) -> int:
        put(out, POOL + 16 * device)
        return errors.SUCCESS

    def pool_fact(self, pool: int, attribute: int, out: int) -> int:
        """What a pool is set to, and what it holds: nothing, since memory goes back to the device at once."""
        put(out, 0, 4 if attribute <= POOL_FLAGS else 8)
        return errors.SUCCESS

    def address_range(self, base: int, size: int, address: int) -> int:
        """The allocation that an address is in."""
        real = self.process.addresses.real(address)
        found = self.process.addresses.allocation(real)
        if found is None:
            return errors.NOT_FOUND
        if base:
            put(base, found.start + address - real)
        if size:
            put(size, found.size)
        return errors.SUCCESS

    def pointer(self, out: int, attribute: int, address: int) -> int:
        """What is known of a pointer: context, kind of memory, addresses, whether it is managed, device, range."""
        found = self.process.addresses.allocation(self.process.addresses.real(address))
        pinned = found is None and self.runtime.memory.is_pinned(address)
        if found is None and not pinned:
            return errors.INVALID_VALUE
        device = self.process.device() if found is None else found.device
        start, size = (address, 0) if found is None else (found.start, found.size)
        facts = {
            1: (self.contexts.handle(device), 8), 2: (HOST if pinned else DEVICE, 4), 3: (address, 8),
            4: (address if pinned else 0, 8), 8: (int(bool(found and "Managed" in found.name)), 4), 9: (device, 4),
            11: (start, 8), 12: (size, 8), 13: (1, 4),
        }  # fmt: skip
        if attribute not in facts:
            return errors.INVALID_VALUE
        put(out, *facts[attribute])
        return errors.SUCCESS

    def pointers(self, count: int, attributes: int, outs: int, address: int) -> int:
        """Several of these at once; those that do not apply become 0."""
        for at in range(count):
            out = word(outs + 8 * at)
            if self.pointer(out, word(attributes + 4 * at, 4), address):
                put(out, 0, 4)
        return errors.SUCCESS

    # ------------------------------------------------------------------ streams and events

    def _of_streams(self) -> dict[str, Export]:
        streams = self.runtime.streams
        return {
            "cuStreamCreate": Export("qu", lambda out, flags: self.make_stream(out, flags, 0)),
            "cuStreamCreateWithPriority": Export("qui", self.make_stream),
            "cuStreamDestroy": Export("q", streams.destroy),
            "cuStreamSynchronize": Export("q", streams.synchronize),
            "cuStreamQuery": Export("q", streams.query),
            "cuStreamWaitEvent": Export("qqu", streams.wait_event),
            "cuStreamGetPriority": Export("qq", streams.priority),
            "cuStreamGetFlags": Export("qq", self.stream_flags),
            "cuStreamGetCtx": Export("qq", self.stream_context),
            "cuStreamGetDevice": Export("qq", self.stream_device),
            "cuStreamIsCapturing": Export("qq", streams.capturing),
            "cuStreamAddCallback": Export("qqqu", self.callback),
            "cuLaunchHostFunc": Export("qqq", streams.host_function),
            "cuStreamBeginCapture": Export("qi", self._refuse),
            "cuEventCreate": Export("qu", streams.create_event),
            "cuEventDestroy": Export("q", streams.destroy_event),
            "cuEventRecord": Export("qq", streams.record),
            "cuEventQuery": Export("q", streams.query_event),
            "cuEventSynchronize": Export("q", streams.synchronize_event),
            "cuEventElapsedTime": Export("qqq", streams.elapsed),
            "cuIpcGetMemHandle": Export("qq", self._refuse),
            "cuIpcOpenMemHandle": Export("qqu", self._refuse),
            "cuIpcCloseMemHandle": Export("q", self._refuse),
        }

    def make_stream(self, out: int, flags: int, priority: int) -> int:
        """A stream of the current context's device."""
        if self.contexts.current < 0:
            return errors.INVALID_CONTEXT
        error = self.runtime.streams.create(out, flags, priority)
        self.flags[word(out)] = flags
        return error

    def stream_flags(self, stream: int, out: int) -> int:
        """How a stream was made."""
        put(out, self.flags.get(stream, 0), 4)
        return errors.SUCCESS

    def stream_context(self, stream: int, out: int) -> int:
        """The context that a stream belongs to."""
        put(out, self.contexts.handle(self.process.stream(stream).device))
        return errors.SUCCESS

    def stream_device(self, stream: int, out: int) -> int:
        """Its device."""
        put(out, self.process.stream(stream).device, 4)
        return errors.SUCCESS

    def callback(self, stream: int, function: int, data: int, flags: int) -> int:
        """A function of the host's that a stream calls: values are there at once, so it is called now."""
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(function)
        call(stream, 0, data)
        return errors.SUCCESS
