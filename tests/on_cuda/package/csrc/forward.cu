#include "common.cuh"
__constant__ float bias_table[2];
template <typename T> __global__ void __launch_bounds__(256) forward_kernel(const T *__restrict__ x, T *__restrict__ y, float *__restrict__ scale, int cols) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  float s = 0;
  for (int c = threadIdx.x; c < cols; c += 32) { float v = x[row * cols + c]; s += v * v; }
  s = rsqrtf(warp_sum(s) / cols + bias_table[0]);
  if (threadIdx.x == 0) scale[row] = s;
  for (int c = threadIdx.x; c < cols; c += 32) y[row * cols + c] = static_cast<T>(static_cast<float>(x[row * cols + c]) * s + bias_table[1]);
}
std::tuple<at::Tensor, at::Tensor> forward_cuda(const at::Tensor &x) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty_like(x);
  auto scale = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const float table[2] = {1e-6f, 0.25f};
  auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaMemcpyToSymbolAsync(bias_table, table, sizeof(table), 0, cudaMemcpyHostToDevice, stream));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "forward", [&] {
    forward_kernel<scalar_t><<<x.size(0) / 4, dim3(32, 4), 0, stream>>>(x.const_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(), scale.mutable_data_ptr<float>(), x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {y, scale};
}
