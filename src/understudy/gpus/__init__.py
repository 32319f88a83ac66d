"""GPUs as facts with sources: `find`, `names`, `parse`, a user's own files, and what depends on the CUDA version (`versions`)."""

from understudy.gpus.gpu import DEFAULT, Gpu, absolute, describe, find, from_description, names, parse

__all__ = ["DEFAULT", "Gpu", "absolute", "describe", "find", "from_description", "names", "parse"]
