"""The version of windtunnel."""

__version__ = "0.1.0"
