"""`mamba_ssm.modules`: layers."""
