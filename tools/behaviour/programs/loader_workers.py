"""A DataLoader with two workers that pins, and batches that travel beside the computation."""

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(256, 32), torch.randn(256, 1))
    model = torch.nn.Linear(32, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for inputs, target in DataLoader(rows, 32, shuffle=True, num_workers=2, pin_memory=True):
        loss = (model(inputs.to("cuda", non_blocking=True)) - target.to("cuda", non_blocking=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")
