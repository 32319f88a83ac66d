// https://github.com/AyakaGEMM/Hands-on-GEMM/issues/11: misaligned address.
// <<<1, 32>>>(float[256], float[32])
template <int Width> __device__ void transpose(const float *x, float *y) {
  __shared__ float tile[8][Width];
  int t = threadIdx.x;
  for (int j = 0; j < 8; j++) tile[j][t] = x[32 * j + t];
  __syncthreads();
  float4 v = reinterpret_cast<float4 *>(&tile[t % 8][4 * (t / 8)])[0];  // fault: misaligned
  y[t] = v.x + v.y + v.z + v.w;
}
__global__ void faulty(const float *x, float *y) { transpose<33>(x, y); }
__global__ void right(const float *x, float *y) { transpose<36>(x, y); }
