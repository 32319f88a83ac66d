"""What other libraries ask of a tensor on a device, and PyTorch's switches of its own libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from windtunnel.session import Session


def test_the_array_interface_is_pytorchs(session: Session) -> None:
    x = torch.arange(6, device="cuda").view(2, 3)
    interface = x.t().__cuda_array_interface__
    assert (interface["typestr"], interface["shape"], interface["strides"]) == ("<i8", (3, 2), (8, 24))
    assert interface["data"] == (x.data_ptr(), False)
    assert not hasattr(torch.zeros(1), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="on Variable that requires grad"):
        _ = torch.zeros(1, device="cuda", requires_grad=True).__cuda_array_interface__
    with pytest.raises(AttributeError, match=r"on sparse type: torch\.cuda\.sparse\.FloatTensor"):
        _ = torch.eye(2, device="cuda").to_sparse().__cuda_array_interface__


def test_numpy_refuses_devices(session: Session) -> None:
    x = torch.ones(3, device="cuda:1")
    for read in (np.asarray, np.array, torch.Tensor.numpy):
        with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
            read(x)
    with pytest.raises((BufferError, RuntimeError), match="Unsupported device in DLTensor"):
        np.from_dlpack(x)
    assert np.from_dlpack(torch.ones(3)).sum() == 3
    assert x.__dlpack_device__() == (2, 1)


def test_preferred_libraries_can_be_chosen(session: Session) -> None:
    cuda = torch.backends.cuda
    before = cuda.preferred_linalg_library()
    assert cuda.preferred_linalg_library("cusolver") == torch._C._LinalgBackend.Cusolver
    assert cuda.preferred_linalg_library() == torch._C._LinalgBackend.Cusolver
    cuda.preferred_linalg_library("default")
    assert cuda.preferred_linalg_library() == before
    assert cuda.preferred_blas_library("cublaslt") == torch._C._BlasBackend.Cublaslt


def test_attention_backends_can_be_chosen(session: Session) -> None:
    q = torch.ones(1, 2, 4, 8, device="cuda")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.nn.functional.scaled_dot_product_attention(q, q, q).is_cuda
    assert torch.backends.cuda.flash_sdp_enabled()


def test_peers_and_the_runtime(session: Session) -> None:
    assert torch.cuda.can_device_access_peer(0, 1)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.cuda.can_device_access_peer(0, 5)
    runtime = torch.cuda.cudart()
    assert runtime is not None
    free, total = runtime.cudaMemGetInfo(0)
    assert 0 < free < total
    torch.cuda.check_error(0)
    with pytest.raises(torch.cuda.CudaError):
        torch.cuda.check_error(2)


def test_an_array_of_another_library_is_a_tensor_again(session: Session) -> None:
    class Library:
        def __init__(self, x: object) -> None:
            self.x: Any = x

        @property
        def __cuda_array_interface__(self) -> object:
            return self.x.__cuda_array_interface__

    x = torch.arange(6, device="cuda:1").view(2, 3)
    shared = torch.as_tensor(Library(x.t()[1:]))
    assert (str(shared.device), shared.tolist()) == ("cuda:1", [[1, 4], [2, 5]])
    shared[0, 0] = 9
    assert x[0, 1].item() == 9
    assert str(torch.tensor(Library(x), device="cuda:0").device) == "cuda:0"
    with pytest.raises(RuntimeError, match="not registered with any CUDA device"):
        torch.as_tensor(Library(Stranger()))


class Stranger:
    """What shows an address of nobody's."""

    @property
    def __cuda_array_interface__(self) -> object:
        return {"shape": (1,), "typestr": "<f4", "data": (16, False), "version": 2}
