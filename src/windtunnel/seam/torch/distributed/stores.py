"""The stores by which ranks meet: one that only processes of this machine can know of listens to this machine alone.

PyTorch's `TCPStore` listens on all interfaces and asks nobody who they are. A server that a program gives no port, and
a name of the loopback interface, is known to those alone that it tells its address; so is that of ranks that are
played. Others may be meant for other machines, and stay as they are.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed import played
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import VERSION

LOOPBACK = "127.0.0.1"
NAMES = ("localhost", LOOPBACK)
BACKLOG = 2048
"""Of PyTorch's own server (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp)."""
TAKES_A_SOCKET = VERSION >= (2, 8)
"""Whether the newer of PyTorch's two servers does (pytorch#150215); clients talk to either."""
PARAMETERS = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant",
              "master_listen_fd", "use_libuv")  # fmt: skip


def patches(state: State) -> list[Patch]:
    """What is replaced of PyTorch's store."""
    if not dist.is_available():
        return []
    stock = torch._C._distributed_c10d.TCPStore
    made: Callable[..., None] = stock.__init__

    def begin(self: object, *args: object, **kwargs: object) -> None:
        given = dict(zip(PARAMETERS, args, strict=False)) | kwargs
        fold = played.read()
        if fold is not None:
            given["wait_for_workers"] = False  # for ranks that nobody plays
        if len(args) <= len(PARAMETERS) and _is_local(given, fold is not None):
            given |= _listener(int(str(given["port"])))
        elif fold is None:
            return made(self, *args, **kwargs)
        return made(self, **given)

    return [Patch(stock, "__init__", begin)]


def _is_local(given: Mapping[str, object], is_played: bool) -> bool:
    """Whether a store serves, and only processes of this machine can know where."""
    serves = given.get("is_master") is True and given.get("master_listen_fd") is None
    return serves and given.get("host_name") in NAMES and (is_played or given.get("port") == 0)


def _listener(port: int) -> dict[str, int]:
    """A socket for the server, which closes it; nothing where the port is in use, maybe by a server of this process."""
    found = socket.socket()
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LOOPBACK, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        return {}
    given = {"port": found.getsockname()[1], "master_listen_fd": found.detach()}
    return given if TAKES_A_SOCKET else given | {"use_libuv": False}
