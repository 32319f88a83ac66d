"""The check `out-of-memory`: an allocation that did not fit, with what was alive at that moment."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._memory import holders, holders_words
from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Kind, Note
from windtunnel.trace.trace import ISSUED, KIND, Record, Trace
from windtunnel.trace.units import format_bytes

ROOM = (
    "use a smaller batch with gradient accumulation, `torch.autocast` or activation checkpointing, or keep fewer "
    "tensors alive"
)
FRAGMENTED = "enough memory was free, but fragmented: allocate the largest tensors first, or pad inputs to a few sizes"
CHECKPOINT = (
    'load checkpoints with `map_location="cpu"` (`load_state_dict` copies them to the GPU), or `del` what was loaded '
    "before training"
)
MIN_LOADED = 0.01
"""Of what is in use, the share from which on a loaded checkpoint is named, should it not have made room by itself."""
OTHERS = (
    "give each process a GPU of its own: `torch.cuda.set_device(local_rank)`, checkpoints with `map_location`; or end "
    "the processes that hold it"
)
ON_PURPOSE = "`--fault` refused the memory on purpose: check that the program recovers, or ends, as it should"


class OutOfMemory(NoteCheck):
    """An allocation that did not fit, with what was alive at that moment.

    ## What it does
    Explains an out-of-memory error: how much was asked for, how much was free, and which lines held the most, when the
    history of allocations was kept. A checkpoint that `torch.load` put on the GPU and that is neither a model's nor an
    optimizer's is named without it, and so is what other processes hold of the GPU. Where the program caught the error
    and went on, with kernels after it, the severity is `info`.

    ## Why it is bad
    The program ends there, and the time that it took to get there is lost.

    ## Example
    ```python
    loss = net(torch.randn(4096, 3, 224, 224, device="cuda")).sum()
    ```

    ## Use instead
    ```python
    for part in torch.randn(4096, 3, 224, 224).split(256):
        loss = net(part.to("cuda")).sum() / 16
        loss.backward()
    ```
    """

    code: ClassVar = "out-of-memory"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2

    def __init__(self) -> None:
        super().__init__()
        self.last_ns: dict[tuple[str, int], int] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Keep when each line last failed."""
        super().see(record, trace)
        self.last_ns[trace.notes[record.value].site[:2]] = record.issued_ns

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line, with the owners of what was alive."""
        found = super().findings(trace)
        if not found:
            return found
        if not trace.facts.get("exit_code", 0):
            end_ns = _last_kernel_ns(trace)
            found = [self._handled(one) if end_ns > self.last_ns[one.site[:2]] else one for one in found]
        found = [_cured(_tried(one, trace), trace) for one in found]
        refused = {note.site[:2] for note in trace.notes if note.code == "injected-fault" and "oom" in _words(note)}
        if refused:
            found = [one._replace(advice=ON_PURPOSE) if one.site[:2] in refused else one for one in found]
        if not len(trace.memory):
            said = (CHECKPOINT, OTHERS, ON_PURPOSE)
            return [one if one.advice in said else one._replace(advice=_hint(one, trace) + one.advice) for one in found]
        return [
            finding._replace(
                message=finding.message + holders_words(holders(trace, finding.device, "oom", finding.site))
            )
            for finding in found
        ]

    def _handled(self, finding: Finding) -> Finding:
        return finding._replace(severity="info", message=f"{finding.message}; the program caught the error and went on")

    def message(self, line: NotedLine) -> str:
        """What was asked for and what there was."""
        asked = format_bytes(line.number("requested_bytes"))
        free, total = line.number("free_bytes"), line.number("memory_bytes")
        held = f", {format_bytes(line.number('allocated_bytes'))} in use" if line.number("allocated_bytes") else ""
        if line.number("others_bytes"):
            held += f", {format_bytes(line.number('others_bytes'))} held by other processes"
        where = f"tried to allocate {asked} on cuda:{line.number('device')}; "
        if _by_checkpoint(line):
            size = format_bytes(line.number("loaded_bytes"))
            held += f"; the checkpoint that `torch.load` put there at {line.word('loaded_at')} still holds {size}"
        if 0 < total < free:  # torch.cuda.set_per_process_memory_fraction
            return f"{where}the process may use at most {format_bytes(total)}{held}"
        of = f" of {format_bytes(total)}" if total else ""
        return f"{where}{format_bytes(free)}{of} were free{held}"

    def advice(self, line: NotedLine) -> str:
        """What makes room, judged by what was reserved but not used."""
        if _by_checkpoint(line):
            return CHECKPOINT
        if line.number("others_bytes") + line.number("free_bytes") >= line.number("requested_bytes") > 0:
            return OTHERS
        unused = line.number("reserved_bytes") - line.number("allocated_bytes")
        if unused >= line.number("requested_bytes") > 0:
            return FRAGMENTED
        return ROOM


def _by_checkpoint(line: NotedLine) -> bool:
    """Whether a loaded checkpoint takes a part of the memory that is worth giving back."""
    loaded = line.number("loaded_bytes")
    return loaded > 0 and loaded >= min(line.number("requested_bytes"), MIN_LOADED * line.number("allocated_bytes"))


def _hint(finding: Finding, trace: Trace) -> str:
    """What a history of allocations would add."""
    tries = "setting of the allocator" if finding.advice == FRAGMENTED else "remedy"
    command = trace.facts.get("command") or "--memory-history"
    return f"`{command}` says which modules held it, and by replay what each {tries} saves; "


def _tried(finding: Finding, trace: Trace) -> Finding:
    """Advice on the allocator's settings that the history, replayed, bears out: the setting under which it all fits."""
    replays = [one for one in trace.facts.get("replays", []) if one["device"] == finding.device]
    if not replays or finding.advice != FRAGMENTED:
        return finding
    fitting = [one for one in replays[1:] if not one["out_of_memory"]]
    if not fitting:
        return finding._replace(advice=f"no allocator setting makes it fit (each was tried by replay): {ROOM}")
    best = min(fitting, key=lambda one: int(one["peak_reserved_bytes"]))
    return finding._replace(
        advice=f"enough memory was free, but fragmented: with PYTORCH_CUDA_ALLOC_CONF={best['setting']} the same "
        "allocations fit (replayed)"
    )


def _cured(finding: Finding, trace: Trace) -> Finding:
    """Advice that says what each remedy saves, where the history was replayed under some."""
    cures = [one for one in trace.facts.get("cures", []) if one["device"] == finding.device]
    if not cures or not finding.advice.endswith(ROOM):
        return finding
    shown = [
        f"{one['words']} saves {format_bytes(one['saved_bytes'])}{' and fits' if one['fits'] else ''}" for one in cures
    ]
    needed = format_bytes(cures[0]["needed_bytes"])
    before = finding.advice.removesuffix(ROOM)
    return finding._replace(advice=f"{before}of the {needed} needed here, by replay, {'; '.join(shown)}")


def _words(note: Note) -> set[str]:
    """The names in a note's detail: the fault that was injected is one of them."""
    return {str(value).partition(":")[0] for _, value in note.detail}


def _last_kernel_ns(trace: Trace) -> int:
    """When the host launched the last kernel; -1 where there is none."""
    newest_first = map(trace.rows.__getitem__, range(len(trace.rows) - 1, -1, -1))
    return next((row[ISSUED] for row in newest_first if row[KIND] == Kind.KERNEL), -1)
