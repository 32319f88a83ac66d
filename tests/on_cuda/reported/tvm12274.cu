// https://github.com/apache/tvm/issues/12274: the largest of 11 lanes takes values of lanes that the mask does not name.
// <<<(4), (11)>>>(float[44], float[4]=empty)
__global__ void faulty(const float *x, float *y) {
  float best = x[blockIdx.x * 11 + threadIdx.x];
  unsigned mask = __activemask();
  for (int step = 8; step; step /= 2) {
    float other = __shfl_down_sync(mask, best, step, 32);  // fault: absent-lane
    best = other > best ? other : best;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = best;
}
__global__ void right(const float *x, float *y) {
  float best = x[blockIdx.x * 11 + threadIdx.x];
  unsigned mask = __activemask();
  for (int step = 8; step; step /= 2) {
    float other = __shfl_down_sync(mask, best, step, 32);
    if (threadIdx.x + step < 11) best = other > best ? other : best;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = best;
}
