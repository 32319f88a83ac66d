"""What one call of cuDNN's recurrent layers computes: products of all steps at once, and a chain of one a step.

cuDNN multiplies the inputs of all steps with their matrices in one product a layer; each step then waits for the state
that the step before it left. So the time is that of some large products and of a chain of small ones.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from windtunnel.trace.operation import Signature

TRUE = ("1", "True")
"""How a truth value stands in a signature: as 1, in older traces as a word."""
GATES = (1, 1, 4, 3)
"""Matrices of each kind, by cudnnRNNMode_t: relu, tanh, LSTM, GRU."""
STEP_US = 28.0
"""The shortest step on Volta: 30 µs in DeepBench's LSTM of 256 units and 16 texts, 27 µs in float16 (DeepBench,
results/train/DeepBench_NV_V100.xlsx, cuDNN 7.6)."""
FURTHER = 0.45
"""What each further layer adds to a chain, in steps: assumed. That layers overlap is from Appleyard et al. (arXiv
1604.01946), whose figures for it could not be looked up. The two directions of a layer are assumed to overlap alike."""
SHARE = 1.15
"""Of the efficiency of matrix products: fitted to the same table, whose products are of regular shapes."""
BAND = 0.5
"""Chosen on the table that `STEP_US` and `SHARE` were fitted to: of its 208 times (float32 and float16, forward and
both halves of the backward pass, one layer) 191 are within a factor of 1.5 of the model, and all between 0.48 (plain
RNNs in float16) and 1.85."""


PERSISTENT = (12, 0)
"""From this CUDA's PyTorch on, cuDNN keeps the matrices of few units on the chip (its 8.2.1)."""
MOST_UNITS = {False: (384, 384, 192, 192), True: (256, 256, 128, 128)}
"""Up to so many, forward and backward, by kind: `use_rnn_persist_small_h` in aten/src/ATen/native/cudnn/RNN.cpp.

An H200 does so in 32 bits; in 16 its steps of 128 units take six times as long, as those of many units do."""
PERSISTENT_CYCLES = 4500.0
"""A step of theirs: an H200's of 128 units and 32 texts take 4,300 (LSTM) and 1,700 (GRU) forward, 5,000 backward."""


class Recurrence(NamedTuple):
    """The sizes of one call. `cells` are steps times texts, `width` is what a layer gives on: units or a projection.

    `persists` says that the matrices of its steps stay on the chip.
    """

    gates: int
    inputs: int
    units: int
    width: int
    layers: int
    directions: int
    steps: int
    cells: int
    persists: bool = False

    @property
    def input_flops(self) -> list[int]:
        """Operations of each layer's products with its inputs, of all steps and both directions."""
        wide = [self.inputs, *[self.width * self.directions] * (self.layers - 1)]
        return [2 * self.cells * self.gates * self.units * size * self.directions for size in wide]

    @property
    def matrix(self) -> int:
        """Elements of the matrices that each step of a layer and direction reads."""
        projection = self.units * self.width if self.width != self.units else 0
        return self.gates * self.units * self.width + projection

    @property
    def flops(self) -> int:
        """Operations of a forward pass; a backward pass has twice as many."""
        return sum(self.input_flops) + 2 * self.cells * self.matrix * self.layers * self.directions


def recurrence(signature: Signature) -> Recurrence | None:
    """The sizes, from the arguments that the seam wrote down; None where it did not (another framework's layer)."""
    detail = {name: str(value) for name, value in signature.detail}
    if "hidden_size" not in detail or not signature.shapes:
        return None
    shape = signature.shapes[0]
    sizes = [size for size in detail.get("batch_sizes", "[]").strip("[]").split(",") if size.strip()]
    steps = len(sizes) or shape[1 if detail.get("batch_first") in TRUE else 0]
    units, mode = int(detail["hidden_size"]), int(detail["mode"])
    projected, in_32_bits = int(detail.get("proj_size", "0")), "float32" in signature.dtypes[0]
    small = units <= MOST_UNITS[signature.name.endswith("_backward")][mode]
    return Recurrence(
        GATES[mode],
        shape[-1],
        units,
        projected or units,
        int(detail["num_layers"]),
        1 + (detail.get("bidirectional") in TRUE),
        max(1, steps),
        prod(shape[:-1]),
        small and in_32_bits and not sizes and not projected,
    )
