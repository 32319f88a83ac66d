// https://github.com/lightseekorg/tokenspeed/pull/683: rows of a length that four does not divide, read by fours.
// <<<3, 32>>>(float[303], float[3]=0, 101)
template <bool Right> __device__ void largest(const float *p, float *out, int columns) {
  const float *row = p + blockIdx.x * columns;
  float best = 0.f;
  int whole = columns / 4, head = Right ? (4 - blockIdx.x * columns % 4) % 4 : 0;
  if (head) whole = (columns - head) / 4;
  for (int i = threadIdx.x; i < whole; i += 32) {
    float4 v = reinterpret_cast<const float4 *>(row + head)[i];  // fault: misaligned
    best = fmaxf(best, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  for (int i = threadIdx.x; i < head; i += 32) best = fmaxf(best, row[i]);
  for (int i = head + 4 * whole + threadIdx.x; i < columns; i += 32) best = fmaxf(best, row[i]);
  for (int k = 16; k > 0; k /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, k));
  if (threadIdx.x == 0) out[blockIdx.x] = best;
}
__global__ void faulty(const float *p, float *out, int columns) { largest<false>(p, out, columns); }
__global__ void right(const float *p, float *out, int columns) { largest<true>(p, out, columns); }
