"""What becomes of a trace's rows when a finding's advice is followed: a rule for each fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import ClassVar

from understudy.cost.model import CostModel
from understudy.trace.finding import Finding, Fix
from understudy.trace.operation import LAUNCH_GAP_NS, Kind, Lane, Signature
from understudy.trace.rows import Row
from understudy.trace.trace import Trace

ROWS, MOST_ROWS, ENOUGH_STEPS = 5_000, 40_000, 6
"""How much of a trace is replayed for each fix, the beginning of a long run for all of it: so many rows, or as many as
make so many steps."""
STEPS = 4
"""From so many steps on the share is that of a step, the first left out; otherwise it is that of the run."""
WORKERS = 4
"""Processes that the advice on input names: what they prepare takes a fourth of the time at least."""
NUMBER_BYTES = 16
"""Copies up to this size are those of a single number."""
IN_FULL = ("softmax", "norm", "loss", "entropy", "exp", "log", "pow", "cumsum", "prod")
"""Words in the names of operators that autocast leaves in FP32, whatever they are given."""
PARAMETERS = {"aten::addmm": (0, 2), "aten::convolution": (1, 2)}
"""Which operands of a product are parameters: autocast casts them once a step, whoever made them."""

Line = tuple[str, int]


@dataclass
class Change:
    """What becomes of one row."""

    keep: bool = True
    gap_ns: int | None = None
    """The host's time since its row before; as it was when None."""
    scale: float = 1.0
    lead_ns: int = 0
    row: Row | None = None
    waited: bool = False
    """Whether the host waited within the call, and does so no longer."""
    casts: tuple[Signature, ...] = ()
    """Kernels that are launched before it."""


AS_IT_WAS = Change()
GONE = Change(keep=False)


class Remedy:
    """A rule for rows. `finding` says where; `old` are the cost models of the trace's GPUs."""

    def __init__(self, trace: Trace, findings: Sequence[Finding], old: Sequence[CostModel]) -> None:
        self.trace = trace
        self.old = old
        self.lines: set[Line] = {
            (site.file, site.line) for one in findings for site in (one.site, one.other) if site.file
        }
        self.sites = {number for number, site in enumerate(trace.sites) if (site.file, site.line) in self.lines}
        self.prepare()

    def prepare(self) -> None:
        """Look at the trace as a whole before the first row."""

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """What becomes of a row; `gap_ns` is the host's time since the row before it in its thread."""
        raise NotImplementedError

    def shortest_ns(self, after_ns: float) -> float:
        """The window with the change, at least what work that goes on elsewhere leaves of it."""
        return after_ns

    def name(self, row: Row) -> str:
        """The name of a row's signature."""
        return self.trace.signatures[row[2]].name

    def pinned(self, row: Row, lane: Lane) -> Change:
        """A copy from or to pinned memory, which the host does not wait for."""
        signature = self.trace.signatures[row[2]]
        if "Pageable" not in signature.name:
            return AS_IT_WAS
        ends = (-1, lane.device) if "HtoD" in signature.name else (lane.device, -1)
        pinned_ns = self.old[lane.device].copy_ns(row[7], *ends, True)
        changed = signature._replace(name=signature.name.replace("Pageable", "Pinned"))
        row_now = (*row[:2], self.trace.signatures.number(changed), *row[3:])
        waited = ("non_blocking", 1) in signature.detail
        return Change(scale=pinned_ns / max(1, row[6] - row[5]), row=row_now, waited=waited)


