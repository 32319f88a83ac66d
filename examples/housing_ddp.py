"""The housing network trained by DistributedDataParallel: one process a GPU, gradients averaged between them.

    torchrun --nproc-per-node 2 examples/housing_ddp.py
    windtunnel run --gpus 2xV100 --nproc-per-node 2 examples/housing_ddp.py

Run alone it is one process of one. Without GPUs the processes use the CPU and the gloo backend.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from housing import load_boston, train_test_split
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def training_data():
    """The 404 training rows, standardised, and their prices (404, 1), float32."""
    boston = load_boston()
    X_train, _, y_train, _ = train_test_split(boston.data, boston.target, test_size=0.2, random_state=0)
    features = torch.tensor(X_train, dtype=torch.float32)
    prices = torch.tensor(y_train, dtype=torch.float32).unsqueeze(1)
    return TensorDataset((features - features.mean(0)) / features.std(0), prices)


def main():
    """Join the group, train, report from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disable-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})

    use_cuda = torch.cuda.is_available() and not args.disable_cuda
    if use_cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if use_cuda else "gloo")

    torch.manual_seed(0)
    data = training_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if use_cuda else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_func = nn.MSELoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for features, prices in loader:
            loss = loss_func(model(features.to(device)), prices.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0 and epoch in (0, args.epochs - 1):
            mean = total.item() / (len(loader) * dist.get_world_size())
            print(f"epoch {epoch}: {dist.get_world_size()} processes, mean squared error {mean:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
