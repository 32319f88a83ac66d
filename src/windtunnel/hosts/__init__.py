"""Hosts as facts with sources, in the catalogue or a user's file: how fast a processor issues work and runs Python."""

from windtunnel.hosts.host import DEFAULT, Host, find, measured_here, names, python_ns_here

__all__ = ["DEFAULT", "Host", "find", "measured_here", "names", "python_ns_here"]
