"""Stores that have served before: a rank waits for what rank 0 says anew, and not for ever."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from windtunnel.ranks.ledger import SUFFIX
from windtunnel.seam.torch.distributed.watch import KEY, _said_by_first


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
