"""Stores that have served before: a rank waits for what rank 0 says anew, and not for ever. Who can reach a store."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from windtunnel import agent, emulate
from windtunnel.ranks.ledger import SUFFIX
from windtunnel.seam.torch.distributed.watch import KEY, _said_by_first, is_own
from windtunnel.seam.torch.state.looks import Sampler


@pytest.fixture
def stale(tmp_path):
    """A store in which rank 0 spoke to an earlier group, whose ledger rank 1 has written."""
    (tmp_path / f"old-1{SUFFIX}").touch()
    store = dist.HashStore()
    store.set(KEY, json.dumps([str(tmp_path), "here", "old"]))
    return store


def test_a_rank_waits_for_what_rank_0_says_anew(stale, tmp_path):
    threading.Timer(0.3, stale.set, (KEY, json.dumps([str(tmp_path), "here", "new"]))).start()
    assert _said_by_first(1, stale) == (str(tmp_path), "here", "new")


def test_a_rank_gives_up_when_the_stores_timeout_is_over(stale):
    stale.set_timeout(timedelta(seconds=0.5))
    with pytest.raises(dist.DistStoreError, match=r"rank 1 waited 0.5 s for rank 0 .* dist.PrefixStore\(name, store\)"):
        _said_by_first(1, stale)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc says where a process listens")


def listening() -> dict[int, str]:
    """The ports that this process listens on, with the hexadecimal address."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    sockets = {os.readlink(link)[8:-1] for link in links if link.is_symlink() and "socket:" in os.readlink(link)}
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                address, _, port = words[1].partition(":")
                found[int(port, 16)] = address
    return found


LOOPBACK = "0100007F"


@on_linux
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("libuv", [True, False])
def test_a_store_that_only_this_machine_can_find_listens_to_it_alone(name, libuv):
    with emulate("A100"):
        store = dist.TCPStore(name, 0, None, True, use_libuv=libuv)
        assert listening()[store.port] == LOOPBACK
        other = dist.TCPStore(name, store.port, is_master=False, use_libuv=libuv)
        other.set("key", "value")
        assert store.get("key") == b"value"
        assert type(store) is dist.TCPStore


@on_linux
def test_a_store_of_a_port_that_others_may_know_is_pytorchs_own():
    with emulate("A100"), agent.reserve() as reserved:
        store = dist.TCPStore("localhost", reserved.getsockname()[1], 1, True)
        assert set(listening()[store.port]) == {"0"}


@on_linux
@pytest.mark.parametrize("libuv", [True, False])
def test_the_port_of_a_cluster_is_rank_0s_alone(libuv):
    with emulate("A100"), agent.reserve() as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((agent.LOOPBACK, port))
        store = dist.TCPStore(agent.LOOPBACK, port, 1, True, use_libuv=libuv)
        assert store.port == port


def test_a_port_in_use_is_refused_as_by_pytorch(monkeypatch):
    monkeypatch.setattr("windtunnel.seam.torch.distributed.stores._is_local", lambda given, is_played: True)
    with socket.socket() as taken, emulate("A100"):
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match="EADDRINUSE"):
            dist.TCPStore("localhost", taken.getsockname()[1], 1, True)


class AtRest:
    """A thread that a sampler never looks at."""

    thread, looking_ns = threading.get_ident(), 0

    def works(self):
        return False


def test_a_thread_of_the_emulations_own_is_told_from_the_programs():
    """Only the latter may still call something that a rank in a deadlock waits for."""
    begun, over = threading.Event(), threading.Event()

    def work():
        begun.set()
        over.wait()

    with emulate("V100"):
        thread, sampler = threading.Thread(target=work), Sampler(AtRest())
        thread.start()
        begun.wait()
        while not (own := {ident for ident, frame in sys._current_frames().items() if is_own(frame)}):
            time.sleep(0.001)  # until the sampler's has begun
        over.set()
        thread.join()
        sampler.stop()
    assert not own & {thread.ident, threading.get_ident()}
