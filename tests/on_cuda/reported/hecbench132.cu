// https://github.com/ORNL/HeCBench/issues/132: pictures whose sides are no multiples of 4, in blocks of 4 x 4.
// <<<6, 16>>>(int[81], int[96]=0, 9, 9)
__global__ void faulty(const int *image, int *blocks, int width, int height) {
  int across = (width + 3) / 4, x = blockIdx.x % across * 4 + threadIdx.x % 4, y = blockIdx.x / across * 4 + threadIdx.x / 4;
  blocks[blockIdx.x * 16 + threadIdx.x] = image[(y + 4) * width + x];  // fault: out-of-bounds
}
__global__ void right(const int *image, int *blocks, int width, int height) {
  int across = (width + 3) / 4, x = blockIdx.x % across * 4 + threadIdx.x % 4, y = blockIdx.x / across * 4 + threadIdx.x / 4;
  x = min(x, width - 1), y = min(y + 4, height - 1);
  blocks[blockIdx.x * 16 + threadIdx.x] = image[y * width + x];
}
