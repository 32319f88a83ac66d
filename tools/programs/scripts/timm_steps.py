"""Three training steps in autocast of models of timm, convolutional and attentional, on the GPU.

windtunnel run --gpus A100 timm_steps.py
"""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

MODELS = {
    "resnet18": 64,
    "efficientnet_b0": 64,
    "mobilenetv3_small_100": 64,
    "convnext_atto": 64,
    "vit_tiny_patch16_224": 224,
    "mixer_s32_224": 224,
}


def train(name: str, size: int) -> float:
    """Forward, backward and an optimizer's step of two images, three times; the last loss."""
    model = timm.create_model(name, num_classes=10).cuda()
    average = ModelEmaV3(model)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    mix = Mixup(mixup_alpha=0.2, num_classes=10)
    images, labels = mix(torch.randn(2, 3, size, size, device="cuda"), torch.tensor([1, 2], device="cuda"))
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = SoftTargetCrossEntropy()(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update(model)
    return loss.item()


def main() -> None:
    """Every model once."""
    torch.manual_seed(0)
    for name, size in MODELS.items():
        loss = train(name, size)
        assert loss == loss, f"{name}: the loss is not a number"
        print(f"{name}: loss {loss:.3f}, peak {torch.cuda.max_memory_allocated() >> 20} MiB")
    print("all models took their steps")


if __name__ == "__main__":
    main()
