"""nvidia-smi's answers: the documents' tables, the layouts of other drivers, queries and complaints."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel import gpus
from windtunnel.reports import smi
from windtunnel.reports.parts.smi_data import SmiDevice, SmiHost, SmiProcess

DATA = Path(__file__).parent / "data"
PYTHON = "/home/ci/.venvs/d2l-en-classic-1/bin/python"


def v100(index, temperature, power_w, used, utilization, process=None):
    """A card of the documents' machine."""
    bus = f"00000000:00:{0x1B + index:02X}.0"
    processes = () if process is None else (SmiProcess(*process),)
    name = "Tesla V100-SXM2-16GB"
    return SmiDevice(
        index, name, f"GPU-{index}", bus, 16160, used, utilization, 0, temperature, power_w, 300.0, processes=processes
    )


LISTINGS = {
    "mxnet": SmiHost(
        (
            v100(0, 45, 63, 1784, 12, (36249, PYTHON, 1781)),
            v100(1, 36, 48, 0, 0),
            v100(2, 37, 54, 1752, 11, (36249, PYTHON, 1749)),
            v100(3, 35, 51, 0, 4),
        ),
        time="Sat Nov 12 19:53:16 2022",
    ),
    "pytorch": SmiHost(
        (
            v100(0, 54, 41, 0, 0),
            v100(1, 39, 59, 3376, 0, (65370, PYTHON, 3373)),
            v100(2, 55, 52, 0, 0),
            v100(3, 41, 54, 3284, 0, (65370, PYTHON, 3281)),
        ),
        time="Sat Nov 12 20:46:02 2022",
    ),
    "tensorflow": SmiHost(
        (v100(0, 23, 46, 0, 0), v100(1, 23, 46, 0, 0), v100(2, 23, 49, 0, 0), v100(3, 20, 48, 0, 5)),
        time="Sat Nov 12 21:23:06 2022",
    ),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_the_documents_tables(name):
    """# mission 2, 3, 4: the same characters up to the white space that the documents' copies lost."""
    document = (DATA / f"nvidia_smi_{name}.txt").read_text()
    assert smi.table(LISTINGS[name]).split() == document.split()


def test_the_table_of_driver_460_to_the_character():
    """The lines as a real driver 460.106.00 prints them (a T4 and a GTX 1060, published)."""
    t4 = SmiDevice(0, "Tesla T4", "GPU-0", "00000000:00:08.0", 15109, 4, 0, 0, 33, 9.0, 70.0, persistence=True)
    lines = smi.table(SmiHost((replace(t4, performance_state=8),), time="Mon Nov 22 19:57:00 2021")).split("\n")
    assert lines == [
        "Mon Nov 22 19:57:00 2021       ",
        "+-----------------------------------------------------------------------------+",
        "| NVIDIA-SMI 460.106.00   Driver Version: 460.106.00   CUDA Version: 11.2     |",
        "|-------------------------------+----------------------+----------------------+",
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
        "|                               |                      |               MIG M. |",
        "|===============================+======================+======================|",
        "|   0  Tesla T4            On   | 00000000:00:08.0 Off |                    0 |",
        "| N/A   33C    P8     9W /  70W |      4MiB / 15109MiB |      0%      Default |",
        "|                               |                      |                  N/A |",
        "+-------------------------------+----------------------+----------------------+",
        " " * 79,
        "+-----------------------------------------------------------------------------+",
        "| Processes:                                                                  |",
        "|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |",
        "|        ID   ID                                                   Usage      |",
        "|=============================================================================|",
        "|  No running processes found                                                 |",
        "+-----------------------------------------------------------------------------+",
        "",
    ]


V100 = v100(0, 32, 39, 0, 2)
H200 = SmiDevice(
    0, "NVIDIA H200", "GPU-0", "00000000:19:00.0", 143771, 1, 0, 0, 23, 76.0, 700.0, (9, 0), persistence=True
)


@pytest.mark.parametrize(
    ("driver", "cuda", "device", "expected"),
    [
        (
            "440.33.01",
            "10.2",
            replace(V100, name="Tesla P100-PCIE-16GB", memory_total_mib=16280, power_limit_w=250.0),
            [
                "| NVIDIA-SMI 440.33.01    Driver Version: 440.33.01    CUDA Version: 10.2     |",
                "|   0  Tesla P100-PCIE...  Off  | 00000000:00:1B.0 Off |                    0 |",
                "| N/A   32C    P0    39W / 250W |      0MiB / 16280MiB |      2%      Default |",
                "|  GPU       PID   Type   Process name                             Usage      |",
                "|    0      1557      C   /usr/lib/xorg/Xorg                           190MiB |",
            ],
        ),
        (
            "535.104.05",
            "12.2",
            replace(V100, name="Tesla T4", memory_total_mib=15360, power_limit_w=70.0, power_w=9.0),
            [
                "| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |",
                "|-----------------------------------------+----------------------+----------------------+",
                "|   0  Tesla T4                       Off | 00000000:00:1B.0 Off |                    0 |",
                "| N/A   32C    P0               9W /  70W |      0MiB / 15360MiB |      2%      Default |",
                "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |",
                "|    0   N/A  N/A      1557      C   /usr/lib/xorg/Xorg                          190MiB |",
            ],
        ),
        (
            "550.54.15",
            "12.4",
            replace(V100, name="NVIDIA GeForce RTX 3090", ecc=False, fan_percent=65, compute_capability=(8, 6)),
            [
                "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |",
                "|-----------------------------------------+------------------------+----------------------+",
                "|   0  NVIDIA GeForce RTX 3090        Off |   00000000:00:1B.0 Off |                  N/A |",
                "| 65%   32C    P0             39W /  300W |       0MiB /  16160MiB |      2%      Default |",
                "|                                         |                        |                  N/A |",
                "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |",
            ],
        ),
        (
            "580.65.06",
            "13.0",
            H200,
            [
                "| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |",
                "+-----------------------------------------+------------------------+----------------------+",
                "|   0  NVIDIA H200                    On  |   00000000:19:00.0 Off |                    0 |",
                "| N/A   23C    P0             76W /  700W |       1MiB / 143771MiB |      0%      Default |",
                "|                                         |                        |             Disabled |",
                "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
                "|    0   N/A  N/A            1557      C   /usr/lib/xorg/Xorg                      190MiB |",
            ],
        ),
    ],
)
def test_other_drivers_layouts(driver, cuda, device, expected):
    """Lines as drivers of that branch print them; every line of a table has one width."""
    host = SmiHost((replace(device, processes=(SmiProcess(1557, "/usr/lib/xorg/Xorg", 190),)),), driver, cuda)
    lines = smi.table(host).splitlines()
    assert [line for line in expected if line not in lines] == []
    assert len({len(line) for line in lines[1:] if line.strip()}) == 1


DRIVERS = ["418.39", "460.106.00", "535.104.05", "550.54.15", "580.65.06"]
FITS = [
    (name, driver)
    for name in gpus.names()
    for driver in DRIVERS
    if gpus.find(name).smi_memory_mib < 100_000 or driver >= "550"  # six digits are why the column became wider
]


def test_every_gpu_fits_every_layout():
    def is_even(name, driver):
        device = smi.device_of(gpus.find(name), 0, "GPU-0", driver, 3 << 30, 1.0)
        device = replace(device, processes=(SmiProcess(1234567, "x" * 100, 99999),))
        lines = smi.table(SmiHost((device,), driver)).splitlines()
        return len({len(line) for line in lines[1:] if line.strip()}) == 1

    assert not [fit for fit in FITS if not is_even(*fit)]


def test_list():
    assert smi.main(["-L"], LISTINGS["mxnet"]) == (
        "".join(f"GPU {i}: Tesla V100-SXM2-16GB (UUID: GPU-{i})\n" for i in range(4)),
        0,
    )
    assert smi.main(["--list-gpus", "-i", "1"], LISTINGS["mxnet"])[0].count("\n") == 1


def test_no_arguments_print_the_table():
    assert smi.main([], LISTINGS["mxnet"]) == (smi.table(LISTINGS["mxnet"]), 0)
    assert smi.main(["-l", "1"], LISTINGS["mxnet"])[0] == smi.table(LISTINGS["mxnet"])


def test_query_with_header_and_units():
    query = "--query-gpu=index,name,memory.total,memory.used,memory.free,utilization.gpu,power.draw,temperature.gpu"
    text, code = smi.main([query, "--format=csv"], LISTINGS["mxnet"])
    assert code == 0
    assert text.splitlines()[:2] == [
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], power.draw [W], "
        "temperature.gpu",
        "0, Tesla V100-SXM2-16GB, 16160 MiB, 1784 MiB, 14376 MiB, 12 %, 63.00 W, 45",
    ]
    assert len(text.splitlines()) == 5


