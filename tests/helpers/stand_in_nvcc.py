"""A stand-in for NVIDIA's nvcc and ptxas, which no machine of the project has: clang makes the PTX, and names that only
one file sees are written as nvcc writes them."""

import re
import sys
from pathlib import Path

from windtunnel.compiler import clang

NAMESPACE = "_GLOBAL__N__0a1b2c3d_8_names_cu_f3e9d8c2_17"
VERSION = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.6, V12.6.85 (a stand-in)"
SCRIPT = '#!/bin/sh\nexec {python} -m helpers.stand_in_nvcc {tool} {log} "$@"\n'


def write(folder: Path, log: Path) -> None:
    """Put both into a toolkit's folder; their arguments go to `log`."""
    (folder / "bin").mkdir(parents=True)
    for tool in ("nvcc", "ptxas"):
        path = folder / "bin" / tool
        path.write_text(SCRIPT.format(python=sys.executable, tool=tool, log=log), encoding="utf-8")
        path.chmod(0o755)


def nvcc(arguments: list[str]) -> None:
    """Compile as nvcc would."""
    if "--version" in arguments:
        print(VERSION)
        return
    assert {"--ptx", "-lineinfo"} <= set(arguments)
    source, output = arguments[-3], arguments[-1]
    number = next(one for one in arguments if one.startswith("-arch=")).removeprefix("-arch=compute_")
    kept = [one for one in arguments[:-3] if not one.startswith(("--", "-arch", "-lineinfo", "-maxrregcount"))]
    found = clang.required()
    found.run("-x", "cuda", "-nocudainc", "-nocudalib", "-D__CUDACC__", "-D__NVCC_STAND_IN__", "-w",
              "-include", "windtunnel/prelude.h", "-include", "windtunnel/host.h", "-isystem", str(clang.INCLUDE),
              *(("-idirafter", found.headers) if found.headers else ()), f"--cuda-gpu-arch=sm_{number}",
              "--cuda-device-only", "-S", "-O2", "-gline-tables-only", *kept, source, "-o", output)  # fmt: skip
    text = Path(output).read_text(encoding="utf-8")
    text = re.sub(r"12_GLOBAL__N_1", f"{len(NAMESPACE)}{NAMESPACE}", text)
    Path(output).write_text(re.sub(r"\b_ZL(?=\d)", "_Z", text), encoding="utf-8")


def ptxas(arguments: list[str]) -> None:
    """Say what ptxas says of its input's kernels."""
    text = Path(next(one for one in arguments if one.endswith(".ptx"))).read_text(encoding="utf-8")
    for name in re.findall(r"\.entry ([\w$]+)", text):
        used = 128 if "heavy" in name else 40
        print(f"ptxas info    : Compiling entry function '{name}' for 'sm_90'", file=sys.stderr)
        print(f"ptxas info    : Used {used} registers, 0 bytes smem", file=sys.stderr)
    Path(arguments[-1]).write_bytes(b"")


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
        file.write(" ".join(sys.argv[1:2] + sys.argv[3:]) + "\n")
    {"nvcc": nvcc, "ptxas": ptxas}[sys.argv[1]](sys.argv[3:])
