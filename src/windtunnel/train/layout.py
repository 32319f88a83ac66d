"""The memory format of convolutional models: channels last if tensor cores compute the convolutions."""

from __future__ import annotations

import torch
from torch import nn

from windtunnel.errors import UsageError
from windtunnel.train.precision import Precision
from windtunnel.train.strategies import SingleDevice

TENSOR_CORES_SINCE = (7, 0)  # compute capability of Volta


def wants_channels_last(chosen: bool | None, model: nn.Module, strategy: SingleDevice, precision: Precision) -> bool:
    """Whether `model`'s weights should be laid out as (N, H, W, C); `chosen` is the user's choice, None for automatic.

    cuDNN's tensor-core convolutions want their tensors channels last and transpose others on the way in and out. The
    weights' format decides for the activations too: PyTorch's convolutions give their output the format of their
    weights. Float32 without TF32 runs on no tensor core and gains nothing. Source: PyTorch's "Channels Last Memory
    Format" tutorial, and `cudnn_conv_suggest_memory_format` in aten/src/ATen/native/ConvUtils.h.

    Raises UsageError if the user wants it and the strategy does not support it.
    """
    if chosen is False:
        return False
    if strategy.name == "fsdp":
        if chosen:
            raise UsageError(
                "channels_last=True does not work with strategy 'fsdp', which flattens parameters: leave it out."
            )
        return False
    if chosen:
        return True
    device = strategy.device
    if device.type != "cuda" or precision.name == "fp32":
        return False
    has_tensor_cores = torch.cuda.get_device_capability(device) >= TENSOR_CORES_SINCE
    return has_tensor_cores and any(isinstance(module, nn.Conv2d) for module in model.modules())
