// CUDA's runtime as an extension's host code calls it: everything is handed on to the emulated driver in Python.
#include "ask.h"
#include <dlfcn.h>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace windtunnel {
Answer answer = nullptr;
thread_local cudaError_t last = cudaSuccess;
static cudaError_t sticky = cudaSuccess;  // a context that is lost answers everything with its error
static thread_local std::vector<std::tuple<dim3, dim3, size_t, cudaStream_t>> configurations;
static thread_local struct { const char *file; int line; } launching;  // where host code has written <<<...>>>

// A library that is loaded before the emulation begins registers its kernels then.
static std::vector<std::function<void()>> &waiting() {
  static std::vector<std::function<void()>> found;
  return found;
}
static void register_later(std::function<void()> call) {
  if (answered()) call();
  else waiting().push_back(call);
}
}  // namespace windtunnel
using windtunnel::ask;
using windtunnel::ask_number;

extern "C" {
void windtunnel_begin(windtunnel::Answer answer) {
  windtunnel::answer = answer;
  for (auto &call : windtunnel::waiting()) call();
  windtunnel::waiting().clear();
}
void windtunnel_lost(int error) { windtunnel::sticky = (cudaError_t)error; }

// ---------------------------------------------------------------- registration
void **__cudaRegisterFatBinary(void *wrapper) {
  void *data = *(void **)((char *)wrapper + 8);
  Dl_info from;
  const char *library = dladdr(data, &from) ? from.dli_fname : "";
  windtunnel::register_later([=] { ask_number("register_binary", data, library); });
  return (void **)data;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **binary, const char *host, char *, const char *name, int, void *, void *, void *, void *, int *) { windtunnel::register_later([=] { ask_number("register_function", binary, host, name); }); }
void __cudaRegisterVar(void **binary, char *host, char *, const char *name, int, size_t size, int constant, int) { windtunnel::register_later([=] { ask_number("register_variable", binary, host, name, size, constant); }); }
void __cudaRegisterManagedVar(void **binary, void **host, char *, const char *name, int, size_t size, int, int) { windtunnel::register_later([=] { *host = (void *)ask_number("register_managed", binary, host, name, size); }); }

// ---------------------------------------------------------------- launches
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream, const char *file, int line) {
  windtunnel::launching = {file, line};
  windtunnel::configurations.emplace_back(grid, block, shared, stream);
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  std::tie(*grid, *block, *shared, *(cudaStream_t *)stream) = windtunnel::configurations.back();
  windtunnel::configurations.pop_back();
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, cudaStream_t s) {
  const auto from = std::exchange(windtunnel::launching, {});
  return ask("launch", f, g.x, g.y, g.z, b.x, b.y, b.z, a, shared, s, 0, from.file, from.line);
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, cudaStream_t s) { return ask("launch", f, g.x, g.y, g.z, b.x, b.y, b.z, a, shared, s, 1); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) {
  int cooperative = 0;
  for (unsigned i = 0; i < c->numAttrs; i++) if (c->attrs[i].id == cudaLaunchAttributeCooperative) cooperative = c->attrs[i].val.cooperative;
  return ask("launch", f, c->gridDim.x, c->gridDim.y, c->gridDim.z, c->blockDim.x, c->blockDim.y, c->blockDim.z, a, c->dynamicSmemBytes, c->stream, cooperative);
}

// ---------------------------------------------------------------- errors
cudaError_t cudaPeekAtLastError() {
  if (windtunnel::last) ask_number("error_read");
  return windtunnel::sticky ? windtunnel::sticky : windtunnel::last;
}
cudaError_t cudaGetLastError() { auto e = cudaPeekAtLastError(); windtunnel::last = cudaSuccess; return e; }
const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
#define X(NUMBER, NAME, TEXT) case NAME: return TEXT;
#include <windtunnel/errors.inc>
#undef X
  }
  return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define X(NUMBER, NAME, TEXT) case NAME: return #NAME;
#include <windtunnel/errors.inc>
#undef X
  }
  return "unrecognized error code";
}

