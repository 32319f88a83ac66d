// https://github.com/apache/tvm/issues/8540: two halves at once, from an odd element.
// <<<1, 1>>>(half[2]=0, half[3])
#include <cuda_fp16.h>
__global__ void faulty(half *y, const half *x) {
  ((uint1 *)(y + threadIdx.x * 2))[0] = ((uint1 *)(x + threadIdx.x * 3 + 1))[0];  // fault: misaligned
}
__global__ void right(half *y, const half *x) {
  for (int i = 0; i < 2; i++) y[threadIdx.x * 2 + i] = x[threadIdx.x * 3 + 1 + i];
}
