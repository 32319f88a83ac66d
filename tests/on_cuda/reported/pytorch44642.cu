// https://github.com/pytorch/pytorch/pull/44642: two halves are added at once, from an odd element of a tensor that begins at one.
// <<<1, 32>>>(half[66]=0, 64)
#include <cuda_fp16.h>
template <bool Right> __device__ void add(half *tensor, int index, int count, half value) {
  bool odd = Right ? (size_t)(tensor + index) % sizeof(half2) : index % 2;
  if (!odd && index < count - 1)
    atomicAdd((half2 *)(tensor + index), __halves2half2(value, __int2half_rn(0)));  // fault: misaligned
  else if (odd && index > 0)
    atomicAdd((half2 *)(tensor + index - 1), __halves2half2(__int2half_rn(0), value));
  else
    atomicAdd(tensor + index, value);
}
__global__ void faulty(half *y, int count) { add<false>(y + 1, 2 * threadIdx.x, count, __int2half_rn(1)); }
__global__ void right(half *y, int count) { add<true>(y + 1, 2 * threadIdx.x, count, __int2half_rn(1)); }
