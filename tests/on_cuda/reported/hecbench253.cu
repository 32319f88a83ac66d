// https://github.com/ORNL/HeCBench/issues/253: the next tile overwrites what threads still read.
// <<<2, 256>>>(float[1024], float[512]=0, 1024)
__global__ void faulty(const float *surfels, float *out, int n) {
  __shared__ float tile[256];
  float sum = 0;
  for (int first = 0; first < n; first += 256) {
    tile[threadIdx.x] = surfels[first + threadIdx.x];  // fault: shared-race
    __syncthreads();
    for (int i = 0; i < 256; i++) sum += tile[i] * threadIdx.x;
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
__global__ void right(const float *surfels, float *out, int n) {
  __shared__ float tile[256];
  float sum = 0;
  for (int first = 0; first < n; first += 256) {
    tile[threadIdx.x] = surfels[first + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 256; i++) sum += tile[i] * threadIdx.x;
    __syncthreads();
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
