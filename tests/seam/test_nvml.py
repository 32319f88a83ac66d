"""pynvml, unchanged, answered by emulated GPUs."""

from __future__ import annotations

import pynvml
import pytest

from windtunnel import gpus
from windtunnel.reports.parts.smi_data import SmiHost, SmiProcess
from windtunnel.reports.smi import device_of
from windtunnel.seam import nvml


def busy_host(name="V100", driver="460.106.00", cuda="11.2"):
    models = [gpus.find(name)] * 2
    devices = [
        device_of(gpu, i, f"GPU-0000000{i}", driver, (100 + i) << 20, 0.5 * i, 2) for i, gpu in enumerate(models)
    ]
    return SmiHost(tuple(devices), driver, cuda)


@pytest.fixture
def answered(monkeypatch):
    """Installs the answers for a host, and takes them back."""

    def install(host):
        for owner, name, value in nvml.patches(nvml.Nvml(lambda: host)):
            monkeypatch.setattr(owner, name, value)
        pynvml.nvmlInit()
        return host

    return install


def test_questions_before_init_are_refused(monkeypatch):
    for owner, name, value in nvml.patches(nvml.Nvml(busy_host)):
        monkeypatch.setattr(owner, name, value)
    with pytest.raises(pynvml.NVMLError_Uninitialized, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def test_system(answered):
    answered(busy_host())
    assert pynvml.nvmlSystemGetDriverVersion() == "460.106.00"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 11020
    assert pynvml.nvmlSystemGetNVMLVersion().endswith("460.106.00")


def test_handles(answered):
    host = answered(busy_host())
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
    assert pynvml.nvmlDeviceGetUUID(second) == host.devices[1].uuid
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID("GPU-00000001")
    assert pynvml.nvmlDeviceGetIndex(by_uuid) == 1
    by_bus = pynvml.nvmlDeviceGetHandleByPciBusId("0000:00:1C.0")
    assert pynvml.nvmlDeviceGetIndex(by_bus) == 1
    assert pynvml.nvmlDeviceGetIndex(first) == pynvml.nvmlDeviceGetMinorNumber(first) == 0


@pytest.mark.parametrize("index", [2, -1, 99])
def test_a_wrong_index_is_an_invalid_argument(answered, index):
    answered(busy_host())
    with pytest.raises(pynvml.NVMLError_InvalidArgument, match="Invalid Argument"):
        pynvml.nvmlDeviceGetHandleByIndex(index)


def test_unknown_names_are_not_found(answered):
    answered(busy_host())
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlSystemGetProcessName(1)


def test_a_null_handle_is_an_invalid_argument(answered):
    answered(busy_host())
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(pynvml.c_nvmlDevice_t())


def test_device_facts(answered):
    answered(busy_host())
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla V100-SXM2-16GB"
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (7, 0)
    assert pynvml.nvmlDeviceGetArchitecture(handle) == pynvml.NVML_DEVICE_ARCH_VOLTA
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 50
    assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 45
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 300_000
    assert 40_000 < pynvml.nvmlDeviceGetPowerUsage(handle) < 300_000
    assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1530
    assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) == 877
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1530
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 0
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [150_000, 300_000]
    assert pynvml.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == 3
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    assert (pci.busId, pci.domain, pci.bus, pci.device) == ("00000000:00:1C.0", 0, 0, 0x1C)


def test_memory_before_and_since_driver_510(answered):
    answered(busy_host())
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert (memory.total, memory.used) == (16160 << 20, 100 << 20)
    assert memory.free == memory.total - memory.used


def test_memory_that_the_driver_keeps(answered):
    answered(busy_host(driver="535.104.05", cuda="12.2"))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    apart = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert memory.total == apart.total == 16384 << 20
    assert apart.used == 100 << 20
    assert memory.used == apart.used + apart.reserved > apart.used
    assert memory.free == apart.free == apart.total - apart.used - apart.reserved


def test_processes(answered):
    from dataclasses import replace

    host = busy_host()
    with_process = replace(host.devices[0], processes=(SmiProcess(36249, "/usr/bin/python", 97),))
    answered(replace(host, devices=(with_process, host.devices[1])))
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(first)
    assert (process.pid, process.usedGpuMemory) == (36249, 97 << 20)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(second) == []
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(first) == []
    assert pynvml.nvmlSystemGetProcessName(36249) == "/usr/bin/python"


def test_what_nobody_modelled_is_not_supported(answered):
    answered(busy_host())
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for ask in (pynvml.nvmlDeviceGetFanSpeed, pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetTotalEnergyConsumption):
        with pytest.raises(pynvml.NVMLError_NotSupported, match="Not Supported"):
            ask(handle)


def test_names_imported_before_the_emulation_are_answered_too(answered):
    from pynvml import nvmlDeviceGetCount

    answered(busy_host("A100"))
    assert nvmlDeviceGetCount() == 2


def test_answers_follow_the_emulation(monkeypatch):
    now = [busy_host()]
    for owner, name, value in nvml.patches(nvml.Nvml(lambda: now[0])):
        monkeypatch.setattr(owner, name, value)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    now[0] = SmiHost()
    assert pynvml.nvmlDeviceGetCount() == 0


def test_without_the_package_nothing_is_replaced(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.patches(nvml.Nvml(busy_host)) == []
