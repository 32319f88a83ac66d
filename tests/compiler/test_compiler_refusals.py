"""What clang says of CUDA's libraries becomes a sentence."""

from __future__ import annotations

import re

import pytest

from windtunnel.compiler.clang import REFUSED


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("error: unknown type name 'cublasLtMatmulDesc_t'", "cuBLAS, cuDNN, cuFFT, NCCL"),
        ("fatal error: 'nccl.h' file not found", "cuBLAS, cuDNN, cuFFT, NCCL"),
        ("error: use of undeclared identifier 'cudaGraphInstantiate'", "graphs that host code builds"),
        ("error: use of undeclared identifier 'cudaDeviceGetDefaultMemPool'", "pools with settings of their own"),
    ],
)
def test_what_is_not_emulated_is_named(said: str, sentence: str) -> None:
    (found,) = [reason for pattern, reason in REFUSED if re.search(pattern, said)]
    assert sentence in found