class NoWait(Remedy):
    """The host does not wait at these lines; copies stay, but those of a number that is only kept."""

    def prepare(self) -> None:
        """Find the lines whose number needs no copy (`total += loss.item()` adds), and repeated copies."""
        copies = Counter(row[3] for row in rows_of(self.trace) if row[0] == Kind.COPY)
        self.repeated = {site for site, times in copies.items() if times >= STEPS}
        lines = {site: self.trace.line(self.trace.sites[site]).split("#")[0].strip() for site in self.sites}
        self.kept = {
            site
            for site, line in lines.items()
            if ".item()" in line and "+=" not in line and not line.startswith(("if ", "elif ", "while ", "assert "))
        }

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Leave waits out, and the copies of single numbers that nothing takes the place of."""
        if row[3] not in self.sites:
            return AS_IT_WAS
        if row[0] == Kind.COPY and row[3] in self.kept and row[7] <= NUMBER_BYTES and "DtoH" in self.name(row):
            return Change(keep=False, gap_ns=0)
        if row[0] == Kind.COPY and row[3] in self.repeated and "DtoH" in self.name(row):
            # With `non_blocking=True` PyTorch takes pinned memory, which is worth its making where it is used again.
            return self.pinned(row, lane)
        return GONE if row[0] == Kind.SYNCHRONIZE else AS_IT_WAS


class Pin(Remedy):
    """Copies of these lines come from pinned memory, and the host does not wait for them."""

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Price a copy as pinned, leave its wait out."""
        if row[3] not in self.sites:
            return AS_IT_WAS
        if row[0] == Kind.SYNCHRONIZE:
            return GONE
        return self.pinned(row, lane) if row[0] == Kind.COPY else AS_IT_WAS


class CopyOnce(Remedy):
    """The first copies of these lines are the only ones."""

    keep: ClassVar[int] = 2

    def prepare(self) -> None:
        """Count copies by line."""
        self.seen: dict[int, int] = {}

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Leave out copies and waits of these lines, with the host's time for them."""
        site = row[3]
        if site not in self.sites or row[0] not in (Kind.COPY, Kind.SYNCHRONIZE):
            return AS_IT_WAS
        if row[0] == Kind.COPY:
            self.seen[site] = self.seen.get(site, 0) + 1
        return AS_IT_WAS if self.seen.get(site, 0) <= self.keep else Change(keep=False, gap_ns=0)


class NoCopy(CopyOnce):
    """These lines copy nothing."""

    keep: ClassVar[int] = 0


