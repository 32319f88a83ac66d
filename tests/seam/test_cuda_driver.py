"""CUDA's driver through ctypes, as scripts ask it for the GPUs of a machine."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p

import pytest
import torch

from windtunnel.machine.device import uuid_of
from windtunnel.session import Session, emulate

NOT_INITIALIZED, INVALID_DEVICE, NO_DEVICE = 3, 101, 100


def open_driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def test_the_driver_is_asked_after_its_initialization(session: Session) -> None:
    cuda, count = open_driver(), c_int(-1)
    assert cuda.cuDeviceGetCount(byref(count)) == NOT_INITIALIZED
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(byref(count)) == 0
    assert count.value == 2


def test_a_framework_that_used_cuda_has_initialized_it(session: Session) -> None:
    torch.zeros(1, device="cuda")
    count = c_int(-1)
    assert ctypes.cdll.LoadLibrary("libcuda.so").cuDeviceGetCount(byref(count)) == 0
    assert count.value == 2


def test_facts_of_a_device(session: Session) -> None:
    cuda = open_driver()
    cuda.cuInit(0)
    device, major, minor, value, total, version = c_int(), c_int(), c_int(), c_int(), c_size_t(), c_int()
    name, identity = b" " * 100, ctypes.create_string_buffer(16)
    assert cuda.cuDeviceGet(byref(device), 1) == 0
    assert cuda.cuDeviceGetName(c_char_p(name), len(name), device) == 0
    assert name.split(b"\0", 1)[0] == b"Tesla V100-SXM2-16GB"
    assert cuda.cuDeviceComputeCapability(byref(major), byref(minor), device) == 0
    assert (major.value, minor.value) == (7, 0)
    assert cuda.cuDeviceGetAttribute(ctypes.pointer(value), 16, device) == 0
    assert value.value == 80
    assert cuda.cuDeviceTotalMem_v2(byref(total), device) == 0
    assert total.value == torch.cuda.get_device_properties(1).total_memory
    assert cuda.cuDeviceGetUuid(identity, device) == 0
    assert uuid_of("V100-SXM2-16GB", 1).replace("-", "") == "GPU" + identity.raw.hex()
    assert cuda.cuDriverGetVersion(byref(version)) == 0
    assert version.value >= 11000


def test_memory_of_the_current_context(session: Session) -> None:
    cuda = open_driver()
    cuda.cuInit(0)
    context, free, total, text = c_void_p(), c_size_t(), c_size_t(), c_char_p()
    code = cuda.cuMemGetInfo_v2(byref(free), byref(total))
    assert cuda.cuGetErrorString(code, byref(text)) == 0
    assert text.value == b"invalid device context"
    assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
    known = torch.cuda.mem_get_info(0)
    assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    assert (free.value, total.value) == known
    assert cuda.cuCtxDestroy_v2(context) == 0


def test_what_is_not_there(session: Session) -> None:
    cuda, device = open_driver(), c_int()
    cuda.cuInit(0)
    assert cuda.cuDeviceGet(byref(device), 2) == INVALID_DEVICE
    with pytest.raises(AttributeError, match=r"^libcuda\.so\.1: undefined symbol: cuModuleLoad$"):
        cuda.cuModuleLoad()
    assert "libcuda.so.1" in repr(cuda)
    with pytest.raises(OSError, match="libcurand"):
        ctypes.CDLL("libcurand.so.none")


@pytest.mark.parametrize(("visible", "seen"), [("1", 1), ("1,0", 2), ("32", 0), ("0,32,1", 1)])
def test_visible_devices(visible: str, seen: int, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda, count = open_driver(), c_int(-1)
    assert cuda.cuInit(0) == (0 if seen else NO_DEVICE)
    cuda.cuDeviceGetCount(byref(count))
    assert max(count.value, 0) == seen


def test_ctypes_is_put_back() -> None:
    before = vars(ctypes.CDLL)["__init__"], vars(ctypes.CDLL)["__getitem__"]
    with emulate("V100"):
        assert vars(ctypes.CDLL)["__init__"] is not before[0]
    assert (vars(ctypes.CDLL)["__init__"], vars(ctypes.CDLL)["__getitem__"]) == before
