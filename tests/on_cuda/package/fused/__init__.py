import torch  # noqa: F401  whose libraries the extension needs

from . import _ops as _ops