def test_query_without_header_and_units():
    arguments = ["--query-gpu=count,gpu_uuid,pci.bus_id,driver_version,compute_cap,power.limit,clocks.mem,fan.speed"]
    text, code = smi.main([*arguments, "--format=csv,noheader,nounits", "-i", "GPU-2"], LISTINGS["mxnet"])
    assert (text, code) == ("1, GPU-2, 00000000:00:1D.0, 460.106.00, 7.0, 300.00, 0, [N/A]\n", 0)


def test_query_arguments_may_be_separate_words():
    joined = smi.main(["--query-gpu=name", "--format=csv"], LISTINGS["mxnet"])
    assert smi.main(["--query-gpu", "name", "--format", "csv"], LISTINGS["mxnet"]) == joined


def test_query_of_processes():
    text, code = smi.main(["--query-compute-apps=pid,name,used_memory", "--format=csv"], LISTINGS["mxnet"])
    assert code == 0
    assert text == f"pid, name, used_memory [MiB]\n36249, {PYTHON}, 1781 MiB\n36249, {PYTHON}, 1749 MiB\n"


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["--query-gpu=speed", "--format=csv"], 'Field "speed" is not a valid field to query.\n\n', 2),
        (["--query-gpu=name"], 'Option "--format=csv" is missing.', 2),
        (["--query-gpu=name", "--format=csv,upside"], 'Unknown format "upside"', 2),
        (["--frobnicate"], smi.INVALID, 2),
        (["--query-gpu"], smi.INVALID, 2),
        (["--format=csv"], smi.INVALID, 2),
        (["--query-gpu=name", "--query-compute-apps=pid", "--format=csv"], "Only one --query-* switch", 2),
        (["-i", "9"], "No devices were found\n", 6),
        (["-L", "-i", "GPU-none"], "No devices were found\n", 6),
    ],
)
def test_complaints(arguments, text, code):
    answer, exit_code = smi.main(arguments, LISTINGS["mxnet"])
    assert answer.startswith(text)
    assert exit_code == code


