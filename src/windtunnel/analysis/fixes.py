"""What becomes of a trace's rows when a finding's advice is followed: a rule for each fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import ClassVar, NamedTuple

from windtunnel.analysis.precision import Aligned, half_precision
from windtunnel.analysis.rule import AS_IT_WAS, GONE, STEPS, Change, Remedy, rows_of
from windtunnel.cost import flops
from windtunnel.cost.model import CostModel
from windtunnel.trace.finding import Finding, Fix
from windtunnel.trace.operation import LAUNCH_GAP_NS, Kind, Lane, Signature
from windtunnel.trace.rows import Row
from windtunnel.trace.sources import STEERING
from windtunnel.trace.trace import Trace

WORKERS = 4
"""Worker processes that the advice on input names: preparing a batch then takes at least a fourth of the time."""
NUMBER_BYTES = 16
"""Copies up to this size are those of a single number."""
LOADER = "DataLoader"
"""The name of the host's work in a DataLoader."""
SELECTIONS = ("aten::index", "aten::masked_select")
"""Operators whose result has as many elements as a mask selects; `torch.where` keeps them all."""


class NoWait(Remedy):
    """The host does not wait at these lines; copies stay, but those of a number that is only read, or that decides.

    Copies go to pinned memory that is there already: what a line keeps, to memory that was made before the loop.

    What selects by a mask waits for the number of elements: with `torch.where` all of them stay, so what works on the
    selection works on all, and a mean is a sum divided by the number of those selected.
    """

    def prepare(self) -> None:
        """Find the lines whose number needs no copy (`total += loss.item()` adds), repeated copies, and selections."""
        rows = list(rows_of(self.trace))
        copies = Counter(row[3] for row in rows if row[0] == Kind.COPY)
        self.repeated = {site for site, times in copies.items() if times >= STEPS}
        lines = {site: self.trace.line(self.trace.sites[site]).split("#")[0].strip() for site in self.sites}
        self.unread = {
            site for site, line in lines.items() if (".item()" in line and "+=" not in line) or STEERING.match(line)
        }
        self.compared = {site for site, line in lines.items() if ".item()" in line and STEERING.match(line)}
        self.selections: dict[int, Selection] = {}
        for index, (row, following) in enumerate(pairwise(rows)):
            if row[0] == Kind.KERNEL and following[0] == Kind.SYNCHRONIZE and following[3] in self.sites:
                selection = Selection.of(self.trace.signatures[row[2]])
                if selection is not None:
                    self.selections[index] = selection
        self.selection: Selection | None = None

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Leave waits out, and the copies of single numbers that nothing takes the place of."""
        if row[0] == Kind.KERNEL:
            return self._kernel(index, row, lane, gap_ns)
        if row[3] not in self.sites:
            return AS_IT_WAS
        if row[0] == Kind.SYNCHRONIZE:
            return GONE
        if row[0] != Kind.COPY or "DtoH" not in self.name(row):
            return AS_IT_WAS
        if row[3] in self.unread and row[7] <= NUMBER_BYTES:
            if row[3] not in self.compared:
                return Change(keep=False, gap_ns=0)
            # What the host compared is compared on the device: that call takes the host as long as the copy's.
            return replace(self.another(row, lane, COMPARISON, gap_ns), gap_ns=gap_ns)
        if row[3] not in self.repeated:
            return AS_IT_WAS
        return self.pinned(row, lane)

    def _kernel(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """What selects, or works on what was selected."""
        selected = self.selections.get(index)
        if selected is not None:
            self.selection = selected
            return self.another(row, lane, selected.where, gap_ns)
        if self.selection is None:
            return AS_IT_WAS
        signature = self.trace.signatures[row[2]]
        whole = self.selection.instead(signature)
        if whole is signature:
            return AS_IT_WAS
        if signature.name == "aten::mean":
            total = whole._replace(name="aten::sum")
            return self.another(row, lane, DIVISION, gap_ns, (total, self.selection.number))
        return self.another(row, lane, whole, gap_ns)


class Selection(NamedTuple):
    """What a mask selects: the shape of that, the shape of everything, and the kernels that take its place."""

    shape: tuple[int, ...]
    all: tuple[int, ...]
    where: Signature
    number: Signature

    @classmethod
    def of(cls, signature: Signature) -> Selection | None:
        """The selection of a kernel; None where it is none."""
        inputs, outputs = signature.shapes[: signature.inputs], signature.shapes[signature.inputs :]
        dtypes = [dtype.removeprefix("torch.") for dtype in signature.dtypes]
        if signature.name not in SELECTIONS or len(outputs) != 1 or len(inputs) < 2 or dtypes[1] != "bool":
            return None
        everything, mask, dtype = inputs[0], inputs[1], dtypes[0]
        size = prod(everything) * flops.ITEM_BYTES.get(dtype, 1)
        kinds = ("bool", dtype, dtype, dtype)
        where = Signature("aten::where", (mask, everything, (), everything), kinds, 3, 0, size + prod(mask), size)
        number = Signature("aten::sum", (mask, ()), ("bool", "int64"), 1, 0, prod(mask), 8)
        return cls(outputs[0], everything, where, number)

    def instead(self, signature: Signature) -> Signature:
        """A kernel on everything instead of on what was selected; the same one where it does not work on that."""
        if self.shape not in signature.shapes[: signature.inputs]:
            return signature
        more = prod(self.all) - prod(self.shape)
        at = [index for index, shape in enumerate(signature.shapes) if shape == self.shape]
        sizes = {one: more * flops.ITEM_BYTES.get(signature.dtypes[one].removeprefix("torch."), 1) for one in at}
        return signature._replace(
            shapes=tuple(self.all if number in sizes else shape for number, shape in enumerate(signature.shapes)),
            read_bytes=signature.read_bytes + sum(size for one, size in sizes.items() if one < signature.inputs),
            written_bytes=signature.written_bytes + sum(size for one, size in sizes.items() if one >= signature.inputs),
        )


COMPARISON = Signature("aten::eq", ((), (), ()), ("int64", "int64", "bool"), 2, 0, 16, 1)
"""A number compared with another."""
DIVISION = Signature("aten::div", ((), (), ()), ("float32", "int64", "float32"), 2, 0, 12, 4)
"""A sum by a number of elements."""


class Pin(Remedy):
    """Copies of these lines come from pinned memory, and the host does not wait for them.

    A DataLoader without workers pins each batch in the thread that trains, which takes the host one more operator.
    """

    def prepare(self) -> None:
        """Whether a DataLoader works in the program's own thread."""
        self.loads = any(row[0] == Kind.HOST and self.name(row) == LOADER for row in rows_of(self.trace))

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """Price a copy as pinned, leave its wait out."""
        if row[3] not in self.sites:
            return AS_IT_WAS
        if row[0] == Kind.SYNCHRONIZE:
            return GONE
        if row[0] != Kind.COPY:
            return AS_IT_WAS
        pinned = self.pinned(row, lane)
        if not self.loads or pinned is AS_IT_WAS:
            return pinned
        return replace(pinned, gap_ns=gap_ns + self.old[lane.device].host_operator_ns(row[7]))


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


