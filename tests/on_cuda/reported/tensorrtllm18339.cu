// https://github.com/NVIDIA/TensorRT-LLM/pull/18339: a loop asks for what one thread sets in the next round of it.
// <<<2, 128>>>(int[256], int[2]=0)
template <bool Waits> __device__ void search(const int *x, int *out) {
  __shared__ int count, done;
  int t = threadIdx.x, low = 0, high = 1 << 30;
  int mine = x[blockIdx.x * 128 + t] & (high - 1);
  if (t == 0) count = done = 0;
  __syncthreads();
  for (int round = 0; round < 12 && !done; round++) {  // fault: shared-race
    if (Waits) __syncthreads();
    int middle = low + (high - low) / 2;
    if (mine < middle) atomicAdd(&count, 1);
    __syncthreads();
    int below = count;
    __syncthreads();
    if (below < 64) low = middle;
    else high = middle;
    if (t == 0) {
      count = 0;
      done = below == 64;
    }
    if (Waits || round < 0) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = low;
}
__global__ void faulty(const int *x, int *out) { search<false>(x, out); }
__global__ void right(const int *x, int *out) { search<true>(x, out); }
