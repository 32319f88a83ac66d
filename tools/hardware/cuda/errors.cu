// What CUDA's runtime says of launches and kernels that are wrong: a mode a process, since most break the context.
// Prints what each call gives: the launch, the synchronization after it, the next call.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void empty() {}
__global__ void write(float *p, long at) { p[at + threadIdx.x] = 1.f; }
__global__ void misaligned(char *p) { *reinterpret_cast<float *>(p + 1) = 1.f; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void fails(int n) { assert(n < 0); }
__global__ void shared_beyond(float *p, int at) { __shared__ float s[32]; s[threadIdx.x] = 1.f; __syncthreads(); p[0] = s[at]; }
__global__ void dynamic(float *p) { extern __shared__ float s[]; s[threadIdx.x] = 1.f; p[threadIdx.x] = s[threadIdx.x]; }
__global__ void null_read(const float *p, float *q) { q[0] = p[0]; }
__global__ void __launch_bounds__(64) bounded() {}
__device__ __noinline__ float down(int n) { volatile float x[1000]; x[n % 1000] = n; return n ? down(n - 1) + x[(n + 1) % 1000] : x[0]; }
__global__ void deep(int n, float *p) { p[0] = down(n); }
__global__ void print() { printf("thread %d of %d\n", threadIdx.x, blockDim.x); }
__global__ void divide(int *p, int n) { p[0] = 7 / n; p[1] = 7 % n; }
__global__ void slow(long cycles) { long begin = clock64(); while (clock64() - begin < cycles); }

static void say(const char *what, cudaError_t code) { printf("%s: %d %s: %s\n", what, (int)code, cudaGetErrorName(code), cudaGetErrorString(code)); }
static void after() {
  say("launch", cudaGetLastError()), say("again", cudaGetLastError()), say("synchronize", cudaDeviceSynchronize());
  say("last", cudaGetLastError());
  float *q = nullptr;
  say("malloc", cudaMalloc(&q, 16)), say("free", cudaFree(q));
}

int main(int count, char **words) {
  int mode = atoi(words[1]);
  float *p = nullptr;
  cudaMalloc(&p, 1 << 20);
  switch (mode) {
  case 0: empty<<<1, 1025>>>(); break;
  case 1: empty<<<0, 32>>>(); break;
  case 2: empty<<<dim3(1, 65536), 32>>>(); break;
  case 3: empty<<<1, dim3(1, 1, 65)>>>(); break;
  case 4: dynamic<<<1, 32, 100 << 10>>>(p); break;
  case 5: dynamic<<<1, 32, 300 << 10>>>(p); break;
  case 6: say("set 200 KB", cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10)); dynamic<<<1, 32, 200 << 10>>>(p); break;
  case 7: say("set 300 KB", cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10)); break;
  case 8: write<<<1, 32>>>(p, 1L << 40); break;
  case 9: write<<<1, 32>>>(p, 1L << 18); break;
  case 10: misaligned<<<1, 1>>>((char *)p); break;
  case 11: trap<<<1, 1>>>(); break;
  case 12: fails<<<2, 2>>>(1); break;
  case 13: shared_beyond<<<1, 32>>>(p, 1 << 16); break;
  case 14: null_read<<<1, 1>>>(nullptr, p); break;
  case 15: bounded<<<1, 128>>>(); break;
  case 16: deep<<<1, 1>>>(100000, p); break;
  case 17: print<<<1, 3>>>(); break;
  case 18: { divide<<<1, 1>>>((int *)p, 0); int v[2]; say("copy", cudaMemcpy(v, p, 8, cudaMemcpyDeviceToHost)); printf("7 / 0 = %d, 7 %% 0 = %d\n", v[0], v[1]); break; }
  case 19: { float host = 0; null_read<<<1, 1>>>(&host, p); break; }
  case 20: say("memcpy beyond", cudaMemcpy(p, p, 1L << 30, cudaMemcpyDeviceToDevice)); break;
  case 21: say("free twice", cudaFree(p)), say("free twice", cudaFree(p)); break;
  case 22: say("set device", cudaSetDevice(7)); break;
  case 23: { cudaStream_t s; cudaStreamCreate(&s); cudaStreamDestroy(s); empty<<<1, 1, 0, s>>>(); break; }
  case 24: { cudaEvent_t a, b; cudaEventCreate(&a), cudaEventCreate(&b); float ms; say("elapsed of none", cudaEventElapsedTime(&ms, a, b)); cudaEventRecord(a); slow<<<1, 1>>>(100000000); cudaEventRecord(b); say("query", cudaEventQuery(b)); say("elapsed early", cudaEventElapsedTime(&ms, a, b)); break; }
  case 25: { cudaStream_t s; cudaStreamCreate(&s); cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal); say("synchronize in capture", cudaStreamSynchronize(s)); cudaGraph_t g; say("end", cudaStreamEndCapture(s, &g)); break; }
  case 26: { cudaStream_t s; cudaStreamCreate(&s); cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal); float *q; say("malloc in capture", cudaMalloc(&q, 4)); empty<<<1, 1>>>(); say("default stream in capture", cudaGetLastError()); cudaGraph_t g; say("end", cudaStreamEndCapture(s, &g)); break; }
  case 27: { void *q; say("malloc of 1 TB", cudaMalloc(&q, 1L << 40)); break; }
  case 28: { cudaPointerAttributes a; int host; say("attributes of the host", cudaPointerGetAttributes(&a, &host)); printf("type %d\n", (int)a.type); break; }
  case 29: { void *arguments[] = {&p}; say("cooperative", cudaLaunchCooperativeKernel((void *)dynamic, dim3(100000), dim3(1024), arguments, 0, 0)); break; }
  case 30: say("unknown function", cudaFuncSetAttribute((void *)main, cudaFuncAttributeMaxDynamicSharedMemorySize, 1)); break;
  default: return 3;
  }
  after();
  (void)count;
  return 0;
}