class MadeThere(Remedy):
    """What these lines copy is made on the device: a kernel instead of the host's work, the copy and its wait."""

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The copy becomes the kernel that fills as many bytes."""
        if row[3] not in self.sites or row[0] not in (Kind.COPY, Kind.SYNCHRONIZE):
            return AS_IT_WAS
        if row[0] == Kind.SYNCHRONIZE:
            return Change(keep=False, gap_ns=0)
        on_host_ns = self.old[lane.device].host_operator_ns(row[7])
        signature = Signature("aten::full", ((-(-row[7] // 4),),), ("float32",), 0, 0, 0, row[7])
        return self.another(
            row, lane, signature, max(self.old[lane.device].dispatch_ns(self.name(row)), gap_ns - on_host_ns)
        )


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


class FusedOptimizer(Remedy):
    """All parameters of a step in one kernel, for Adam beside one that counts the steps."""

    fusible: ClassVar = False
    """Whether it applies only to optimizers that PyTorch can fuse."""

    def prepare(self) -> None:
        """Find the rows of the steps of these lines: the seam notes right after a step how many kernels it took."""
        self.steps: dict[int, tuple[int, int, int]] = {}  # row -> (row that counts, last one, bytes of the fused one)
        rows = list(rows_of(self.trace))
        threads = [lane.thread for lane in self.trace.lanes]
        written: dict[int, list[int]] = {}  # by thread
        for index, row in enumerate(rows):
            before = written.setdefault(threads[row[1]], [])
            if row[0] == Kind.NOTE and row[3] in self.sites:
                note = self.trace.notes[row[7]]
                detail = dict(note.detail)
                kernels = int(detail.get("kernels", 0)) if note.code == "unfused-optimizer" else 0
                of_step = [at for at in before[max(0, len(before) - kernels) :] if rows[at][0] == Kind.KERNEL]
                # Half of the bytes where nothing more is known: no result is written in between.
                size = int(detail.get("fused_bytes", sum(rows[at][7] for at in of_step) // 2))
                if of_step and (not self.fusible or "fused_bytes" in detail):  # a captured graph's step has no kernels
                    counts = of_step[0] if detail.get("optimizer") != "SGD" else of_step[-1]
                    self.steps |= dict.fromkeys(of_step, (counts, of_step[-1], size))
            if row[0] != Kind.STEP:
                before.append(index)

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


EDGES = frozenset({Kind.EVENT_RECORD, Kind.EVENT_WAIT, Kind.BARRIER})
"""Operations that order streams. In a CUDA graph they are edges, which cost the host nothing at launch."""


class Graphs(Remedy):
    """Kernels of a step in a row are one CUDA graph: one launch of the host, the device's own time between its nodes.

    Without an optimizer a step is a round of the loop: as many kernels as it takes until their names come again. The
    optimizer is fused if it can be: what its state does on the device in `capturable`'s other form costs more.
    """

    def prepare(self) -> None:
        """No graph is open."""
        self.open: dict[int, int] = {}  # by thread, the kernels that its graph holds
        self.fused = FusedWhereverPossible(self.trace, [], self.old)
        names = [self.name(row) for row in rows_of(self.trace) if row[0] == Kind.KERNEL]
        self.most = period(names[len(names) // 2 :])

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The first kernel of a row is the launch, the others follow by themselves."""
        thread = lane.thread
        if row[0] in EDGES and self.open.get(thread):
            return Change(gap_ns=0)
        if row[0] != Kind.KERNEL:
            if row[0] not in (Kind.NOTE, Kind.BATCH):
                self.open[thread] = 0
            return AS_IT_WAS
        kernel = self.fused.change(index, row, lane, gap_ns)
        if gap_ns > LAUNCH_GAP_NS:
            self.open[thread] = 0
            return kernel
        held = self.open[thread] = self.open.get(thread, 0) % self.most + 1
        if not kernel.keep:
            return kernel
        on_host, lead_ns = self.old[lane.device].graph_launch_ns(1)
        if held > 1:
            return replace(kernel, gap_ns=0, lead_ns=lead_ns)
        return replace(kernel, gap_ns=min(gap_ns, on_host))


def period(names: Sequence[str]) -> int:
    """After how many the same names come again, to the end; all of them where they do not."""
    ends = [0] * len(names)  # Knuth, Morris and Pratt's table: how much of the beginning ends here as well
    for index in range(1, len(names)):
        length = ends[index - 1]
        while length and names[index] != names[length]:
            length = ends[length - 1]
        ends[index] = length + (names[index] == names[length])
    return max(1, len(names) - (ends[-1] if ends else 0))


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
    "made there": MadeThere,
    "one copy": OneCopy,
    "half precision": half_precision,
    "aligned": Aligned,
    "fused optimizer": FusedOptimizer,
    "graphs": Graphs,
    "workers": Workers,
    "one GPU": OneGpu,
}
WAITS: frozenset[Fix] = frozenset({"no wait", "pin"})
