// https://github.com/kaldi-asr/kaldi/issues/3036: race in _sum_reduce of a block of three threads.
// <<<3, 3>>>(float[9], float[3])
template <bool Waits> __device__ float sum_reduce(float *buffer) {
  int threads = blockDim.x;
  while (threads > 1) {
    int half = (threads + 1) / 2;
    float temp = threadIdx.x >= half && threadIdx.x < threads ? buffer[threadIdx.x] : 0;
    if (Waits) __syncthreads();
    if (threadIdx.x >= half && threadIdx.x < threads) buffer[threadIdx.x - half] += temp;
    if (Waits) __syncthreads();
    threads = half;
  }
  return buffer[0];  // fault: warp-race
}
template <bool Waits> __device__ void total(const float *x, float *o) {
  __shared__ float buffer[3];
  buffer[threadIdx.x] = x[blockIdx.x * 3 + threadIdx.x];
  __syncthreads();
  float sum = sum_reduce<Waits>(buffer);
  if (threadIdx.x == 0) o[blockIdx.x] = sum;
}
__global__ void faulty(const float *x, float *o) { total<false>(x, o); }
__global__ void right(const float *x, float *o) { total<true>(x, o); }
