"""The version of understudy."""

__version__ = "0.1.0"