// ---------------------------------------------------------------- what the emulated driver answers under its own name
#define A1(NAME, T) cudaError_t NAME(T a) { return ask(#NAME, a); }
#define A2(NAME, T, U) cudaError_t NAME(T a, U b) { return ask(#NAME, a, b); }
#define A3(NAME, T, U, V) cudaError_t NAME(T a, U b, V c) { return ask(#NAME, a, b, c); }
#define A4(NAME, T, U, V, W) cudaError_t NAME(T a, U b, V c, W d) { return ask(#NAME, a, b, c, d); }
#define A5(NAME, T, U, V, W, Y) cudaError_t NAME(T a, U b, V c, W d, Y e) { return ask(#NAME, a, b, c, d, e); }
A3(cudaFuncSetAttribute, const void *, cudaFuncAttribute, int)
A4(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int *, const void *, int, size_t)
A1(cudaGetDeviceCount, int *)
A1(cudaGetDevice, int *)
A1(cudaSetDevice, int)
A3(cudaDeviceGetAttribute, int *, cudaDeviceAttr, int)
A2(cudaDeviceGetStreamPriorityRange, int *, int *)
A3(cudaDeviceCanAccessPeer, int *, int, int)
A3(cudaStreamCreateWithPriority, cudaStream_t *, unsigned, int)
A1(cudaStreamDestroy, cudaStream_t)
A1(cudaStreamSynchronize, cudaStream_t)
A1(cudaStreamQuery, cudaStream_t)
A3(cudaStreamWaitEvent, cudaStream_t, cudaEvent_t, unsigned)
A2(cudaStreamGetPriority, cudaStream_t, int *)
A2(cudaStreamIsCapturing, cudaStream_t, cudaStreamCaptureStatus *)
A3(cudaLaunchHostFunc, cudaStream_t, cudaHostFn_t, void *)
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned flags) {
  if (flags) { windtunnel::last = cudaErrorInvalidValue; return cudaErrorInvalidValue; }
  auto *whole = new std::function<void()>([=] { call(stream, cudaSuccess, data); });
  return cudaLaunchHostFunc(stream, [](void *given) {
    auto *own = (std::function<void()> *)given;
    (*own)();
    delete own;
  }, whole);
}
A2(cudaEventCreateWithFlags, cudaEvent_t *, unsigned)
A1(cudaEventDestroy, cudaEvent_t)
A2(cudaEventRecord, cudaEvent_t, cudaStream_t)
A1(cudaEventQuery, cudaEvent_t)
A1(cudaEventSynchronize, cudaEvent_t)
A3(cudaEventElapsedTime, float *, cudaEvent_t, cudaEvent_t)
A2(cudaMalloc, void **, size_t)
A1(cudaFree, void *)
A3(cudaMallocAsync, void **, size_t, cudaStream_t)
A2(cudaFreeAsync, void *, cudaStream_t)
A3(cudaMallocManaged, void **, size_t, unsigned)
A2(cudaMallocHost, void **, size_t)
A1(cudaFreeHost, void *)
A3(cudaHostRegister, void *, size_t, unsigned)
A1(cudaHostUnregister, void *)
A4(cudaMemcpy, void *, const void *, size_t, cudaMemcpyKind)
A5(cudaMemcpyAsync, void *, const void *, size_t, cudaMemcpyKind, cudaStream_t)
A3(cudaMemset, void *, int, size_t)
A4(cudaMemsetAsync, void *, int, size_t, cudaStream_t)
A2(cudaMemGetInfo, size_t *, size_t *)
A2(cudaPointerGetAttributes, cudaPointerAttributes *, const void *)
A2(cudaGetSymbolAddress, void **, const void *)
A2(cudaGetSymbolSize, size_t *, const void *)
cudaError_t cudaDeviceSynchronize() { return ask("cudaDeviceSynchronize"); }
cudaError_t cudaDeviceReset() { return ask("cudaDeviceSynchronize"); }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int threads, size_t shared, unsigned) { return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, threads, shared); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *f) {
  long long found[4] = {};
  std::memset(a, 0, sizeof(*a));
  auto error = ask("function_facts", f, found);
  a->sharedSizeBytes = found[0]; a->maxThreadsPerBlock = (int)found[1]; a->numRegs = (int)found[2]; a->maxDynamicSharedSizeBytes = (int)found[3];
  a->ptxVersion = a->binaryVersion = 80;
  return error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  long long n[20] = {};
  std::memset(p, 0, sizeof(*p));
  auto error = ask("device_facts", n, p->name, (long long)sizeof(p->name), device);
  p->totalGlobalMem = n[0]; p->sharedMemPerBlock = n[1]; p->regsPerBlock = p->regsPerMultiprocessor = (int)n[2]; p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535; p->clockRate = (int)n[3]; p->totalConstMem = 65536;
  p->major = (int)n[4]; p->minor = (int)n[5]; p->multiProcessorCount = (int)n[6]; p->memoryClockRate = (int)n[7]; p->memoryBusWidth = (int)n[8];
  p->l2CacheSize = (int)n[9]; p->maxThreadsPerMultiProcessor = (int)n[10]; p->sharedMemPerMultiprocessor = n[11]; p->sharedMemPerBlockOptin = n[12];
  p->reservedSharedMemPerBlock = 1024; p->maxBlocksPerMultiProcessor = 32; p->unifiedAddressing = p->managedMemory = p->concurrentKernels = p->canMapHostMemory = 1;
  p->cooperativeLaunch = p->streamPrioritiesSupported = p->concurrentManagedAccess = p->computePreemptionSupported = 1; p->asyncEngineCount = 3; p->memPitch = 2147483647; p->textureAlignment = 512;
  return error;
}

