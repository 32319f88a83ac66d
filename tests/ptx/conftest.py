"""The executor of PTX; without clang and llvmlite nothing here is collected, and a warning says so."""

from helpers.cuda_compiler import left_out

collect_ignore_glob = left_out("tests/ptx")
