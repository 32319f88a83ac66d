import torch


class Network(torch.nn.Linear):
    def __init__(self):
        super().__init__(42, 1)


train_loader = torch.utils.data.DataLoader(torch.ones(6, 42), batch_size=2)
