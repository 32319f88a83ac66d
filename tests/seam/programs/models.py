"""Two ranks train the same model as one process would: DDP in its variants, hooks, fully_shard."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group()
seen = {"backend": dist.distributed_c10d._world.pg_map[dist.group.WORLD][0]}


def network():
    """Three layers, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(step, size=8):
    """All ranks' examples of one step."""
    torch.manual_seed(step)
    return torch.randn(size, 4)


def expected():
    """The weights that one process gets with all examples."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        net(batch(step)).square().mean().backward()
        optimizer.step()
    return net[0].weight.detach()


def trained(net, weights):
    """Whether training `net` on this rank's half of the examples gives the weights of one process."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        net(batch(step).chunk(2)[rank].cuda()).square().mean().backward()
        optimizer.step()
    return bool(torch.allclose(weights().cpu(), expected(), atol=1e-6))


for name, options in {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "small_buckets": {"bucket_cap_mb": 0.0001},
}.items():
    model = DistributedDataParallel(network().cuda(), device_ids=[rank], **options)
    seen[name] = trained(model, lambda model=model: model.module[0].weight.detach())

model = DistributedDataParallel(network().cuda(), device_ids=[rank])
model.register_comm_hook(None, default_hooks.allreduce_hook)
seen["hook"] = trained(model, lambda: model.module[0].weight.detach())

model = DistributedDataParallel(network().cuda(), device_ids=[rank])
with model.no_sync():
    model(torch.full((1, 4), float(rank), device="cuda")).sum().backward()
local = model.module[4].bias.grad.clone()
model(torch.ones(1, 4, device="cuda")).sum().backward()
seen["no_sync"] = [local.item(), model.module[4].bias.grad.item()]

model = network().cuda()
for layer in (model[0], model[2], model[4]):
    fully_shard(layer)
fully_shard(model)
seen["sharded_rows"] = model[0].weight.to_local().shape[0]
seen["sharded"] = trained(model, lambda: model[0].weight.full_tensor().detach())

data = TensorDataset(torch.arange(8.0))
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), pin_memory=True)
seen["rows"] = [row for (rows,) in loader for row in rows.tolist()]
dist.destroy_process_group()
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
