"""A small network under DeepSpeed's ZeRO: the stage and the precision as given, a process a GPU, a checkpoint.

windtunnel run --gpus 2xA100 --nproc-per-node 2 deepspeed_zero.py 2 bf16
"""

import sys
import tempfile

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


def main(stage: str = "2", precision: str = "bf16") -> None:
    """Train, save, load and go on."""
    deepspeed.init_distributed("nccl", verbose=False)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    settings = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": int(stage), "overlap_comm": True},
        precision: {"enabled": True},
        "steps_per_print": 1000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    torch.manual_seed(rank)
    losses = []
    for step in range(40):
        x = torch.randn(16, 8, device=engine.device, dtype=dtype)
        loss = nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if step == 20:
            folder = [tempfile.mkdtemp() if rank == 0 else None]
            dist.broadcast_object_list(folder)
            engine.save_checkpoint(folder[0], tag="half")
            engine.load_checkpoint(folder[0], tag="half")
    assert losses[-1] < losses[0]
    if rank == 0:
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} under ZeRO {stage} on {dist.get_world_size()} GPUs")
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
