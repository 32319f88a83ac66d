"""A few training steps of vision libraries, on the CPU and on a GPU: the losses are the same.

windtunnel run --gpus A100 vision.py vit_pytorch
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from beside_cpu import compare, steps
from torch import nn
from torch.nn import functional as F
from torchvision_operators import declare_operators


def vit_pytorch(device: str) -> Iterator[float]:
    """A vision transformer on patches."""
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=5, dim=64, depth=2, heads=4, mlp_dim=128).to(device)
    images, labels = torch.randn(4, 3, 32, 32).to(device), torch.randint(0, 5, (4,)).to(device)
    return steps(model, lambda: F.cross_entropy(model(images), labels))


def denoising_diffusion(device: str) -> Iterator[float]:
    """The loss of a denoising U-Net with linear and full attention, at steps and with noise drawn on the host."""
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    diffusion = GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=16, timesteps=100).to(device)
    images, noise = torch.rand(4, 3, 16, 16).to(device), torch.randn(4, 3, 16, 16).to(device)
    at = torch.randint(0, 100, (4,)).to(device)
    return steps(diffusion, lambda: diffusion.p_losses(images, at, noise=noise, offset_noise_strength=0.0))


def open_clip(device: str) -> Iterator[float]:
    """A small CLIP: a vision transformer, a text transformer, the contrastive loss of both."""
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP

    seen = {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8}
    read = {"context_length": 16, "vocab_size": 100, "width": 64, "heads": 4, "layers": 2}
    model = CLIP(embed_dim=32, vision_cfg=seen, text_cfg=read).to(device)
    images, texts = torch.randn(8, 3, 32, 32).to(device), torch.randint(1, 100, (8, 16)).to(device)
    loss = ClipLoss()
    return steps(model, lambda: loss(*model(images, texts)))


def segmentation_models(device: str) -> Iterator[float]:
    """A U-Net on ResNet-18 and the Dice loss."""
    import segmentation_models_pytorch as library

    model = library.Unet("resnet18", encoder_weights=None, classes=3).to(device)
    images, labels = torch.randn(2, 3, 64, 64).to(device), torch.randint(0, 3, (2, 64, 64)).to(device)
    loss = library.losses.DiceLoss(mode="multiclass")
    return steps(model, lambda: loss(model(images), labels))


def diffusion_transformer(device: str) -> Iterator[float]:
    """A small DiT under its Gaussian diffusion, at steps and with noise drawn on the host."""
    from diffusion import create_diffusion
    from models import DiT

    model = DiT(input_size=8, hidden_size=64, depth=2, num_heads=4, num_classes=5, class_dropout_prob=0.0)
    for parameter in model.parameters():  # a new DiT predicts nothing but zeros
        nn.init.normal_(parameter, std=0.05) if parameter.requires_grad else None
    model = model.to(device)
    diffusion = create_diffusion(timestep_respacing="")
    images, noise = torch.randn(4, 4, 8, 8).to(device), torch.randn(4, 4, 8, 8).to(device)
    at, labels = torch.randint(0, 1000, (4,)).to(device), torch.randint(0, 5, (4,)).to(device)

    def loss() -> torch.Tensor:
        value: torch.Tensor = diffusion.training_losses(model, images, at, {"y": labels}, noise)["loss"].mean()
        return value

    return steps(model, loss)


if __name__ == "__main__":
    declare_operators()
    compare(sys.argv[1], globals()[sys.argv[1]])
