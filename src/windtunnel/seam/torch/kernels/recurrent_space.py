"""How cuDNN lays out the weights of recurrent layers, and what memory it asks for.

cuDNN says how much it needs only when asked (`cudnnGetRNNTempSpaceSizes`). The formulas here are fitted to what
programs printed on GPUs: pytorch#2895 (P100, float32, 4 layers of 320 units, inputs of 123, 25,000 steps x texts) and
SeanNaren/deepspeech.pytorch#172 (float32, one bidirectional GRU layer of 800 units, 326 steps of 64 texts).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from windtunnel.seam.torch.plans.arguments import Keywords
from windtunnel.seam.torch.scratch.need import Demand, Need, Row, size_of

RNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""cudnnRNNMode_t."""
LSTM = 2
GATES = {0: 1, 1: 1, LSTM: 4, 3: 3}
"""Matrices of each kind that a layer has, by cudnnRNNMode_t: relu, tanh, LSTM, GRU."""
KEPT = {0: 1, 1: 1, LSTM: 5, 3: 6}
"""Numbers that the reserve space has of each step, text and unit of a layer, besides the outputs between layers. Both
issues print it, to the byte: 4 x 25,000 x 320 x (4 x 5 + 3) = 736,000,000 for the LSTM, (4 x 6 + 3) = 864,000,000 for
the GRU, and 4 x 326 x 64 x 800 x 2 x 6 = 801,177,600 for the bidirectional GRU. A plain RNN's is assumed."""
TEXT = {0: 3, 1: 3, LSTM: 11, 3: 8}
"""Numbers of the workspace of each text and unit of a layer: what is left of pytorch#2895's workspaces beside the
matrices, 17,730,560 bytes for the LSTM and 13,169,920 for the GRU, if its batches are of 100. A plain RNN's is assumed.
"""
BOTH_WAYS = 2
"""And of each step, text and unit of a layer of two directions, so that the workspace of the bidirectional GRU comes
out 5 % below the 313,344,000 bytes that deepspeech.pytorch#172 prints."""


class Pieces(NamedTuple):
    """Where each weight begins in the one buffer, in elements, and how many elements that has."""

    offsets: list[int]
    numel: int

    def of(self, buffer: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        """The pieces of a buffer, in the weights' shapes."""
        return [
            buffer[offset : offset + weight.numel()].view(weight.shape)
            for weight, offset in zip(weights, self.offsets, strict=True)
        ]


def pieces(weights: list[torch.Tensor], stride: int, mode: int, units: int) -> Pieces:
    """cuDNN's order: the matrices of all layers and directions, then all biases, which it has in any case.

    `weights` has `stride` tensors for each layer and direction: input's and state's matrix, two biases unless `stride`
    is 2 or 3, and the projection where `stride` is odd.
    """
    offsets = [0] * len(weights)
    position = 0
    for biases in (False, True):
        for number, weight in enumerate(weights):
            if (weight.dim() == 1) == biases:
                offsets[number] = position
                position += weight.numel()
    if stride < 4:
        position += 2 * GATES[mode] * units * (len(weights) // stride)
    return Pieces(offsets, position)


def _numbers(given: Keywords) -> tuple[int, int, int, int]:
    """(steps x texts, texts, layers, directions)."""
    shape, sizes = given["input"].shape, given["batch_sizes"]
    texts = sizes[0] if sizes else shape[0 if given["batch_first"] else 1]
    return prod(shape[:-1]), texts, given["num_layers"], 1 + given["bidirectional"]


def reserve_bytes(given: Keywords) -> int:
    """What a forward pass in training leaves for the backward pass."""
    cells, _, layers, directions = _numbers(given)
    numbers = directions * (layers * KEPT[given["mode"]] + layers - 1)
    return int(cells * given["hidden_size"] * numbers * given["input"].element_size())


def workspace(call: Demand) -> Need:
    """What either pass takes while it runs: the matrices once more, and some numbers of each text and unit.

    An input whose steps do not come first is copied before. The bound is widened by as much again, and by the reserve
    space in training, since cuDNN's versions differ and half precision was never printed.
    """
    given = call.arguments
    tensor, weights, mode = given["input"], given["weight"], given["mode"]
    cells, texts, layers, directions = _numbers(given)
    numbers = TEXT[mode] * layers * directions * texts + (BOTH_WAYS * 2 * cells if directions == 2 else 0)
    size = sum(size_of(weight) for weight in weights if weight.dim() > 1)
    size += numbers * given["hidden_size"] * tensor.element_size()
    turned = given["batch_first"] and not given["batch_sizes"]
    steps = tensor.transpose(0, 1) if turned else tensor
    copies = () if steps.is_contiguous() else (size_of(tensor),)
    return Need((*copies, size), size + (reserve_bytes(given) if given["train"] else 0))


SCRATCH = (
    Row(("_cudnn_rnn", "_cudnn_rnn_backward"), workspace,
        "aten/src/ATen/native/cudnn/RNN.cpp; printed: pytorch#2895, SeanNaren/deepspeech.pytorch#172", exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
