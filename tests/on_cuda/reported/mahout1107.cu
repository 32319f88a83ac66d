// https://github.com/apache/mahout/issues/1107: samples of odd length: from the second on, double2 lies askew.
// <<<3, 32>>>(double[99], double[3]=0, 33)
__device__ double warp_sum(double sum) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  return sum;
}
__global__ void faulty(const double *batch, double *norms, int length) {
  const double *sample = batch + blockIdx.x * length;
  double sum = 0;
  for (int i = threadIdx.x; i < length / 2; i += 32) {
    double2 two = reinterpret_cast<const double2 *>(sample)[i];  // fault: misaligned
    sum += two.x * two.x + two.y * two.y;
  }
  if (threadIdx.x == 0 && length % 2) sum += sample[length - 1] * sample[length - 1];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}
__global__ void right(const double *batch, double *norms, int length) {
  const double *sample = batch + blockIdx.x * length;
  bool whole = reinterpret_cast<unsigned long long>(sample) % 16 == 0;
  double sum = 0;
  for (int i = threadIdx.x; i < length / 2; i += 32) {
    double2 two = whole ? reinterpret_cast<const double2 *>(sample)[i] : make_double2(sample[2 * i], sample[2 * i + 1]);
    sum += two.x * two.x + two.y * two.y;
  }
  if (threadIdx.x == 0 && length % 2) sum += sample[length - 1] * sample[length - 1];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}