// ---------------------------------------------------------------- what comes to one of the others, or to nothing
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return cudaMallocHost(p, n); }
cudaError_t cudaHostGetDevicePointer(void **p, void *h, unsigned) { *p = h; return cudaSuccess; }
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t w, size_t h) { *pitch = (w + 511) / 512 * 512; return cudaMalloc(p, *pitch * h); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *, const cudaGraphNode_t **, size_t *) { if (id) *id = 1; return cudaStreamIsCapturing(s, status); }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaMemcpyPeerAsync(void *d, int, const void *s, int, size_t n, cudaStream_t st) { return cudaMemcpyAsync(d, s, n, cudaMemcpyDeviceToDevice, st); }
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, cudaMemcpyKind k, cudaStream_t st) {
  if (dp == w && sp == w) return cudaMemcpyAsync(d, s, w * h, k, st);
  for (size_t i = 0; i < h; i++) if (auto e = cudaMemcpyAsync((char *)d + i * dp, (const char *)s + i * sp, w, k, st)) return e;
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, cudaMemcpyKind k) { auto e = cudaMemcpy2DAsync(d, dp, s, sp, w, h, k, 0); return e ? e : cudaStreamSynchronize(0); }
cudaError_t cudaMemset2D(void *p, size_t pitch, int v, size_t w, size_t h) {
  for (size_t i = 0; i < h; i++) if (auto e = cudaMemset((char *)p + i * pitch, v, w)) return e;
  return cudaSuccess;
}
static void *symbol(const void *s, size_t offset) { void *p = nullptr; return cudaGetSymbolAddress(&p, s) ? nullptr : (char *)p + offset; }
cudaError_t cudaMemcpyToSymbol(const void *s, const void *from, size_t n, size_t offset, cudaMemcpyKind k) { auto p = symbol(s, offset); return p ? cudaMemcpy(p, from, n, k) : cudaErrorInvalidSymbol; }
cudaError_t cudaMemcpyToSymbolAsync(const void *s, const void *from, size_t n, size_t offset, cudaMemcpyKind k, cudaStream_t st) { auto p = symbol(s, offset); return p ? cudaMemcpyAsync(p, from, n, k, st) : cudaErrorInvalidSymbol; }
cudaError_t cudaMemcpyFromSymbol(void *to, const void *s, size_t n, size_t offset, cudaMemcpyKind k) { auto p = symbol(s, offset); return p ? cudaMemcpy(to, p, n, k) : cudaErrorInvalidSymbol; }
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *s, size_t n, size_t offset, cudaMemcpyKind k, cudaStream_t st) { auto p = symbol(s, offset); return p ? cudaMemcpyAsync(to, p, n, k, st) : cudaErrorInvalidSymbol; }
#define NOTHING(NAME, ...) cudaError_t NAME(__VA_ARGS__) { return cudaSuccess; }
NOTHING(cudaFuncSetCacheConfig, const void *, cudaFuncCache)
NOTHING(cudaFuncSetSharedMemConfig, const void *, cudaSharedMemConfig)
NOTHING(cudaDeviceSetCacheConfig, cudaFuncCache)
NOTHING(cudaDeviceSetSharedMemConfig, cudaSharedMemConfig)
NOTHING(cudaDeviceSetLimit, cudaLimit, size_t)
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned) { return ask("cudaDeviceEnablePeerAccess", device); }
NOTHING(cudaDeviceDisablePeerAccess, int)
NOTHING(cudaSetDeviceFlags, unsigned)
NOTHING(cudaMemPrefetchAsync, const void *, size_t, int, cudaStream_t)
NOTHING(cudaMemAdvise, const void *, size_t, cudaMemoryAdvise, int)
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *n, cudaLimit) { *n = 8 << 20; return cudaSuccess; }
}
