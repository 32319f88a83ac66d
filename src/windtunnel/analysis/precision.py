"""What becomes of a trace's rows in half precision, or with sizes that tensor cores take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import prod

from windtunnel.analysis.rule import AS_IT_WAS, Change, Remedy
from windtunnel.cost.model import CostModel
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Lane, Signature
from windtunnel.trace.rows import Row
from windtunnel.trace.trace import Trace

IN_FULL = ("softmax", "norm", "loss", "entropy", "exp", "log", "pow", "cumsum", "prod")
"""Words in the names of operators that autocast always runs in FP32."""
FULL = frozenset({"float32", "float", "fp32"})
TOLD_APART = 4
"""How many tensors of one shape are told apart: the most recent ones."""
PARAMETERS = {"aten::addmm": (0, 2), "aten::convolution": (1, 2)}
"""Which operands of a product are parameters: autocast casts them once a step."""


class Repriced(Remedy):
    """Kernels of matrix work that cost what another signature does."""

    def prepare(self) -> None:
        """Begin without prices."""
        self.ratios: dict[tuple[int, Signature, Signature], float] = {}

    def other(self, signature: Signature) -> Signature:
        """The signature whose price is taken; the same one where nothing changes."""
        raise NotImplementedError

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Scale a kernel by the ratio of the two prices."""
        if row[0] != Kind.KERNEL:
            return AS_IT_WAS
        signature = self.trace.signatures[row[2]]
        ratio = self.ratio(lane.device, signature, self.other(signature)) if signature.flops else 1.0
        return AS_IT_WAS if ratio == 1.0 else Change(scale=ratio)

    def ratio(self, device: int, signature: Signature, other: Signature) -> float:
        """What the other signature costs for each nanosecond of this one."""
        if other is signature:
            return 1.0
        key = device, signature, other
        if key not in self.ratios:
            before, after = self.price_ns(device, signature), self.price_ns(device, other)
            self.ratios[key] = after / before if before else 1.0
        return self.ratios[key]

    def price_ns(self, device: int, signature: Signature) -> int:
        """What a signature costs on a device."""
        return self.old[device].kernel(signature).duration_ns


class Tf32(Repriced):
    """Matrix work in TF32, which is a setting and changes nothing else."""

    def other(self, signature: Signature) -> Signature:
        """The same product with the setting."""
        if not _is_float32(signature) or ("tf32", 1) in signature.detail:
            return signature
        return signature._replace(detail=(*signature.detail, ("tf32", 1)))