class OneCopy(Remedy):
    """What these lines copy in a row goes in one copy."""

    def prepare(self) -> None:
        """Add up the bytes of each row of copies."""
        self.firsts: dict[int, int] = {}  # row of the first copy -> bytes of all
        first: int | None = None
        for index, row in enumerate(rows_of(self.trace)):
            if row[0] == Kind.COPY and row[3] in self.sites:
                first = index if first is None else first
                self.firsts[first] = self.firsts.get(first, 0) + row[7]
            elif row[0] == Kind.KERNEL:
                first = None

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The first copy takes all bytes, the others go."""
        if row[3] not in self.sites or row[0] not in (Kind.COPY, Kind.SYNCHRONIZE):
            return AS_IT_WAS
        if row[0] == Kind.SYNCHRONIZE:
            return AS_IT_WAS if index - 1 in self.firsts else Change(keep=False, gap_ns=0)
        if index not in self.firsts:
            return Change(keep=False, gap_ns=0)
        name = self.name(row)
        ends = (-1, lane.device) if "HtoD" in name else (lane.device, -1)
        copied_ns = self.old[lane.device].copy_ns(self.firsts[index], *ends, "Pinned" in name)
        return Change(scale=copied_ns / max(1, row[6] - row[5]))


class Repriced(Remedy):
    """Kernels of matrix work that cost what another signature does."""

    def prepare(self) -> None:
        """Begin without prices."""
        self.ratios: dict[tuple[int, Signature], float] = {}

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
        key = device, signature
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

    A trace does not say which tensor is which: a shape stands for the tensors that have it. Products write FP16, other
    operators what they read, those of `IN_FULL` FP32. A product casts its parameters, and operands in FP32; the
    gradient of a parameter that was cast is cast back. A step, and a batch that is copied, begins anew.
    """

    def prepare(self) -> None:
        """Everything is FP32."""
        super().prepare()
        self.halves: set[Shape] = set()
        self.on_host: set[int] = set()  # bytes of what was copied there
        self.cast: set[Shape] = set()

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Price a kernel by what it reads, with the casts of its operands."""
        signature = self.trace.signatures[row[2]]
        if row[0] == Kind.COPY:
            return self._copied(signature.name, {_size(shape) for shape in signature.shapes}, row[7])
        if row[0] == Kind.STEP:
            self.cast.clear()
            self.halves.clear()
        if row[0] != Kind.KERNEL or not _is_float32(signature) or "foreach" in signature.name:
            return AS_IT_WAS
        given = [_size(shape) for shape in signature.shapes[: signature.inputs]]
        made = [_size(shape) for shape in signature.shapes[signature.inputs :]]
        in_full = any(word in signature.name for word in IN_FULL)
        if not signature.flops and (in_full or self.halves.isdisjoint(given)):
            self.halves.difference_update(made)
            return AS_IT_WAS
        casts = self._casts(signature, given) if signature.flops else []
        self.halves.update(made)
        casts += [shape for shape in made if shape in self.cast]
        return Change(scale=self.ratio(lane.device, signature, _halved(signature)), casts=tuple(map(_cast, casts)))

    def _copied(self, name: str, shapes: set[Shape], size_bytes: int) -> Change:
        """What goes to the host in FP16 is half as large, and comes back so; anything else that comes is a batch."""
        if "DtoH" in name:
            half = any(4 * prod(shape) == size_bytes for shape in self.halves)
            self.on_host |= {size_bytes} if half else set()
            return Change(scale=0.5) if half else AS_IT_WAS
        if size_bytes in self.on_host:
            self.halves |= shapes
            return Change(scale=0.5)
        self.cast.clear()
        self.halves -= shapes
        return AS_IT_WAS

    def _casts(self, signature: Signature, given: list[Shape]) -> list[Shape]:
        """What a product casts before it begins."""
        parameters = PARAMETERS.get(signature.name, ())
        found = [shape for at, shape in enumerate(given) if at in parameters or shape not in self.halves | self.cast]
        self.cast.update(shape for at, shape in enumerate(given) if at in parameters)
        self.halves.update(shape for at, shape in enumerate(given) if at not in parameters)
        return found


Shape = tuple[int, ...]


def _size(shape: Shape) -> Shape:
    """A shape's sizes in order, but for those of 1: as of a matrix and its transpose, a bias and its gradient."""
    return tuple(sorted(size for size in shape if size != 1))


def _cast(shape: Shape) -> Signature:
    elements = prod(shape)
    return Signature("aten::_to_copy", (shape, shape), ("float32", "float16"), 1, 0, 4 * elements, 2 * elements)


def _halved(signature: Signature) -> Signature:
    half = tuple("float16" if dtype.removeprefix("torch.") == "float32" else dtype for dtype in signature.dtypes)
    read, written = signature.read_bytes // 2, signature.written_bytes // 2
    return signature._replace(dtypes=half, read_bytes=read, written_bytes=written)


def _is_float32(signature: Signature) -> bool:
    return bool(signature.dtypes) and signature.dtypes[0].removeprefix("torch.") in ("float32", "float", "fp32")


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


