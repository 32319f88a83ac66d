#include <Python.h>
#include <torch/library.h>
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/ATen.h>
std::tuple<at::Tensor, at::Tensor> forward_cuda(const at::Tensor &x);
at::Tensor backward_cuda(const at::Tensor &g, const at::Tensor &x, const at::Tensor &scale);
extern "C" PyObject *PyInit__ops(void) {
  static PyModuleDef def = {PyModuleDef_HEAD_INIT, "_ops", nullptr, -1, nullptr};
  return PyModule_Create(&def);
}
struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(torch::autograd::AutogradContext *context, const at::Tensor &x) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [y, scale] = forward_cuda(x.contiguous());
    context->save_for_backward({x, scale});
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext *context, torch::autograd::tensor_list gradients) {
    auto saved = context->get_saved_variables();
    return {backward_cuda(gradients[0].contiguous(), saved[0].contiguous(), saved[1])};
  }
};
at::Tensor norm(const at::Tensor &x) { return std::get<0>(forward_cuda(x.contiguous())); }
at::Tensor norm_autograd(const at::Tensor &x) { return Norm::apply(x); }
TORCH_LIBRARY(fused, m) { m.def("norm(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(fused, CUDA, m) { m.impl("norm", &norm); }
TORCH_LIBRARY_IMPL(fused, AutogradCUDA, m) { m.impl("norm", &norm_autograd); }
