"""Public reports of GPUs that wait, each as a small loop: `python reported.py NAME`; the comment names the issue."""

# ruff: noqa: C408, SIM115

import io
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(5)
STEPS = 12


def train(loader, width=64, hook=None):
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 3)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, x in enumerate(loader):
        if step == STEPS:
            break
        loss = model(x.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if hook is not None:
            hook(step, loss)


class Items(Dataset):
    def __init__(self, get, count=2000):
        self.get, self.count = get, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.get(index)


def fixed():
    return itertools.repeat(torch.ones(16, 64))


# 1 microsoft/human-pose-estimation.pytorch#31: the Gaussian targets of each joint, in a loop, per sample
def gaussian_targets():
    def sample(index):
        maps = np.zeros((17, 64, 48), np.float32)
        for joint in range(17):
            y, x = np.mgrid[0:64, 0:48]
            maps[joint] = np.exp(-((x - joint) ** 2 + (y - index % 48) ** 2) / 18)  # gaussian_targets
        return torch.from_numpy(maps.reshape(-1)[:64].copy())

    train(DataLoader(Items(sample), batch_size=8))


# 2 autonomousvision/transfuser#154: every sample opens many input and label files
def many_files():
    where = tempfile.mkdtemp()
    for k in range(120):
        open(f"{where}/{k}", "wb").write(os.urandom(30_000))

    def sample(index):
        parts = []
        for k in range(10):
            with open(f"{where}/{(index * 10 + k) % 120}", "rb") as file:  # many_files
                parts.append(file.read())  # many_files
        return torch.frombuffer(bytearray(parts[0][:256]), dtype=torch.int32).float() % 7

    train(DataLoader(Items(sample), batch_size=16))
    [os.remove(f"{where}/{k}") for k in range(120)]


# 3 runa91/barc_release#9: no workers, preparation on the CPU
def crop_and_blur():
    picture = Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8))

    def sample(index):
        blurred = picture.crop((8, 8, 232, 232)).filter(ImageFilter.GaussianBlur(3))  # crop_and_blur
        return torch.from_numpy(np.asarray(blurred.resize((8, 8)).convert("L"), np.float32).reshape(-1).copy())

    train(DataLoader(Items(sample), batch_size=8, num_workers=0))


# 4 yhenon/pytorch-retinanet#104: most of the time in the collater, which pads
def padding_collater():
    images = [rng.random((3, 200 + k, 180 + k)).astype(np.float32) for k in range(32)]

    def collate(batch):
        padded = np.zeros((len(batch), 256, 256, 3), np.float32)
        for row, index in enumerate(batch):
            image = images[index % 32]
            padded[row, : image.shape[1], : image.shape[2]] = image.transpose(1, 2, 0)  # padding_collater
        return torch.from_numpy(padded.reshape(len(batch), -1)[:, :64].copy())

    train(DataLoader(range(2000), batch_size=32, collate_fn=collate))


# 5 pytorch/pytorch#44539: Resize of each image
def resizing():
    picture = Image.fromarray(rng.integers(0, 255, (512, 512, 3), dtype=np.uint8))

    def sample(index):
        small = picture.resize((224, 224), Image.Resampling.BICUBIC)  # resizing
        return torch.from_numpy(np.asarray(small)[:8, :8, 0].astype(np.float32).reshape(-1))

    train(DataLoader(Items(sample), batch_size=16))


# 6 huggingface/transformers#14428: the tokenizer as a collate function, in workers
def tokenizing_collate():
    texts = [" ".join(random.choices(["premise", "hypothesis", "a", "is"], k=800)) for _ in range(600)]

    def collate(batch):
        rows = []
        for text in batch:
            rows.append([hash(token) % 97 for token in re.findall(r"\w+|\W", text.lower())][:64])  # tokenizing_collate
        return torch.tensor(rows, dtype=torch.float32)

    train(DataLoader(texts, batch_size=16, num_workers=2, collate_fn=collate))


# 7 Lightning-AI/pytorch-lightning#189: a process (nvidia-smi) is asked in every step
def asking_a_process():
    train(fixed(), hook=lambda step, loss: subprocess.run(["sleep", "0.02"]))  # asking_a_process


# 8 m2lines/Samudra#456: single-threaded Python work on maps while the GPU waits
def drawing_maps():
    def draw(step, loss):
        return [[(i * j + step) % 255 for j in range(160)] for i in range(160)]  # drawing_maps

    train(fixed(), hook=draw)


# 9 pengzhiliang/MAE-pytorch#100: pil_loader
def pil_loader():
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (400, 400, 3), dtype=np.uint8)).save(buffer, "JPEG")
    path = tempfile.mkdtemp() + "/a.jpg"
    open(path, "wb").write(buffer.getvalue())

    def sample(index):
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")  # pil_loader
        return torch.from_numpy(np.asarray(image)[:8, :8, 0].astype(np.float32).reshape(-1))

    train(DataLoader(Items(sample), batch_size=8, num_workers=2))
    os.remove(path)


# 10 NVIDIA/DALI#892: a ten times faster loader changes nothing, since the model takes the time
def model_bound():
    data = torch.randn(12 * 16, 3, 64, 64)
    model = nn.Sequential(
        nn.Conv2d(3, 96, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 3),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(data, batch_size=16):
        loss = model(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


KINDS = dict(
    data=["gaussian_targets", "crop_and_blur", "padding_collater", "resizing", "tokenizing_collate", "pil_loader"],
    disk=["many_files"],
    waiting=["asking_a_process"],
    python=["drawing_maps"],
    gpu=["model_bound"],
)
if __name__ == "__main__":
    globals()[sys.argv[1]]()
