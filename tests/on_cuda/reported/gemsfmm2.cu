// https://github.com/barbagroup/gemsfmm/issues/2: an index of twice the expansion's order into a table of its square.
// <<<1, 64>>>(float[64], float[64]=0)
constexpr int ORDER = 10;
template <int Size> __device__ void translate(const float *x, float *y) {
  __shared__ float table[Size];
  for (int i = threadIdx.x; i < Size; i += blockDim.x) table[i] = x[i % 64];
  __syncthreads();
  float sum = 0;
  for (int j = 0; j < ORDER; j++) {
    int n = threadIdx.x % ORDER, at = (j + n) * (j + n) + j + n;
    sum += table[at];  // fault: shared-out-of-bounds
  }
  y[threadIdx.x] = sum;
}
__global__ void faulty(const float *x, float *y) { translate<ORDER * ORDER>(x, y); }
__global__ void right(const float *x, float *y) { translate<4 * ORDER * ORDER>(x, y); }
