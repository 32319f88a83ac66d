// https://github.com/Xtra-Computing/thundersvm/issues/99: two arrays in shared memory, sized by less than the block.
// <<<1, 64>>>(double[64], int[1])
template <int Size> __device__ void smallest(const double *f, int *o) {
  __shared__ int memory[3 * 64];
  int *index = memory, tid = threadIdx.x;
  double *value = reinterpret_cast<double *>(memory + Size);
  value[tid] = f[tid];
  index[tid] = tid;  // fault: shared-race
  __syncthreads();
  for (int n = 32; n; n /= 2) {
    if (tid < n && value[index[tid + n]] < value[index[tid]]) index[tid] = index[tid + n];
    __syncthreads();
  }
  if (tid == 0) *o = index[0];
}
__global__ void faulty(const double *f, int *o) { smallest<8>(f, o); }
__global__ void right(const double *f, int *o) { smallest<64>(f, o); }
