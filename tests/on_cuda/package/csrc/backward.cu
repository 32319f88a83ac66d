#include "common.cuh"
template <typename T> __global__ void backward_kernel(const T *g, const T *x, const float *scale, T *dx, int cols) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  const float s = scale[row];
  float dot = 0;
  for (int c = threadIdx.x; c < cols; c += 32) dot += static_cast<float>(g[row * cols + c]) * static_cast<float>(x[row * cols + c]);
  dot = warp_sum(dot) * s * s * s / cols;
  for (int c = threadIdx.x; c < cols; c += 32) dx[row * cols + c] = static_cast<T>(static_cast<float>(g[row * cols + c]) * s - static_cast<float>(x[row * cols + c]) * dot);
}
at::Tensor backward_cuda(const at::Tensor &g, const at::Tensor &x, const at::Tensor &scale) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto dx = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "backward", [&] {
    backward_kernel<scalar_t><<<x.size(0) / 4, dim3(32, 4), 0, c10::cuda::getCurrentCUDAStream()>>>(g.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), scale.data_ptr<float>(), dx.data_ptr<scalar_t>(), x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return dx;
}
