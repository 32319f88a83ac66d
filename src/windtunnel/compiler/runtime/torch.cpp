// The functions of libc10_cuda and libtorch_cuda that an extension calls, and where a tensor lives.
#include "ask.h"
#include <Python.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/impl/CUDAGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <dlfcn.h>
#include <atomic>
#include <optional>
using windtunnel::ask;
using windtunnel::ask_number;
using c10::DeviceIndex;

PyObject *THPVariable_Wrap(const at::TensorBase &);

namespace windtunnel {
// An extension that was built earlier is imported like any other module, so the emulation is told of this library by it.
bool answered() {
  static thread_local bool looking = false;
  if (answer || looking || !Py_IsInitialized()) return answer;
  looking = true;
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *modules = PyImport_GetModuleDict();
  PyObject *module = PyDict_GetItemString(modules, "windtunnel.seam.torch.extensions.libraries");
  Dl_info own;
  if (module && dladdr((void *)&answered, &own)) {
    PyObject *done = PyObject_CallMethod(module, "loaded", "s", own.dli_fname);
    if (!done) PyErr_WriteUnraisable(module);
    Py_XDECREF(done);
  }
  PyGILState_Release(state);
  looking = false;
  return answer;
}

bool of_python() { return Py_IsInitialized() && PyGILState_GetThisThreadState(); }

void *let_go() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_back(void *state) {
  if (state) PyEval_RestoreThread((PyThreadState *)state);
}

void raise() {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *value = (PyObject *)ask_number("restore");
  PyErr_SetObject((PyObject *)Py_TYPE(value), value);
  Py_DECREF(value);
  python_error error;
  error.persist();
  PyGILState_Release(state);
  throw error;
}
}  // namespace windtunnel

// A program's own `main`, which ends where Python raises.
extern "C" int windtunnel_main(int (*main)(int, char **, char **), int count, char **arguments) {
  try {
    return main(count, arguments, environ);
  } catch (python_error &error) {
    error.restore();
    return 1;
  }
}

// The device of a tensor is a tag on its storage, which Python keeps.
c10::Device windtunnel_device_of(const c10::TensorImpl *impl) {
  const c10::Device physical = impl->device();
  if (physical.type() != c10::DeviceType::CPU && physical.type() != c10::DeviceType::Meta) return physical;
  if (!windtunnel::answered()) return physical;
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *object = THPVariable_Wrap(at::TensorBase(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(const_cast<c10::TensorImpl *>(impl))));
  const long long index = ask_number("tensor_device", object);
  Py_XDECREF(object);
  PyGILState_Release(state);
  return index < 0 ? physical : c10::Device(c10::DeviceType::CUDA, (DeviceIndex)index);
}

// A tensor without values has no data; host code gets an address that stands for it.
extern "C" void windtunnel_place(c10::StorageImpl *storage, void *data) {
  storage->set_data_ptr_noswap(c10::DataPtr(data, storage->device()));
}

