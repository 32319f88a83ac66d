"""GPUs as facts with sources, in the catalogue or a user's file, and what depends on the CUDA version (`versions`)."""

from windtunnel.gpus.gpu import DEFAULT, Gpu, absolute, describe, find, from_description, names, parse

__all__ = ["DEFAULT", "Gpu", "absolute", "describe", "find", "from_description", "names", "parse"]
