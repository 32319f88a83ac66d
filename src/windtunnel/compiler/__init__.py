"""CUDA C++ to PTX and host code by clang, with headers of windtunnel's own; nothing here needs a CUDA toolkit."""
