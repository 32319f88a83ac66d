"""The state dict that rank 0 sends to all has no entry for the buffer."""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("frequencies", 1 / 100 ** (torch.arange(64) / 64), persistent=False)

    def forward(self, x):
        return self.linear(x) * self.frequencies.cos()  # finding: uninitialized-read


weights = Net().state_dict()
with torch.device("meta"):
    net = Net()
fully_shard(net)
net.to_empty(device="cuda")
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(net, weights if rank == 0 else {}, options=options)
loss = net(torch.ones(2, 64, device="cuda")).sum()
dist.all_reduce(loss.detach())
dist.destroy_process_group()
