"""More loops that are bound by one thing each, as `loops.py`: `python others.py NAME`."""

# ruff: noqa: C408, SIM115

import collections
import copy
import heapq
import io
import itertools
import os
import random
import re
import sqlite3
import statistics
import sys
import tarfile
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

rng = np.random.default_rng(3)
random.seed(3)
DIM, CLASSES, STEPS = 96, 4, 12


class Trainer:
    def __init__(self, callbacks=(), model=None):
        self.model = (model or nn.Sequential(nn.Linear(DIM, 48), nn.GELU(), nn.Linear(48, CLASSES))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = callbacks
        self.running = 0.0

    def step(self, x, y):
        x, y = x.to("cuda"), y.to("cuda")
        self.optimizer.zero_grad()
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        self.optimizer.step()
        return logits, loss

    def fit(self, loader):
        for step, (x, y) in enumerate(loader):
            if step == STEPS:
                break
            logits, loss = self.step(x, y)
            self.running += loss.item()
            for callback in self.callbacks:
                callback(self, step, logits)


def fixed(n=32):
    x, y = torch.randn(n, DIM), torch.randint(0, CLASSES, (n,))
    return itertools.repeat((x, y))


# ---- data
class Pictures(Dataset):
    def __init__(self):
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (320, 320, 3), dtype=np.uint8)).save(buffer, "PNG")
        self.raw = buffer.getvalue()

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        from PIL import Image

        image = Image.open(io.BytesIO(self.raw)).convert("RGB")
        image = image.rotate(i % 30, expand=True).resize((8, 4))  # pil_pictures
        return torch.from_numpy(np.array(image, dtype=np.float32).reshape(-1)[:DIM] / 255), i % CLASSES


class Decoded(Pictures):
    def __getitem__(self, i):
        from PIL import Image

        image = Image.open(io.BytesIO(self.raw)).convert("RGB")  # pil_pictures
        return torch.from_numpy(np.array(image.resize((8, 4)), dtype=np.float32).reshape(-1)[:DIM]), i % CLASSES


def pil_pictures():
    Trainer().fit(DataLoader(Decoded(), batch_size=8))


WORD = re.compile(r"[a-z]+")


def encode(texts):
    rows = torch.zeros(len(texts), DIM)
    for row, text in enumerate(texts):
        counts = collections.Counter(WORD.findall(text.lower()))  # regex_workers
        rows[row] = torch.tensor([float(counts.get(chr(97 + k % 26), k)) for k in range(DIM)])
    return rows, torch.zeros(len(texts), dtype=torch.long)


def regex_workers():
    texts = [" ".join(random.choices(["the", "a", "fox", "Dog", "b", "c"], k=4000)) for _ in range(16 * 20)]
    Trainer().fit(DataLoader(texts, batch_size=16, num_workers=2, collate_fn=encode))


def get_batch(data, size):
    starts = rng.integers(0, len(data) - 4000, size)
    x = np.stack([np.convolve(data[s : s + 4000], np.ones(31) / 31, "same")[:DIM] for s in starts])  # get_batch_numpy
    return torch.from_numpy(x.astype(np.float32)).cuda(), torch.zeros(size, dtype=torch.long).cuda()


def get_batch_numpy():
    data = rng.random(1_000_000)
    trainer = Trainer()
    for step in range(STEPS):
        x, y = get_batch(data, 48)
        _, loss = trainer.step(x, y)
        if step % 2 == 0:
            print(step, loss.item())


def inline_replay():
    buffer = collections.deque(maxlen=20000)
    for k in range(20000):
        buffer.append(([random.random() for _ in range(8)], k % CLASSES))
    trainer = Trainer(model=nn.Linear(8, CLASSES))
    losses = []
    for _ in range(STEPS):
        rows = random.sample(buffer, 3000)  # inline_replay
        states = np.array([row[0] for row in rows], dtype=np.float32)  # inline_replay
        actions = np.array([row[1] for row in rows])  # inline_replay
        _, loss = trainer.step(torch.from_numpy(states), torch.from_numpy(actions))
        losses.append(loss.item())


# ---- Python
class Smoother:
    def __init__(self):
        self.history = []

    def __call__(self, trainer, step, logits):
        self.history.append(step)
        window = [((k * 31 + step) % 101) / 7.0 for k in range(20000)]  # callback_statistics
        return statistics.fmean(window) + max(window)


def callback_statistics():
    Trainer([Smoother()]).fit(fixed())


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))  # edit_distance
    return row[-1]


def edit_distance():
    def score(trainer, step, logits):
        guesses = logits.argmax(-1).tolist()
        return distance(guesses * 4, [k % CLASSES for k in range(96)])

    Trainer([score]).fit(fixed())


def hard_negatives():
    trainer = Trainer()
    x, y = next(iter(fixed(128)))
    for _ in range(STEPS):
        logits = trainer.model(x.cuda())
        scores = logits[:, 0].tolist()
        pairs = sorted(((a - b) ** 2, i) for i, a in enumerate(scores) for b in scores[:i])  # hard_negatives
        chosen = [i for _, i in pairs[:16]]
        loss = F.cross_entropy(logits[chosen], y[chosen].cuda())
        trainer.optimizer.zero_grad()
        loss.backward()
        trainer.optimizer.step()


def deep_copies():
    settings = {f"layer{k}": {"sizes": list(range(40)), "names": [str(j) for j in range(20)]} for k in range(240)}
    Trainer([lambda trainer, step, logits: copy.deepcopy(settings)]).fit(fixed())  # deep_copies