class FusedOptimizer(Remedy):
    """All parameters of a step in one kernel, for Adam beside one that counts the steps."""

    fusible: ClassVar = False
    """Whether steps of optimizers that PyTorch has not fused are left as they are."""

    def prepare(self) -> None:
        """Find the rows of the steps of these lines: the seam notes right after a step how many kernels it took."""
        self.steps: dict[int, tuple[int, int, int]] = {}  # row -> (row that counts, last one, bytes of the fused one)
        rows = list(rows_of(self.trace))
        threads = [lane.thread for lane in self.trace.lanes]
        written: dict[int, list[int]] = {}  # by thread, the rows since its last step and those of the step
        of_last: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            thread = threads[row[1]]
            if row[0] == Kind.STEP:
                of_last[thread] = written.pop(thread, [])
                continue
            written.setdefault(thread, []).append(index)
            if row[0] == Kind.NOTE and row[3] in self.sites and thread in of_last:
                note = self.trace.notes[row[7]]
                detail = dict(note.detail)
                kernels = int(detail.get("kernels", 0)) if note.code == "unfused-optimizer" else 0
                before = of_last[thread]
                of_step = [at for at in before[max(0, len(before) - kernels) :] if rows[at][0] == Kind.KERNEL]
                # Half of the bytes where nothing more is known: no result is written in between.
                size = int(detail.get("fused_bytes", sum(rows[at][7] for at in of_step) // 2))
                if of_step and (not self.fusible or "fused_bytes" in detail):  # a captured graph's step has no kernels
                    counts = of_step[0] if detail.get("optimizer") != "SGD" else of_step[-1]
                    self.steps |= dict.fromkeys(of_step, (counts, of_step[-1], size))

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The first kernel of a step counts its steps, where that is done; the last one does the rest, others go."""
        found = self.steps.get(index)
        if found is None:
            return AS_IT_WAS
        first, last, size = found
        model = self.old[lane.device]
        before_ns = max(0, gap_ns - model.dispatch_ns(self.name(row)))  # what the host did before this call
        if index not in (first, last):
            return Change(keep=False, gap_ns=before_ns)
        if index == first != last:
            return Change(gap_ns=before_ns + model.dispatch_ns("aten::_foreach_add_"), scale=0.0)
        fused = Signature("aten::_fused_adam_", dtypes=("float32",), read_bytes=size // 2, written_bytes=size // 2)
        fused_ns = model.kernel(fused).duration_ns
        return Change(gap_ns=before_ns + model.dispatch_ns(fused.name), scale=fused_ns / max(1, row[6] - row[5]))


class FusedWhereverPossible(FusedOptimizer):
    """The same for every step of an optimizer that PyTorch has fused, whichever line it is of."""

    fusible: ClassVar = True

    def prepare(self) -> None:
        """Look at all lines."""
        self.sites = {row[3] for row in rows_of(self.trace) if row[0] == Kind.NOTE}
        super().prepare()


class Graphs(Remedy):
    """Kernels in a row are one CUDA graph: one launch of the host, and the device's own time between its nodes.

    The optimizer is fused if it can be: what its state does on the device in `capturable`'s other form costs more.
    """

    def prepare(self) -> None:
        """No graph is open."""
        self.open: dict[int, bool] = {}
        self.fused = FusedWhereverPossible(self.trace, [], self.old)

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The first kernel of a row is the launch, the others follow by themselves."""
        thread = lane.thread
        if row[0] != Kind.KERNEL:
            self.open[thread] = self.open.get(thread, False) and row[0] in (Kind.STEP, Kind.NOTE, Kind.BATCH)
            return AS_IT_WAS
        kernel = self.fused.change(index, row, lane, gap_ns)
        if gap_ns > LAUNCH_GAP_NS:
            self.open[thread] = False
            return kernel
        if not kernel.keep:
            return kernel
        on_host, lead_ns = self.old[lane.device].graph_launch_ns(1)
        if self.open.get(thread):
            return replace(kernel, gap_ns=0, lead_ns=lead_ns)
        self.open[thread] = True
        return replace(kernel, gap_ns=min(gap_ns, on_host))


class Workers(Remedy):
    """Other processes prepare the input: the host does not pause for it."""

    def prepare(self) -> None:
        """Nothing is hidden yet."""
        self.hidden_ns = 0

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Take the host's long pauses away."""
        if row[0] == Kind.HOST and row[6] - row[5] > LAUNCH_GAP_NS:
            self.hidden_ns += row[6] - row[5]
            return GONE
        if gap_ns > LAUNCH_GAP_NS:
            self.hidden_ns += gap_ns
            return Change(gap_ns=0)
        return AS_IT_WAS

    def shortest_ns(self, after_ns: float) -> float:
        """The workers need their time too."""
        return max(after_ns, self.hidden_ns / WORKERS)


class OneGpu(Remedy):
    """The first GPU does all of the work of a `DataParallel`, or of a job of several ranks, on the whole batch."""

    def prepare(self) -> None:
        """How work is divided, and which kernels pack what goes between devices."""
        notes = [dict(note.detail) for note in self.trace.notes if note.code == "data-parallel"]
        self.devices = max((int(note["devices"]) for note in notes), default=1)
        self.replicas = self.devices > 1
        chunks = {-(-int(note["batch"]) // self.devices) for note in notes} if self.replicas else set()
        self.chunks = chunks - {0, 1}
        rows, lanes = list(rows_of(self.trace)), self.trace.lanes
        self.divided = {row[2] for row in rows if row[0] == Kind.KERNEL and lanes[row[1]].device > 0}
        self.ratios: dict[int, float] = {}
        self.packing: set[int] = set()
        last = -1
        for index, row in enumerate(rows):
            if row[0] == Kind.KERNEL:
                last = index
            elif last >= 0 and (row[0] == Kind.COLLECTIVE or (row[0] == Kind.COPY and "PtoP" in self.name(row))):
                self.packing |= {last} if self.name(rows[last]) in ("aten::cat", "aten::copy_") else set()

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Leave out what the other devices and the links do; the first one's kernels take whole batches."""
        kind = row[0]
        if kind == Kind.COLLECTIVE or (self.replicas and kind == Kind.BARRIER):
            return Change(keep=False, gap_ns=0)
        if not self.replicas or kind > Kind.COLLECTIVE:
            return AS_IT_WAS
        if lane.device > 0 or index in self.packing or (kind == Kind.COPY and "PtoP" in self.name(row)):
            return Change(keep=False, gap_ns=0)
        if kind != Kind.KERNEL:
            return AS_IT_WAS
        usual_ns = self.old[0].dispatch_ns(self.name(row)) + 6_000
        scale = self._whole(row[2]) if row[2] in self.divided else 1.0
        return Change(gap_ns=min(gap_ns, usual_ns), scale=scale)

    def _whole(self, number: int) -> float:
        ratio = self.ratios.get(number)
        if ratio is None:
            signature = self.trace.signatures[number]
            times = self.devices
            whole = signature._replace(
                shapes=tuple(tuple(self._size(size) for size in shape) for shape in signature.shapes),
                flops=signature.flops * times,
                read_bytes=signature.read_bytes * times,
                written_bytes=signature.written_bytes * times,
            )
            before, after = self.old[0].kernel(signature).duration_ns, self.old[0].kernel(whole).duration_ns
            ratio = self.ratios[number] = after / before if before else 1.0
        return ratio

    def _size(self, size: int) -> int:
        return size * self.devices if any(size % chunk == 0 for chunk in self.chunks) and size else size


REMEDIES: dict[Fix, Callable[[Trace, Sequence[Finding], Sequence[CostModel]], Remedy]] = {
    "no wait": NoWait,
    "pin": Pin,
    "copy once": CopyOnce,
    "no copy": NoCopy,
    "one copy": OneCopy,
    "half precision": half_precision,
    "aligned": Aligned,
    "fused optimizer": FusedOptimizer,
    "graphs": Graphs,
    "workers": Workers,
    "one GPU": OneGpu,
}
WAITS: frozenset[Fix] = frozenset({"no wait", "pin"})


def rows_of(trace: Trace) -> Iterator[Row]:
    """The rows of a trace that are looked at."""
    steps = (index for index, kind in enumerate(trace.rows.column(0)) if kind == Kind.STEP)
    enough = next(islice(steps, ENOUGH_STEPS, None), MOST_ROWS)
    return islice(iter(trace.rows), min(MOST_ROWS, max(ROWS, enough + 2)))
