// https://github.com/beehive-lab/TornadoVM/issues/1088: a thread's array that Java fills with zeros has none.
// <<<1, 32>>>(float[32]=0, 8)
__device__ float sum_of(float *own, int n) {
  for (int i = 0; i < n; i++) own[i] = own[i] + 1.0f;
  float sum = 0;
  for (int i = 0; i < n; i++) sum += own[i];
  return sum;
}
__global__ void faulty(float *out, int n) {
  float own[8];  // fault: uninitialized-read
  out[threadIdx.x] = sum_of(own, n);
}
__global__ void right(float *out, int n) {
  float own[8] = {0};
  out[threadIdx.x] = sum_of(own, n);
}
