// https://github.com/NVIDIA/Fuser/issues/1552: threads arrive at a barrier in memory that has not begun: it hangs.
// <<<1, 128>>>(float[128], float[128]=0)
__device__ unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void begin(unsigned long long *b, int n) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n) : "memory");
}
__device__ unsigned long long arrive(unsigned long long *b) {
  unsigned long long state;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at(b)) : "memory");  // fault: shared-race
  return state;
}
__device__ void wait(unsigned long long *b, unsigned long long state) {
  int done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(at(b)), "l"(state) : "memory");
}
__global__ void faulty(const float *x, float *y) {
  __shared__ unsigned long long b;
  __shared__ float s[128];
  if (threadIdx.x == 0) begin(&b, 128);
  s[threadIdx.x] = x[threadIdx.x];
  unsigned long long state = arrive(&b);
  wait(&b, state);
  y[threadIdx.x] = s[127 - threadIdx.x];
}
__global__ void right(const float *x, float *y) {
  __shared__ unsigned long long b;
  __shared__ float s[128];
  if (threadIdx.x == 0) begin(&b, 128);
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];
  unsigned long long state = arrive(&b);
  wait(&b, state);
  y[threadIdx.x] = s[127 - threadIdx.x];
}
