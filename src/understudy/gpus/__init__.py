"""GPUs as facts with sources: `find`, `names`, `parse`, and what depends on the CUDA version (`versions`)."""

from understudy.gpus.gpu import DEFAULT, Gpu, find, names, parse

__all__ = ["DEFAULT", "Gpu", "find", "names", "parse"]
