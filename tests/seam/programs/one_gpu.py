"""Two ranks on the first GPU: what each is told at its first collective, or of `device_id` when the group is made."""

import json
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
seen = {}
for name, options in {"lazily": {}, "eagerly": {"device_id": torch.device("cuda", 0)}}.items():
    store = dist.FileStore(f"{sys.argv[1]}.{name}", 2)
    try:
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2, **options)
        made = True
    except dist.DistBackendError as error:
        seen[name] = ["made", str(error), error.__notes__]
        made = False
    if made:
        x = torch.full((1,), float(rank + 1), device="cuda")
        try:
            dist.all_reduce(x)
            seen[name] = x.item()
        except dist.DistBackendError as error:
            seen[name] = ["used", str(error), error.__notes__]
    if made:
        dist.destroy_process_group()
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
