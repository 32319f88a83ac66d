"""Train a small convolutional network to tell discs, squares and crosses apart, on images drawn here.

windtunnel run examples/shapes_cnn.py --epochs 3
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SHAPES = ("disc", "square", "cross")


def draw(count, size=32, generator=None):
    """Draw `count` noisy images (count, 1, size, size) and their labels (count,)."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    radius = torch.randint(5, 10, (count, 1, 1), generator=generator)
    centre = torch.randint(10, size - 10, (2, count, 1, 1), generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dy, dx = (y - centre[0]).abs(), (x - centre[1]).abs()
    disc = dy**2 + dx**2 <= radius**2
    square = torch.maximum(dy, dx) <= radius
    cross = square & (torch.minimum(dy, dx) <= 1)
    images = torch.stack([disc, square, cross])[labels, torch.arange(count)].float()
    noise = torch.randn(count, size, size, generator=generator)
    return (images + 0.3 * noise).unsqueeze(1), labels


def network():
    """Two convolutions with batch normalisation and pooling, then one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, len(SHAPES)),
    )


def main():
    """Draw, train, test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disable-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    use_cuda = torch.cuda.is_available() and not args.disable_cuda
    device = torch.device("cuda" if use_cuda else "cpu")
    torch.manual_seed(0)

    train = DataLoader(TensorDataset(*draw(1024)), batch_size=64, shuffle=True, pin_memory=use_cuda)
    images, labels = (tensor.to(device) for tensor in draw(256))
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for batch, target in train:
            batch, target = batch.to(device, non_blocking=True), target.to(device, non_blocking=True)
            loss = F.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        model.eval()
        with torch.no_grad():
            correct = (model(images).argmax(dim=1) == labels).float().mean()
        print(f"epoch {epoch}: training loss {(total / len(train)).item():.3f}, test accuracy {correct.item():.3f}")


if __name__ == "__main__":
    main()
