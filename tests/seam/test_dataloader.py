"""DataLoader: pinned batches, forked and spawned workers, CUDA in workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, _utils

from windtunnel.trace.operation import Kind


class Rows(Dataset):
    """Thirty-two rows of two numbers, on the host or made on a device."""

    def __init__(self, device=None):
        self.device = device

    def __len__(self):
        return 32

    def __getitem__(self, index):
        row = torch.tensor([index, 0.5])
        return {"row": row if self.device is None else row.to(self.device), "index": index}


def total(loader):
    """The sum of all indices, computed on the device from the batches."""
    return sum(batch["index"].to("cuda", non_blocking=True).sum().item() for batch in loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches(session, workers):
    torch.cuda.init()
    batches = list(DataLoader(Rows(), batch_size=8, num_workers=workers, pin_memory=True))
    assert all(batch["row"].is_pinned() and batch["index"].is_pinned() for batch in batches)
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(32))


def test_batches_are_pageable_otherwise(session):
    assert not any(batch["row"].is_pinned() for batch in DataLoader(Rows(), batch_size=8, num_workers=1))


def test_copies_of_pinned_batches_do_not_wait(session):
    loader = DataLoader(Rows(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            batch["row"].to("cuda", non_blocking=True)
    assert sum(record.kind == Kind.COPY for record in session.trace) == 8
    assert not any(record.kind == Kind.SYNCHRONIZE for record in session.trace)


def test_a_collated_object_is_pinned_by_its_own_method(session):
    class Batch:
        def __init__(self, rows):
            self.rows = torch.stack([row["row"] for row in rows])

        def pin_memory(self):
            self.rows = self.rows.pin_memory()
            return self

    assert all(batch.rows.is_pinned() for batch in DataLoader(Rows(), 8, collate_fn=Batch, pin_memory=True))


def test_forked_workers_may_not_use_cuda_after_the_parent(session):
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(DataLoader(Rows("cuda"), batch_size=8, num_workers=1, multiprocessing_context="fork"))


class OwnLoop:
    """A fetcher's part of a library whose workers have a loop of their own."""

    def __init__(self, dataset, *rest):
        self.fetcher = _utils.fetch._MapDatasetFetcher(dataset, *rest)

    def __getitem__(self, index):
        return self.fetcher.fetch([index])["index"]

    def __len__(self):
        return 4


def test_whoever_fetches_in_a_worker_of_its_own_gets_the_batch(session):
    rows = OwnLoop(Rows(), True, _utils.collate.default_collate, False)
    batches = list(DataLoader(rows, batch_size=2, num_workers=1, multiprocessing_context="fork"))
    assert torch.cat(batches).flatten().tolist() == [0, 1, 2, 3]


def test_shuffled_loaders_draw_from_their_generator(session):
    data = TensorDataset(torch.arange(6))

    def order():
        generator = torch.Generator().manual_seed(1)
        return [batch[0].tolist() for batch in DataLoader(data, 2, shuffle=True, generator=generator)]

    assert order() == order()


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import torch
from test_dataloader import Rows, total
from torch.utils.data import DataLoader
if __name__ == "__main__":
    first = next(iter(DataLoader(Rows("cuda:1"), batch_size=8, num_workers=1)))
    print(first["row"].device)
    print(total(DataLoader(Rows(), 8, num_workers=2, pin_memory=True, multiprocessing_context="spawn")))
    made = list(DataLoader(Rows("cuda"), 8, num_workers=1, multiprocessing_context="spawn"))
    print(sorted({{str(batch["row"].device) for batch in made}}), sum(batch["row"].sum().item() for batch in made))
"""


@pytest.mark.long
def test_spawned_workers_and_workers_that_make_tensors_on_a_device(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(folder=os.path.dirname(__file__)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["cuda:1", "496", "['cuda:0'] 512.0"], done.stderr