def test_no_gpu_at_all():
    assert smi.main([], SmiHost()) == ("No devices were found\n", 6)


@pytest.mark.parametrize("ids", ["1", "GPU-1", "00000000:00:1C.0", "0000:00:1c.0", "1,1"])
def test_devices_are_chosen_by_index_uuid_and_bus(ids):
    text, _ = smi.main([f"--id={ids}", "--query-gpu=index", "--format=csv,noheader"], LISTINGS["mxnet"])
    assert text == "1\n"


def test_help_and_version_say_emulated_and_the_driver():
    text, code = smi.main(["-h"], LISTINGS["mxnet"])
    assert code == 0
    assert "EMULATED" in text
    assert "460.106.00" in text
    fields, _ = smi.main(["--help-query-gpu"], LISTINGS["mxnet"])
    for field in re.findall(r'"([a-z_.]+)"', fields):
        if field != "--query-gpu=":
            assert smi.main([f"--query-gpu={field}", "--format=csv"], LISTINGS["mxnet"])[1] == 0
    assert "CUDA Version        : 11.2\n" in smi.main(["--version"], LISTINGS["mxnet"])[0]


def test_a_device_of_a_model():
    busy = smi.device_of(gpus.find("V100"), 1, "GPU-1", "460.106.00", 1784 << 20, 1.0, 4)
    idle = smi.device_of(gpus.find("V100"), 1, "GPU-1", "460.106.00", devices=4)
    assert busy.bus_id == "00000000:00:1C.0"
    assert (busy.memory_total_mib, busy.memory_used_mib, busy.memory_free_mib) == (16160, 1784, 14376)
    assert idle.power_w < busy.power_w < busy.power_limit_w == 300.0
    assert idle.temperature < busy.temperature
    newer = smi.device_of(gpus.find("V100"), 0, "GPU-0", "535.104.05")
    assert newer.memory_total_mib - newer.memory_free_mib == newer.memory_reserved_mib == 16384 - 16160
    assert smi.bus_id(7, 8) == "00000000:00:1E.0"
    assert smi.bus_id(300, 400) == "00000001:2C:00.0"
