// https://github.com/ORNL/HeCBench/issues/112: the columns of a box filter go past the picture's last row.
// <<<1, 32>>>(int[320], int[320])
template <bool Inside> __device__ void columns(const int *in, int *out, int width, int height, int radius) {
  int x = threadIdx.x, sum = 0;
  for (int y = -radius; y <= radius; y++) sum += in[(y < 0 ? 0 : y) * width + x];
  for (int y = 0; y < height; y++) {
    out[y * width + x] = sum / (2 * radius + 1);
    int next = y + radius + 1, last = y - radius;
    if (Inside && next > height - 1) next = height - 1;
    sum += in[next * width + x];  // fault: out-of-bounds
    sum -= in[(last < 0 ? 0 : last) * width + x];
  }
}
__global__ void faulty(const int *in, int *out) { columns<false>(in, out, 32, 10, 3); }
__global__ void right(const int *in, int *out) { columns<true>(in, out, 32, 10, 3); }