def search_tree():
    trainer = Trainer()

    def expand(node, depth):
        heap = []
        for k in range(3000):
            heapq.heappush(heap, ((node * k * 7919) % 10007, depth))  # search_tree
        return heap[0][0]

    x = torch.randn(8, DIM)
    for _ in range(STEPS):
        with torch.no_grad():
            value = trainer.model(x.cuda()).max().item()
        best = sum(expand(k + 1, int(value)) for k in range(4))
        trainer.step(x, torch.full((8,), best % CLASSES))


# ---- disk
def folder():
    return tempfile.mkdtemp()


class Rows(Dataset):
    def __init__(self, path):
        self.path, self.db = path, None

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        if self.db is None:
            self.db = sqlite3.connect(self.path)
        blob = self.db.execute("select blob from t where id = ?", (i % 400,)).fetchone()[0]  # sqlite_rows
        return torch.frombuffer(bytearray(blob[: DIM * 4]), dtype=torch.int32).float() % 7, i % CLASSES


def sqlite_rows():
    path = folder() + "/d.sqlite"
    db = sqlite3.connect(path)
    db.execute("create table t (id integer primary key, blob blob)")
    db.executemany("insert into t values (?, ?)", ((k, os.urandom(200_000)) for k in range(400)))
    db.commit()
    db.close()
    Trainer().fit(DataLoader(Rows(path), batch_size=32, shuffle=True))
    os.remove(path)


class Shards(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in itertools.cycle(self.paths):
            with tarfile.open(path) as tar:
                for member in tar:
                    raw = tar.extractfile(member).read()  # tar_shards
                    yield torch.frombuffer(bytearray(raw[: DIM * 4]), dtype=torch.int32).float() % 7, 1


def tar_shards():
    where = folder()
    paths = []
    for k in range(3):
        paths.append(f"{where}/{k}.tar")
        with tarfile.open(paths[-1], "w") as tar:
            for j in range(40):
                info = tarfile.TarInfo(f"{j}.bin")
                info.size = 1 << 20
                tar.addfile(info, io.BytesIO(os.urandom(1 << 20)))
    Trainer().fit(DataLoader(Shards(paths), batch_size=8))
    [os.remove(p) for p in paths]


class Small(Dataset):
    def __init__(self, where):
        self.where = where

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        rows = []
        for k in range(8):
            with open(f"{self.where}/{(i * 8 + k) % 300}", "rb") as file:  # small_files_workers
                rows.append(file.read())  # small_files_workers
        return torch.frombuffer(bytearray(rows[0]), dtype=torch.int32).float() % 7, i % CLASSES


def small_files_workers():
    where = folder()
    for k in range(300):
        open(f"{where}/{k}", "wb").write(os.urandom(DIM * 4))
    Trainer().fit(DataLoader(Small(where), batch_size=64, num_workers=2, shuffle=True))
    [os.remove(f"{where}/{k}") for k in range(300)]


def log_flushed():
    path = folder() + "/log.csv"

    def log(trainer, step, logits):
        with open(path, "a") as file:
            for k in range(9):
                file.write(f"{step},{k}\n")
                file.flush()
                os.fsync(file.fileno())  # log_flushed

    Trainer([log]).fit(fixed())
    os.remove(path)


def checkpoint_each_step():
    path = folder() + "/c.pt"
    ballast = {"ema": torch.randn(1_500_000), "scores": torch.randn(1_500_000)}

    def save(trainer, step, logits):
        torch.save({"step": step, **ballast}, path)  # checkpoint_each_step

    Trainer([save]).fit(fixed())
    os.remove(path)


# ---- GPU
def wide_mlp():
    x, y = torch.randn(512, 1024), torch.randint(0, CLASSES, (512,))
    Trainer(
        model=nn.Sequential(
            nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)
        )
    ).fit(itertools.repeat((x, y)))


def collated_images():
    data = TensorDataset(torch.randn(32 * 14, 3, 96, 96), torch.randint(0, CLASSES, (32 * 14,)))
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )
    Trainer(model=net).fit(DataLoader(data, batch_size=32, shuffle=True))


def small_gpt():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(500, 192)
            self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(192, 6, 768, batch_first=True), 6)
            self.head = nn.Linear(192, CLASSES)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x)).mean(1))

    x, y = torch.randint(0, 500, (8, 128)), torch.randint(0, CLASSES, (8,))
    Trainer(model=Model()).fit(itertools.repeat((x, y)))


def sorting_on_device():
    x = torch.rand(4_000_000, device="cuda")
    for _ in range(STEPS):
        values, _ = x.sort()
        x = values.flip(0)[torch.randperm(len(x), device="cuda")]
    torch.cuda.synchronize()


def inference_loop():
    net = nn.Sequential(*[nn.Conv2d(16, 16, 3, padding=1) for _ in range(12)]).cuda().eval()
    images = torch.randn(16, 16, 64, 64)
    with torch.inference_mode():
        for _ in range(STEPS):
            net(images.cuda(non_blocking=True)).mean().item()


KINDS = dict(
    data=["pil_pictures", "regex_workers", "get_batch_numpy", "inline_replay"],
    python=["callback_statistics", "edit_distance", "hard_negatives", "deep_copies", "search_tree"],
    disk=["sqlite_rows", "tar_shards", "small_files_workers", "log_flushed", "checkpoint_each_step"],
    gpu=["wide_mlp", "collated_images", "small_gpt", "sorting_on_device", "inference_loop"],
)
if __name__ == "__main__":
    globals()[sys.argv[1]]()
