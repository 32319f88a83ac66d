"""`mamba_ssm.ops`: the operators."""
