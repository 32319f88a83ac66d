import torch

device = torch.device("cuda:0")
input_data = torch.zeros(128, 13)
model = torch.nn.Linear(13, 1)
