"""A thread a GPU: each trains a network of its own."""

import threading

import torch

torch.manual_seed(0)


def train(device: int) -> None:
    with torch.cuda.device(device):
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            loss = model(torch.ones(8, 64, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()


threads = [threading.Thread(target=train, args=(device,)) for device in range(torch.cuda.device_count())]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
