"""What CUDA refuses, and in which words: tensors that lie apart, mixed types, operators without a kernel for CUDA.

The texts are those of PyTorch 2.9 and newer: the wrappers of torchgen (`gen_device_check`), and the checks of
aten/src/ATen/native that each case names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tools import ROOT

from windtunnel.seam.torch.plans import native_functions
from windtunnel.session import Session

NEW = torch.__version__ >= "2.9"


def gpu(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, device="cuda", **options)


def host(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


LONG, BOOL = torch.int64, torch.bool
WRAPPED: dict[str, tuple[str, str, str, str, Callable[[], Any]]] = {
    "mm": ("mat2", "cpu", "cuda:0", "wrapper_CUDA_mm", lambda: gpu(2, 2) @ host(2, 2)),
    "mv": ("mat", "cuda:0", "cpu", "wrapper_CUDA_addmv_", lambda: gpu(2, 2) @ host(2)),
    "linear": ("mat1", "cuda:0", "cpu", "wrapper_CUDA_addmm", lambda: torch.nn.Linear(2, 2)(gpu(2, 2))),
    "scatter": ("index", "cpu", "cuda:0", "wrapper_CUDA_scatter_value",
                lambda: gpu(2, 2).scatter(1, host(2, 1, dtype=LONG), 1.0)),
    "scatter in place": ("index", "cpu", "cuda:0", "wrapper_CUDA_scatter__src",
                         lambda: gpu(2, 2).scatter_(1, host(2, 1, dtype=LONG), gpu(2, 1))),
    "masked_scatter": ("mask", "cpu", "cuda:0", "wrapper_CUDA__masked_scatter_",
                       lambda: gpu(2).masked_scatter(host(2, dtype=BOOL), gpu(2))),
    "bucketize": ("boundaries", "cpu", "cuda:0", "wrapper_CUDA_Tensor_bucketize",
                  lambda: torch.bucketize(gpu(2), host(2))),
    "out": ("self", "cuda:0", "cpu", "wrapper_CUDA_mm_out_out", lambda: torch.mm(gpu(2, 2), gpu(2, 2), out=host(2, 2))),
    "stack": ("tensors", "cpu", "cuda:0", "wrapper_CUDA_cat", lambda: torch.stack([gpu(2), host(2)])),
    "sparse": ("mat2", "cpu", "cuda:0", "wrapper_SparseCUDA__mm", lambda: gpu(2, 2).to_sparse() @ host(2, 2)),
    "grid_sample": ("grid", "cpu", "cuda:0", "wrapper_CUDA__grid_sampler_2d",
                    lambda: F.grid_sample(gpu(1, 1, 2, 2), host(1, 2, 2, 2))),
    "embedding_bag": ("indices", "cpu", "cuda:0", "wrapper_CUDA___embedding_bag_forward_only",
                      lambda: F.embedding_bag(host(2, 2, dtype=LONG), gpu(3, 2))),
}  # fmt: skip
"""By operator: the argument that is named, where it lies, where the others do, and the wrapper."""


@pytest.mark.skipif(not NEW, reason="older versions word it otherwise")
@pytest.mark.parametrize("case", WRAPPED.values(), ids=WRAPPED.keys())
def test_the_wrapper_of_a_kernel_names_the_argument(
    session: Session, case: tuple[str, str, str, str, Callable[[], Any]]
) -> None:
    name, place, others, wrapper, call = case
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value) == (
        f"Expected all tensors to be on the same device, but got {name} is on {place}, different from other tensors on "
        f"{others} (when checking argument in method {wrapper})"
    )


@pytest.mark.parametrize("module", [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU])
def test_a_recurrent_layer_wants_a_token(session: Session, module: type[torch.nn.RNNBase]) -> None:
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        module(3, 4).cuda()(gpu(0, 5, 3))


SAID: dict[str, tuple[str, Callable[[], Any]]] = {
    "masked_fill": ("expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
                    lambda: gpu(2).masked_fill(host(2, dtype=BOOL), 0.0)),
    "masked_fill of the host": ("expected self and mask to be on the same device, but got mask on cuda:0 and self on "
                                "cpu", lambda: host(2).masked_fill_(gpu(2, dtype=BOOL), 0.0)),
    "masked_fill with a value": ("masked_fill_: Expected inputs to be on same device",
                                 lambda: host(2).masked_fill(host(2, dtype=BOOL), gpu(1)[0])),
    "meshgrid": ("meshgrid expects all tensors to have the same device",
                 lambda: torch.meshgrid(gpu(2), host(2), indexing="ij")),
    "quantile": ("quantile() q tensor must be on the same device as the input tensor",
                 lambda: torch.quantile(gpu(4), host(2))),
    "multi_dot": ("multi_dot(): all tensors must be on the same device but tensor 0 is on cuda:0 and tensor 1 cpu",
                  lambda: torch.linalg.multi_dot([gpu(2, 2), host(2, 2), gpu(2, 2)])),
    "block_diag": ("torch.block_diag: input tensors must all be on the same device. Input 0 is on device cuda:0 and "
                   "input 1 is on device cpu", lambda: torch.block_diag(gpu(2), host(2))),
    "gradient": ("torch.gradient expected each tensor to be on the same device, but got devices cuda:0 and cpu!",
                 lambda: torch.gradient(gpu(4), spacing=(host(4),))),
    "weight_norm": ("weight_norm: expected v_in and g_in to be on the same device, but v_in is on cuda:0 and g_in is "
                    "on cpu", lambda: torch._weight_norm(gpu(2, 2), host(2, 1))),
    "cholesky_solve": ("Expected b and A to be on the same device, but found b on cuda:0 and A on cpu instead.",
                       lambda: torch.cholesky_solve(gpu(2, 2), host(2, 2))),
    "cholesky_solve into host memory": (
        "cholesky_solve: Expected result and input tensors to be on the same device, but got result on cpu and input "
        "on cuda:0", lambda: torch.cholesky_solve(gpu(2, 2), gpu(2, 2), out=host(2, 2))),
    "add": ("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
            lambda: host(2).add_(gpu(2))),
    "half times float": ("expected mat1 and mat2 to have the same dtype, but got: c10::Half != float",
                         lambda: gpu(2, 2).half() @ gpu(2, 2)),
    "float times half": ("expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
                         lambda: gpu(2, 2) @ gpu(2, 2).half()),
    "softmax": ("\"host_softmax\" not implemented for 'Long'", lambda: gpu(3, dtype=LONG).softmax(0)),
    "log_softmax": ("\"host_softmax\" not implemented for 'Long'", lambda: gpu(2, 3, dtype=LONG).log_softmax(0)),
    "mse_loss": ("\"mse_cuda\" not implemented for 'Long'", lambda: F.mse_loss(gpu(2, dtype=LONG), gpu(2, dtype=LONG))),
    "embedding": ("Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but "
                  "got torch.cuda.FloatTensor instead (while checking arguments for embedding)",
                  lambda: F.embedding(gpu(2), gpu(3, 2))),
    "cross_entropy": ("\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
                      lambda: F.cross_entropy(gpu(2, 3), gpu(2, dtype=torch.int32))),
    "group_norm": ("expected scalar type Half but found Float",
                   lambda: F.group_norm(gpu(2, 2, 2).half(), 1, gpu(2), gpu(2))),
    "narrow_copy": ("narrow(): length must be non-negative.", lambda: torch.narrow_copy(gpu(3), 0, 0, -1)),
    "flash attention": ("FlashAttention only support fp16 and bf16 data type",
                        lambda: torch.ops.aten._flash_attention_forward(
                            *[gpu(1, 2, 1, 8)] * 3, None, None, 2, 2, 0.0, False, False)),
}  # fmt: skip
"""By operator: the whole first line."""


@pytest.mark.parametrize("case", SAID.values(), ids=SAID.keys())
def test_a_check_of_its_own_speaks(session: Session, case: tuple[str, Callable[[], Any]]) -> None:
    with pytest.raises(RuntimeError) as caught:
        case[1]()
    assert str(caught.value).splitlines()[0] == case[0]


def test_the_host_keeps_its_own_words(session: Session) -> None:
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        host(2, 2).half() @ host(2, 2)
    assert F.group_norm(host(2, 2, 2).half(), 1, host(2), host(2)).dtype is torch.float16
    assert torch.histogram(host(4), 2).hist.tolist() == [0, 4]


MISSING: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "histogram": ("histogram.bin_ct", "CUDA", lambda: torch.histogram(gpu(4), 2)),
    "histogramdd": ("_histogramdd_bin_edges", "CUDA", lambda: torch.histogramdd(gpu(4, 2), [2, 2])),
    "to_mkldnn": ("to_mkldnn", "CUDA", lambda: gpu(2, 2).to_mkldnn()),
    "slow_conv3d": ("slow_conv3d_forward", "CUDA",
                    lambda: torch._C._nn.slow_conv3d(gpu(1, 1, 2, 2, 2), gpu(1, 1, 1, 1, 1), 1)),
    "reduction of CSR": ("_sparse_mm_reduce_impl", "SparseCsrCUDA",
                         lambda: torch.sparse.mm(gpu(2, 2).to_sparse_csr(), gpu(2, 2), "sum")),
    "sparse": ("hardswish", "SparseCUDA", lambda: F.hardswish(gpu(2, 2).to_sparse())),
    "quantized": ("tanh", "QuantizedCUDA",
                  lambda: torch.tanh(torch.quantize_per_tensor(gpu(2), 0.1, 0, torch.quint8))),
}  # fmt: skip
"""By operator: its name and the backend that has no kernel for it."""


@pytest.mark.parametrize("case", MISSING.values(), ids=MISSING.keys())
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_what_has_no_kernel_for_cuda_is_refused(session: Session, case: tuple[str, str, Callable[[], Any]]) -> None:
    name, backend, call = case
    with pytest.raises(NotImplementedError) as caught:
        call()
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"Could not run 'aten::{name}' with arguments from the '{backend}' backend. This could be")
    assert f"'aten::{name}' is only available for these backends: [" in first


def test_what_cuda_takes_and_the_host_does_not_runs(session: Session) -> None:
    mask = torch.tensor([[True, False], [False, True]], device="cuda")
    assert torch.abs(mask).equal(mask)
    assert torch.abs(mask, out=torch.zeros_like(mask)).equal(mask)
    assert torch.trace(mask).item() == 2
    assert torch.narrow_copy(torch.arange(4, device="cuda"), 0, 1, 2).tolist() == [1, 2]


BAD: dict[str, Callable[[], Any]] = {
    "bernoulli": lambda: torch.bernoulli(gpu(3) * 2),
    "bernoulli_": lambda: gpu(3).bernoulli_(gpu(3) * 2),
    "poisson": lambda: torch.poisson(-gpu(3)),
}


@pytest.mark.parametrize("call", BAD.values(), ids=BAD.keys())
def test_probabilities_are_checked_in_the_kernel(session: Session, call: Callable[[], Any]) -> None:
    call()
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.synchronize()


def test_the_declarations_are_those_of_the_dispatcher() -> None:
    """PyTorch's dispatcher, which knows the CPU's kernels, has those that native_functions.yaml was read to declare."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    read = {name: native_functions.declared(name) for name in native_functions._blocks() if name in names}
    assert len(read) > 2000
    wrong = [
        name
        for name, found in read.items()
        if found is not None and not found.keys & native_functions.COMPOSITE
        if ("CPU" in found.keys) != has(f"aten::{name}", "CPU")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "kinds", ["kernels", pytest.param("operators,modules,optimizers,types", marks=pytest.mark.weekly)]
)
def test_pytorchs_databases_find_what_they_expect(kinds: str) -> None:
    """In a process of its own: PyTorch's database, once imported, freezes flags of `torch.backends` for good."""
    tool = (sys.executable, "-W", "ignore", "-m", "tools.differential", "operators")
    command = [*tool, "--refusals", "--part", "0/8", "--kinds", kinds]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^(\d+) refusals: 0 differences", done.stdout, re.MULTILINE)[1]) > 3  # type: ignore[index]