namespace c10::cuda {
void c10_cuda_check_implementation(const int32_t err, const char *file, const char *function, const uint32_t line, const bool) {
  if (!err) return;
  (void)cudaGetLastError();
  ask_number("torch_error", err);
}
static CUDAStream made(DeviceIndex device, long long id) { return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::UNSAFE, Device(DeviceType::CUDA, device), id)); }
static DeviceIndex known(DeviceIndex device) { return device < 0 ? current_device() : device; }
CUDAStream getCurrentCUDAStream(DeviceIndex device) { device = known(device); return made(device, ask_number("current_stream", (int)device)); }
CUDAStream getDefaultCUDAStream(DeviceIndex device) { return made(known(device), 0); }
CUDAStream getStreamFromPool(const int priority, DeviceIndex device) { device = known(device); return made(device, ask_number("new_stream", (int)device, priority)); }
CUDAStream getStreamFromPool(const bool high, DeviceIndex device) { return getStreamFromPool(high ? -1 : 0, device); }
CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device) { device = known(device); return made(device, ask_number("external_stream", (int)device, stream)); }
void setCurrentCUDAStream(CUDAStream stream) { ask_number("set_stream", (int)stream.device_index(), (long long)stream.id()); }
cudaStream_t CUDAStream::stream() const { return (cudaStream_t)ask_number("stream_handle", (int)stream_.device_index(), (long long)stream_.id()); }
bool CUDAStream::query() const { return cudaStreamQuery(stream()) == cudaSuccess; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }
DeviceIndex current_device() { int device = 0; cudaGetDevice(&device); return (DeviceIndex)device; }
void set_device(DeviceIndex device, const bool) { C10_CUDA_CHECK(cudaSetDevice(device)); }
DeviceIndex device_count() noexcept { int count = 0; return cudaGetDeviceCount(&count) ? 0 : (DeviceIndex)count; }
DeviceIndex device_count_ensure_non_zero() { auto count = device_count(); TORCH_CHECK(count, "No CUDA GPUs are available"); return count; }
void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
void warn_or_error_on_sync() {}
cudaError_t GetDeviceCount(int *count) { return cudaGetDeviceCount(count); }
cudaError_t GetDevice(DeviceIndex *device) { *device = current_device(); return cudaSuccess; }
cudaError_t SetDevice(DeviceIndex device, const bool) { return cudaSetDevice(device); }
cudaError_t MaybeSetDevice(DeviceIndex device) { return cudaSetDevice(device); }
DeviceIndex ExchangeDevice(DeviceIndex device) { auto before = current_device(); if (device >= 0 && device != before) cudaSetDevice(device); return before; }
DeviceIndex MaybeExchangeDevice(DeviceIndex device) { return ExchangeDevice(device); }
void SetTargetDevice() {}
bool hasPrimaryContext(DeviceIndex) { return true; }
std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() { return current_device(); }
std::ostream &operator<<(std::ostream &out, const CUDAStream &stream) { return out << stream.unwrap(); }
}  // namespace c10::cuda

namespace c10::cuda::CUDACachingAllocator { std::atomic<CUDAAllocator *> allocator{nullptr}; }

namespace at::cuda {
cudaDeviceProp *getDeviceProperties(DeviceIndex device) {
  static cudaDeviceProp found[64];
  if (device < 0) device = c10::cuda::current_device();
  if (!found[device].warpSize) cudaGetDeviceProperties(&found[device], device);
  return &found[device];
}
cudaDeviceProp *getCurrentDeviceProperties() { return getDeviceProperties(c10::cuda::current_device()); }
int warp_size() { return 32; }
bool canDeviceAccessPeer(DeviceIndex device, DeviceIndex peer) { return device != peer; }
}  // namespace at::cuda

// What c10 asks of CUDA through its registry. It counts no devices: for each one autograd would start a thread, and runs
// everything on the caller's instead.
namespace c10::impl {
struct WindtunnelGuard final : DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override { return Device(DeviceType::CUDA, c10::cuda::ExchangeDevice(d.index())); }
  Device getDevice() const override { return Device(DeviceType::CUDA, c10::cuda::current_device()); }
  void setDevice(Device d) const override { c10::cuda::set_device(d.index()); }
  void uncheckedSetDevice(Device d) const noexcept override { c10::cuda::MaybeSetDevice(d.index()); }
  Stream getStream(Device d) const override { return c10::cuda::getCurrentCUDAStream(d.index()).unwrap(); }
  Stream getDefaultStream(Device d) const override { return c10::cuda::getDefaultCUDAStream(d.index()).unwrap(); }
  Stream exchangeStream(Stream s) const override { auto before = getStream(s.device()); c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(s)); return before; }
  DeviceIndex deviceCount() const noexcept override { return 0; }
};
static const WindtunnelGuard guard;
static const bool registered = !hasDeviceGuardImpl(DeviceType::CUDA) && (DeviceGuardImplRegistrar(DeviceType::CUDA, &guard), true);
}  // namespace c10::impl