class Autocast(Repriced):
    """Matrix work in FP16, what works on its results too, and the casts of what is still FP32.

    A trace does not say which tensor is which: an operand is taken to be the tensor of its shape and type that was made
    last, and of two such operands the last two. Products write FP16; other operators write what they read, FP32 where
    they read both; those of `IN_FULL` read a copy in FP32. A product casts its parameters, and operands in FP32; the
    gradient of a parameter that was cast is cast back. A step, and a batch that is copied, begins anew.
    """

    def prepare(self) -> None:
        """Everything is FP32."""
        super().prepare()
        self.made: defaultdict[Shape, list[bool]] = defaultdict(list)  # by shape, the last ones: whether in FP16
        self.on_host: set[int] = set()  # bytes of what was copied there
        self.cast: set[Shape] = set()

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Price a kernel by what it reads, with the casts of its operands."""
        signature = self.trace.signatures[row[2]]
        if row[0] == Kind.COPY:
            return self._copied(signature.name, {_size(shape) for shape in signature.shapes}, row[7])
        if row[0] == Kind.STEP:
            self.cast.clear()
            self.made.clear()
        if row[0] != Kind.KERNEL or "foreach" in signature.name or not _is_float32(signature):
            return AS_IT_WAS
        tensors = [
            (_size(shape), dtype.removeprefix("torch.") in FULL)
            for shape, dtype in zip(signature.shapes, signature.dtypes, strict=False)
        ]
        inputs, outputs = tensors[: signature.inputs], tensors[signature.inputs :]
        read = self._read(inputs)
        name = signature.name
        casts: list[Shape] = []
        if signature.flops:
            casts = self._casts(name, inputs, read)
            read, half = [full for _, full in inputs], True
        elif any(word in name for word in IN_FULL) and "batch_norm" not in name:
            casts = [shape for (shape, _), is_half in zip(inputs, read, strict=True) if is_half]
            read, half = [False] * len(inputs), False
        else:
            half = self._written(name, signature.shapes, inputs, read, outputs)
        halves = [*read, *(half and full for _, full in outputs)]
        if (signature.flops and name not in PARAMETERS) or name == "aten::sum":
            casts += [shape for shape, full in outputs if half and full and shape in self.cast]
        for shape, full in outputs:
            if full:
                self._make(shape, half)
        if not any(halves) and not casts:
            return AS_IT_WAS
        scale = self.ratio(lane.device, signature, _halved(signature, halves))
        return Change(scale=scale, first=tuple(map(_cast, casts)))

    def _read(self, inputs: Sequence[Tensor]) -> list[bool]:
        """Which operands are in FP16."""
        left = Counter(shape for shape, full in inputs if full)
        found = []
        for shape, full in inputs:
            last = self.made[shape][-left[shape] :] if full else []
            found.append(full and bool(last) and last[0])
            left[shape] -= full
        return found

    def _written(
        self, name: str, shapes: Sequence[Shape], inputs: Sequence[Tensor], read: list[bool], outputs: Sequence[Tensor]
    ) -> bool:
        """Whether an operator that is no product writes FP16."""
        if name == "aten::sum":  # autocast makes it FP32, but backward, where it is a bias's gradient, has no autocast
            return any(read) and any(shape in self.cast for shape, _ in outputs)
        if "batch_norm" in name:
            return read[0]
        large = [half for half, (_, full), shape in zip(read, inputs, shapes, strict=False) if full and shape]
        return bool(large) and all(large)

    def _make(self, shape: Shape, half: bool) -> None:
        self.made[shape] = [*self.made[shape][1 - TOLD_APART :], half]

    def _copied(self, name: str, shapes: set[Shape], size_bytes: int) -> Change:
        """What goes to the host in FP16 is half as large, and comes back so; anything else that comes is a batch."""
        if "DtoH" in name:
            half = any(last[-1] and 4 * prod(shape) == size_bytes for shape, last in self.made.items() if last)
            self.on_host |= {size_bytes} if half else set()
            return Change(scale=0.5) if half else AS_IT_WAS
        back = size_bytes in self.on_host
        for shape in shapes:
            self._make(shape, back)
        if back:
            return Change(scale=0.5)
        self.cast.clear()
        return AS_IT_WAS

    def _casts(self, name: str, inputs: Sequence[Tensor], read: list[bool]) -> list[Shape]:
        """What a product casts before it begins."""
        parameters = PARAMETERS.get(name, ())
        found = []
        for at, ((shape, full), half) in enumerate(zip(inputs, read, strict=True)):
            if at in parameters:
                found += [shape] if full else []
                self.cast.add(shape)
            elif full and not half and shape not in self.cast:
                found.append(shape)
                self._make(shape, True)
        return found


Shape = tuple[int, ...]
Tensor = tuple[Shape, bool]
"""An operand or a result: its shape, and whether the program has it in FP32."""


def _size(shape: Shape) -> Shape:
    """A shape's sizes in order, but for those of 1: as of a matrix and its transpose, a bias and its gradient."""
    return tuple(sorted(size for size in shape if size != 1))


def _cast(shape: Shape) -> Signature:
    elements = prod(shape)
    return Signature("aten::_to_copy", (shape, shape), ("float32", "float16"), 1, 0, 4 * elements, 2 * elements)


def _halved(signature: Signature, halves: Sequence[bool]) -> Signature:
    """The kernel with some of its operands and results in FP16."""
    dtypes = tuple("float16" if half else dtype for dtype, half in zip(signature.dtypes, halves, strict=False))
    sizes = [2 * prod(shape) if half else 0 for shape, half in zip(signature.shapes, halves, strict=False)]
    return signature._replace(
        dtypes=dtypes,
        read_bytes=max(signature.read_bytes // 2, signature.read_bytes - sum(sizes[: signature.inputs])),
        written_bytes=max(signature.written_bytes // 2, signature.written_bytes - sum(sizes[signature.inputs :])),
    )


def _is_float32(signature: Signature) -> bool:
    return any(dtype.removeprefix("torch.") in FULL for dtype in signature.dtypes[:1])


def half_precision(trace: Trace, findings: Sequence[Finding], old: Sequence[CostModel]) -> Remedy:
    """TF32 where the GPUs have it, autocast otherwise."""
    ampere = all(model.gpu.compute_capability >= (8, 0) for model in old)
    return (Tf32 if ampere else Autocast)(trace, findings, old)


class Aligned(Repriced):
    """Matrix work whose sizes are multiples of eight."""

    def other(self, signature: Signature) -> Signature:
        """The same product, padded."""
        shapes = tuple(
            (*shape[:-2], *(-(-size // 8) * 8 for size in shape[-2:])) if len(shape) >= 2 else shape
            for shape in signature.shapes
        )
        return signature if shapes == signature.shapes else signature._replace(shapes=shapes)
