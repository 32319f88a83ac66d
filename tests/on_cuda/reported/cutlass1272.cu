// https://github.com/NVIDIA/cutlass/issues/1272: vectors of columns that are 129 floats apart.
// <<<2, 128>>>(float[1032], float[1032]=0, 129)
__global__ void faulty(const float *a, float *b, int lda) {
  const int column = blockIdx.x * 4 + threadIdx.x / 32, row = threadIdx.x % 32 * 4;
  const float4 v = *reinterpret_cast<const float4 *>(a + column * lda + row);  // fault: misaligned
  float *to = b + column * lda + row;
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__global__ void right(const float *a, float *b, int lda) {
  const int column = blockIdx.x * 4 + threadIdx.x / 32, row = threadIdx.x % 32 * 4;
  const float *from = a + column * lda + row;
  float *to = b + column * lda + row;
  if (lda % 4 == 0) {
    *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
  } else {
    for (int i = 0; i < 4; i++) to[i] = from[i];
  }
}
