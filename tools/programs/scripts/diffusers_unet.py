"""diffusers: a small U-Net learns to take noise away, in float16 autocast, and draws a picture with DDIM.

windtunnel run --gpus A100 diffusers_unet.py
"""

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel


def main() -> None:
    """A few steps of training, then sampling."""
    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).cuda()
    model.enable_gradient_checkpointing()
    average = EMAModel(model.parameters())
    average.to("cuda")
    schedule = DDPMScheduler(100)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(6):
        images = torch.rand(4, 3, 16, 16, device="cuda") * 2 - 1
        noise = torch.randn_like(images)
        steps = torch.randint(0, 100, (4,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            found = model(schedule.add_noise(images, noise, steps), steps).sample
        loss = F.mse_loss(found.float(), noise)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        average.step(model.parameters())
    average.copy_to(model.parameters())
    pipeline = DDPMPipeline(model, DDIMScheduler(100))
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator("cuda").manual_seed(0)
    picture = pipeline(generator=generator, num_inference_steps=4, output_type="np").images
    print(f"loss {loss.item():.3f}; a picture of {picture.shape} on {pipeline.device}")


if __name__ == "__main__":
    main()
