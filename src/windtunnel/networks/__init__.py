"""Networks between nodes as facts with sources, in the catalogue or a user's file, and what nccl-tests measured."""

from windtunnel.networks.nccl_tests import Table
from windtunnel.networks.network import Network, Spread, default_for, find, from_description, names, parse

__all__ = ["Network", "Spread", "Table", "default_for", "find", "from_description", "names", "parse"]
