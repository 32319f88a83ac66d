// https://github.com/pytorch/pytorch/pull/175984: a half is changed by a compare and swap of its word, half of which is behind the tensor.
// <<<1, 33>>>(half[33]=0)
#include <cuda_fp16.h>
__device__ void add_by_words(half *address, half value) {
  unsigned *word = (unsigned *)((size_t)address & ~(size_t)2), old = *word, seen;  // fault: out-of-bounds
  bool upper = (size_t)address & 2;
  do {
    seen = old;
    half sum = __hadd(__ushort_as_half(upper ? seen >> 16 : seen & 0xffff), value);
    unsigned bits = __half_as_ushort(sum);
    old = atomicCAS(word, seen, upper ? (seen & 0xffff) | bits << 16 : (seen & 0xffff0000) | bits);
  } while (old != seen);
}
__device__ void add_by_halves(half *address, half value) {
  unsigned short *place = (unsigned short *)address, old = *(volatile unsigned short *)place, seen;
  do {
    seen = old;
    old = atomicCAS(place, seen, __half_as_ushort(__hadd(__ushort_as_half(seen), value)));
  } while (old != seen);
}
__global__ void faulty(half *y) { add_by_words(y + threadIdx.x, __int2half_rn(1)); }
__global__ void right(half *y) { add_by_halves(y + threadIdx.x, __int2half_rn(1)); }
