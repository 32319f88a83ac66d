// https://github.com/JustVugg/colibri/issues/1099: lanes read what store_matrix_sync of others wrote (racecheck).
// <<<1, 32>>>(half[256], half[256], float[256])
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
template <bool Waits> __device__ void product(const __half *a, const __half *b, float *o) {
  __shared__ float tile[256];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 0.f);
  wmma::load_matrix_sync(x, a, 16);
  wmma::load_matrix_sync(y, b, 16);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(tile, z, 16, wmma::mem_row_major);
  if (Waits) __syncwarp();
  for (int i = threadIdx.x; i < 256; i += 32) o[i] = tile[i] * 2;  // fault: warp-race
}
__global__ void faulty(const __half *a, const __half *b, float *o) { product<false>(a, b, o); }
__global__ void right(const __half *a, const __half *b, float *o) { product<true>(a, b, o); }
