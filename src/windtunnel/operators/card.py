"""An operator's card: what is known of it beyond its schema, in one record for the seam, cost, checks and measure.

Sources, where a family's file names no other: the CUDA kernels' own behaviour as PyTorch documents it (notes/cuda,
native_functions.yaml, ATen/native/cuda).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from windtunnel.operators.classes import OperatorClass, bare, classify, own, tables
from windtunnel.trace.plain import Json

CUBLAS, CUDNN, CUFFT, CUSOLVER = "cuBLAS", "cuDNN", "cuFFT", "cuSOLVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of one operator; what an operator does that most others do not is false or empty elsewhere."""

    kind: OperatorClass
    """Its class of kernel."""

    # Which tensors it takes.
    anywhere: bool = False
    """Its tensors may lie on several devices."""
    host: tuple[str, ...] = ()
    """Arguments that its CUDA kernel accepts on the host, whatever their size."""
    kernel: str = ""
    """What its CUDA kernel calls itself where it refuses a dtype that the CPU's takes: see `takes`."""
    takes: str = ""
    """The dtypes that its CUDA kernel takes, in the words of `seam/torch/plans/dtypes`; "" where it takes the CPU's.

    The operators are those of which PyTorch 2.6's own operator database (`op_db` of
    torch/testing/_internal/common_methods_invocations.py) has dtypes for the CPU that it has not for CUDA. Those that
    differ in more than their dtypes stand in `kernels/`.
    """

    # What it does to memory.
    launches: bool = True
    """False: it launches nothing."""
    resizes: bool = False
    """It may change the size of its argument's storage."""
    access: Literal["", "writes", "fills first", "gathers", "scatters"] = ""
    """How it uses the memory of its first argument: it writes it and does not read it; it fills the whole result before
    it writes it; it reads only as much as it gives back; it reads and writes only as much as its last argument has."""
    hidden_writes: tuple[int, ...] = ()
    """Positions of arguments that it writes against its schema: running statistics, random states."""
    writes_if: int = 0
    """The position of the flag that says whether it does (`training`)."""
    results_only: bool = False
    """Its CUDA kernel allocates its results and nothing else (cuBLAS's workspace is `Memory.workspace`'s).

    Also elementwise operators (PyTorch's own tag `pointwise`) and what launches nothing, which do not say so. Source:
    the kernels of aten/src/ATen/native/cuda (Loops.cuh for what runs as one elementwise loop). What others allocate
    stands in `seam/torch/scratch` and `kernels/`.
    """

    hands: Literal["", "on", "part"] = ""
    """It looks at no value of its tensors: it hands all of them on, or the part that indices or a mask choose."""
    transfers: bool = False
    """It copies from one device to another, the host's values among them."""

    # How its values come about without a GPU.
    moves: bool = False
    """It moves elements and looks at none, so that its CUDA kernel takes any dtype: the CPU's sees their bits."""
    gpu_alone: Literal["", "sparse", "packed", "fused"] = ""
    """PyTorch has its kernel for CUDA alone, and nothing here computes it: why, as `kernels/gpu_alone` has words for.

    They are those of native_functions.yaml (PyTorch 2.13) with CUDA under `dispatch:` and neither CPU nor a composite.
    """
    bounds: bool = False
    """Its CUDA kernel compares with its numbers in float32 where elements are half precision: none is too large.

    Source: aten/src/ATen/native/cuda/TensorCompare.cu, ActivationHardtanhKernel.cu, ForeachBinaryOpScalar.cu.
    """
    widened: bool = False
    """Its half precision is computed in float32 and rounded: see `kernels/half`, which has the source."""

    # What the host hears of it.
    waits: Literal["", "always", "mask", "values"] = ""
    """When its CUDA kernel makes the host wait: always; if an index is a mask, since the host must know how many
    elements it selects; by its values or arguments, which a handler decides."""
    what: str = ""
    """What the program did that made the host wait, in its own words."""
    advice: str = ""
    """What it could do instead: a sentence, or a name of those in `checks/host_sync`."""
    asserts: bool = False
    """Its CUDA kernel asserts that indices, targets or probabilities are in range, where the CPU's raises."""
    alert: str = ""
    """What it calls itself if `torch.use_deterministic_algorithms` is on, as it computes in no fixed order.

    The operators are those of that function's own documentation, the names those of PyTorch's CUDA kernels
    (aten/src/ATen/native/cuda, `alertNotDeterministic`).
    """
    ordered: str = ""
    """The PyTorch from which on it has a fixed order while that function is on, and no `alert`."""

    # Libraries and precision.
    library: str = ""
    """Whose handle it takes (native/cuda/Blas.cpp, native/cudnn/, native/cuda/linalg/BatchLinearAlgebra.cpp)."""
    workspace: bool = False
    """It takes cuBLAS's workspace with its handle."""
    one_matrix: bool = False
    """Its library computes it for one matrix; cuBLAS or MAGMA may for a batch."""
    tf32: Literal["", "cuBLAS", "cuDNN"] = ""
    """The library whose TF32 switch in PyTorch its time depends on."""
    autocast: Literal["", "lower", "float32", "result", "append", "promote", "ban", "recurrent"] = ""
    """The rule by which autocast runs it on CUDA: see `kernels/autocast`.

    Source: PyTorch's notes/amp ("CUDA Op-Specific Behavior") and aten/src/ATen/autocast_mode.h,
    AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE and
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE.
    """
    autocast_cpu: Literal["", "lower", "promote"] = ""
    """The same of the operators that only the CPU's lists have; the others there run in float32."""

    # What its time depends on.
    layout: Literal["", "order", "channels"] = ""
    """Its time depends on how operands lie in memory: whether in the order of the result (norms and softmax make a
    contiguous copy of one that does not: `expect_contiguous`, `contiguous` in ATen/native/cuda); whether the channels
    of images come last, for which it has another kernel."""
    attributes: bool = False
    """Its time depends on more than the shapes of its tensors."""
    together: str = ""
    """From this version of PyTorch on its blocks share the planes of small images among them."""
    passes: int = 0
    """Of a recurrent operator: how many products each matrix takes part in for a step."""
    query: int | None = None
    """Of attention: the position of the query, before key and value, which may have fewer heads."""
    counted_as: str = ""
    """Of a kernel of attention whose tensors are (batch, tokens, heads, width): the operator that counts alike with
    heads before tokens, whose query is at `query`."""
    texts: int = 0
    """Of such a kernel: the position of the texts' beginnings, None where all texts are equally long."""
    measured_as: str = ""
    """The operator whose measured kernels are this one's too."""

    # Rehearsals without data.
    exact: bool | Literal["from shapes"] = False
    """It is run on the values that are known too; "from shapes": they follow from numbers and shapes."""

    @property
    def overwrites(self) -> bool:
        """Whether nothing is left of the values of its first argument, and those that it gets are known."""
        return self.access == "writes" and self.exact is True


@cache
def card(name: str) -> Card:
    """The card of an operator by its name, with or without overload; of other namespaces than aten's only its class."""
    kind = classify(name)
    facts = _facts(own(name)) if name.startswith("aten::") else {}
    return Card(kind=kind, **{"layout": kind.layout, **facts})


def stating(field: str) -> Json:
    """What the operators say of one field of their cards, by name; those that have nothing to say of it are left out.

    With them are the names of their in-place forms, whether PyTorch has such a form or not.
    """
    rows = tables().rows
    found = {name: facts[field] for name, facts in rows.items() if field in facts}
    in_place = {f"{name}_": value for name, value in found.items() if not name.endswith("_")}
    return {f"aten::{name}": value for name, value in (in_place | found).items()}


def _facts(name: str) -> Json:
    rows = tables().rows
    stated: Json = rows.get(bare(name), {}) | rows.get(name, {})
    return {field: tuple(value) if isinstance(value, list) else value for field, value in stated.items()}
