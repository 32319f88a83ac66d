"""Installed libraries whose kernels are CUDA's; without one of them its file is left out, and a warning says so."""

import warnings
from importlib.util import find_spec

NEEDS = {
    "test_bitsandbytes.py": ("bitsandbytes",),
    "test_qlora.py": ("bitsandbytes", "transformers", "peft"),
    "test_transformers_flash_attention.py": ("transformers",),
    "test_transformers_generate.py": ("transformers",),
    "test_torchao.py": ("torchao",),
}
collect_ignore = [file for file, names in NEEDS.items() if not all(map(find_spec, names))]
if collect_ignore:
    warnings.warn(f"{', '.join(collect_ignore)} are left out: `make test-libraries` runs them", stacklevel=1)
