"""Loops that are bound by one thing each: `python loops.py NAME`. The line that a report should name ends in `# NAME`.

Each function makes what a step needs and returns the step; what binds the loop is measured beside, for the test, as
the time that is spent outside of operators.
"""

from __future__ import annotations

import io
import os
import random
import re
import sys
import tempfile
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEPS = 12
WIDTH = 256
random.seed(0)
generator = np.random.default_rng(0)


def train(batches, width=WIDTH, after=None):
    model = nn.Linear(width, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(batches):
        if number == STEPS:
            break
        out = model(batch.cuda())
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(number)


def fixed(width=WIDTH):
    x = torch.ones(64, width, device="cuda")
    while True:
        yield x


# ---------------------------------------------------------------------- data


def numpy_augmentation():
    for _ in range(STEPS):
        noise = generator.normal(size=(1000, WIDTH))  # numpy_augmentation
        yield torch.from_numpy(noise.astype(np.float32))


class Decoded(Dataset):
    def __init__(self, repeats=12):
        self.repeats = repeats
        self.packed = zlib.compress(generator.normal(size=WIDTH * 100).astype(np.float32).tobytes())

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        for _ in range(self.repeats):
            raw = zlib.decompress(self.packed)  # dataset workers
        return np.frombuffer(raw, np.float32)[:WIDTH].copy()


def dataset():
    return DataLoader(Decoded(), batch_size=8)


def workers():
    return DataLoader(Decoded(40), batch_size=8, num_workers=2)


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            numbers = []
            for i in range(WIDTH):  # stream
                numbers.append(sum(j * i for j in range(60)) / 1e6)  # stream
            yield torch.tensor(numbers)  # stream


def stream():
    return DataLoader(Stream(), batch_size=4)


def collate(samples):
    stacked = np.ones((8, WIDTH), np.float32) * samples[0]
    for _ in range(4):
        stacked = np.sort(np.tile(stacked, (40, 1)), axis=0)[:8]  # collating
    return torch.from_numpy(stacked)


def collating():
    return DataLoader(range(1000), batch_size=8, collate_fn=collate)


def python_lists():
    for _ in range(STEPS):
        rows = [[random.random() for _ in range(WIDTH)] for _ in range(300)]  # python_lists
        yield torch.tensor(rows)  # python_lists


class Words(Dataset):
    text = "the quick brown fox jumps over the lazy dog, and " * 60

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        words = [re.sub(r"\W+", "", word.lower()) for word in self.text.split()]  # tokens
        return torch.tensor([float(len(word)) for word in words[:WIDTH]])


def tokens():
    return DataLoader(Words(), batch_size=16)


def images():
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(generator.integers(0, 255, (400, 400, 3), dtype=np.uint8)).save(buffer, "JPEG")
    while True:
        rows = []
        for _ in range(4):
            image = Image.open(io.BytesIO(buffer.getvalue())).convert("L").resize((16, 16))  # images
            rows.append(np.asarray(image, np.float32).reshape(-1))
        yield torch.from_numpy(np.stack(rows))


# ---------------------------------------------------------------------- Python


def metrics(number):
    scores = []
    for i in range(60_000):  # metrics
        scores.append((i * number) % 7)  # metrics


def logging(number):
    line = " ".join(f"{i:08.3f}" for i in range(20_000))  # logging
    return len(line)


def ranking(number):
    values = [random.random() for _ in range(100_000)]  # ranking
    values.append(number)


def numpy_statistics(number):
    scores = np.ones((300, 300))
    for _ in range(3):
        np.linalg.svd(scores + number)  # numpy_statistics


class Tree:
    def __init__(self, depth):  # building_objects
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []  # building_objects


def building_objects(number):
    Tree(12)


# ---------------------------------------------------------------------- disk


def arrays_on_disk():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "array.npy")
    np.save(path, np.ones((40000, WIDTH), np.float32))
    while True:
        yield torch.from_numpy(np.load(path)[:64])  # arrays_on_disk


class Files(Dataset):
    def __init__(self):
        self.path = os.path.join(tempfile.mkdtemp(), "blob")
        with open(self.path, "wb") as file:
            file.write(bytes(16 << 20))

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            data = file.read()  # files files_in_workers
        return torch.frombuffer(bytearray(data[: 4 * WIDTH]), dtype=torch.float32)


def files():
    return DataLoader(Files(), batch_size=8)


def files_in_workers():
    return DataLoader(Files(), batch_size=8, num_workers=2)


# ---------------------------------------------------------------------- the GPU


def large_products():
    train(fixed(4096), 4096)
    a = torch.ones(1024, 1024, device="cuda")
    for _ in range(30):
        a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()


def convolutions():
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(16, 3, 64, 64, device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


def small_layers():
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(40)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in zip(fixed(), range(STEPS), strict=False):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


def waiting_for_the_loss():
    train(fixed(), after=lambda number: torch.ones(1000, 1000, device="cuda").sum().item())


DATA = ("numpy_augmentation", "dataset", "workers", "stream", "collating", "python_lists", "tokens", "images")
PYTHON = ("metrics", "logging", "ranking", "numpy_statistics", "building_objects")
DISK = ("arrays_on_disk", "files", "files_in_workers")
GPU = ("large_products", "convolutions", "small_layers", "waiting_for_the_loss")

if __name__ == "__main__":
    name = sys.argv[1]
    if name in GPU:
        globals()[name]()
    elif name in PYTHON:
        train(fixed(), after=globals()[name])
    else:
        train(globals()[name]())
