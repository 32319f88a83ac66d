"""What else would help: one rehearsal per setting or small change to the program, which is made in memory only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from windtunnel.planning import demand
from windtunnel.planning.cache import Cache
from windtunnel.planning.measurement import RAN, DeviceNeed, Measurement
from windtunnel.planning.planner import Answer, Question
from windtunnel.planning.pools import Pool
from windtunnel.planning.rehearsal import Job
from windtunnel.planning.space import Choice
from windtunnel.trace.units import format_bytes, format_ns, format_share
from windtunnel.variables import TRIAL

ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF"
LEAST = 0.01
"""A change that saves less than this share of time and of memory is not suggested."""


@dataclass(frozen=True)
class Trial:
    """Something to try: `variables` make a rehearsal do it; `of_program` says that the program must change."""

    what: str
    variables: Mapping[str, str]
    of_program: bool = True


TRIALS = (
    Trial(f"{ALLOC_CONF}=expandable_segments:True", {ALLOC_CONF: "expandable_segments:True"}, False),
    Trial("`torch.set_float32_matmul_precision('high')`", {TRIAL: "tf32"}),
    Trial("`fused=True` in Adam, AdamW or SGD", {TRIAL: "fused"}),
    Trial("`gradient_checkpointing_enable()` of transformers' models", {TRIAL: "checkpointing"}),
    Trial("`torch.autocast('cuda', torch.bfloat16)` around the model (float16 before Ampere)", {TRIAL: "autocast"}),
)
NOT_TRIED = "not tried: torch.compile, where the program does not use it"
NOT_ACCUMULATED = (
    "not tried: gradient accumulation, since nothing says which option is the batch (--largest or --vary name it)"
)


def suggestions(question: Question, answer: Answer, pool: Pool, cache: Cache) -> Iterator[str]:
    """A sentence for each trial that changed a candidate's time or memory, and for what was not tried.

    Raises:
        UsageError: the program cannot be started.
    """
    spec, choices = answer.candidate.spec, answer.candidate.choices
    plain = question.job(spec, choices, True)
    jobs = [plain, *(_with(plain, trial) for trial in TRIALS)]
    batch = _batch(question, choices)
    if batch is not None:
        half = replace(batch, value=str(int(str(batch.value)) // 2))
        jobs.append(question.job(spec, [half if choice == batch else choice for choice in choices], True))
    found = _rehearsed(jobs, pool, cache)
    before = found.get(0)
    if before is None or before.status != RAN:
        return
    for number, trial in enumerate(TRIALS, start=1):
        after = found.get(number)
        if after is not None and after.status == RAN and (words := _compared(before, after, spec)):
            how = "a change of the program, tried in memory" if trial.of_program else "no change of the program"
            yield f"{trial.what} ({how}): {words}"
    if batch is None:
        yield NOT_ACCUMULATED
    else:
        after = found.get(len(TRIALS) + 1)
        if after is not None and after.status == RAN:
            twice = replace(after, step_ns=None if after.step_ns is None else 2 * after.step_ns)
            words = _compared(before, twice, spec)
            yield f"gradient accumulation, two of {half} a step (a change of the program): {words or 'no difference'}"
    yield NOT_TRIED


def _batch(question: Question, choices: Sequence[Choice]) -> Choice | None:
    """The choice that is the batch size: what `--largest` counts, or by its name; None if it cannot be halved."""
    largest = None if question.largest is None else question.largest.name
    for choice in choices:
        named = choice.name == largest or "batch" in choice.name.lower()
        if named and (choice.value or "").isdecimal() and int(str(choice.value)) % 2 == 0 and choice.value != "0":
            return choice
    return None


def _with(job: Job, trial: Trial) -> Job:
    variables = dict(job.variables)
    for name, value in trial.variables.items():
        own = variables.get(name)
        variables[name] = f"{own},{value}" if own and name == ALLOC_CONF else value
    return replace(job, variables=variables)


def _rehearsed(jobs: list[Job], pool: Pool, cache: Cache) -> dict[int, Measurement]:
    found = {}
    for number, job in enumerate(jobs):
        known = cache.get(job.key())
        if known is not None:
            found[number] = known[0]
        else:
            pool.submit(number, job)
    while pool.busy:
        for number, rehearsed in pool.results():
            found[number] = rehearsed.measurement
            if rehearsed.measurement.status == RAN:
                cache.put(jobs[number].key(), rehearsed.measurement, rehearsed.trace, rehearsed.files)
    return found


def _compared(before: Measurement, after: Measurement, spec: str) -> str:
    """What a trial changed: peak, reserved memory, the step, and whether it fits now; empty if nothing changed."""
    old, new = (demand.worst(demand.on_spec(one, spec)) for one in (before, after))
    if old is None or new is None:
        return ""
    words = [
        _change("peak", old.needed_bytes, new.needed_bytes, format_bytes),
        _change("reserved", old.taken_bytes, new.taken_bytes, format_bytes),
        _change("step", before.step_ns or 0, after.step_ns or 0, format_ns),
    ]
    if not any(words):
        return ""
    return ", ".join(filter(None, [*words, _fit(old, new)]))


def _change(name: str, old: float, new: float, words: Callable[[float], str]) -> str:
    if not old or abs(new - old) < LEAST * old:
        return ""
    return f"{name} {words(old)} to {words(new)} ({'+' if new > old else '-'}{format_share(abs(new - old) / old)})"


def _fit(old: DeviceNeed, new: DeviceNeed) -> str:
    fitted, fits = old.upper_bytes <= old.memory_bytes, new.upper_bytes <= new.memory_bytes
    return "" if fits == fitted else "it fits then" if fits else "it fits no more"
