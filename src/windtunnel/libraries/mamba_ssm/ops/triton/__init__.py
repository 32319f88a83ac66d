"""`mamba_ssm.ops.triton`: operators that the library writes in Triton."""
