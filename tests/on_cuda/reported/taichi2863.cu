// https://github.com/taichi-dev/taichi/pull/2863: numbers of several sizes, one behind the other in a buffer.
// <<<1, 1>>>(int[6]=0)
template <bool Right> __device__ void put(int *buffer) {
  char *at = reinterpret_cast<char *>(buffer);
  *reinterpret_cast<int *>(at) = 1;
  *reinterpret_cast<double *>(at + (Right ? 8 : 4)) = 2.0;  // fault: misaligned
}
__global__ void faulty(int *buffer) { put<false>(buffer); }
__global__ void right(int *buffer) { put<true>(buffer); }
