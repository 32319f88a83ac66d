"""A plan's rows: each candidate with its time, throughput, cost and command, in the order of the goal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from windtunnel import gpus
from windtunnel.errors import UsageError
from windtunnel.gpus.gpu import Gpu
from windtunnel.launch import Program
from windtunnel.planning import demand, layout
from windtunnel.planning.planner import Answer, Question, excess_bytes
from windtunnel.planning.space import applied
from windtunnel.trace.plain import Json
from windtunnel.trace.units import format_bytes

CHEAPEST, FASTEST = "cheapest", "fastest"
GOALS = (CHEAPEST, FASTEST)
TOKEN, SAMPLE, STEP = "token", "sample", "step"
UNITS = (TOKEN, SAMPLE)
"""Units in which work is counted, the finest first."""
NO_BAND = 0.5
"""The relative band that is assumed where the model gives none."""
_REQUEST = re.compile(r"Tried to allocate ([\d.]+ \w+)")
MEETING = "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500"
"""How the machines of a cluster find one another: at the address of one of them."""
HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class Span:
    """A number with its band."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The band above the number, relative to it."""
        return self.high / self.value - 1.0 if self.value else 0.0

    def times(self, factor: float) -> Span:
        """All three, multiplied."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self, factor: float = 1.0) -> Span | None:
        """`factor` divided by each; None if that is unbounded."""
        return Span(factor / self.value, factor / self.high, factor / self.low) if self.low > 0 else None

    def overlaps(self, other: Span) -> bool:
        """Whether the two bands overlap."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Row:
    """One candidate. Sizes in bytes, on the GPU with the least room; times of one optimizer step, in nanoseconds.

    `status` is "fits", "tight" (it fits by the model, but not at the upper end of its band), "does not fit", "pruned",
    "failed" or "not tried". `headroom_bytes` is the memory left at the peak (negative: missing), `headroom_low_bytes`
    the same at the upper end of the band. Rows are ordered by `work_ns`, the time of one `unit`: a token or a sample if
    every row that ran says how many a step has, otherwise one unit of what `--largest` counts, otherwise a step.
    `hours` and `cost` are those of the whole run, None if its length was not given. `how` is "rehearsed", "cached" or
    "retimed from GPU".
    """

    gpus: str
    gpu_count: int
    choices: dict[str, str | None]
    status: str
    why: str
    how: str
    memory_bytes: int
    peak_bytes: int | None
    peak_band: float | None
    reserved_bytes: int | None
    headroom_bytes: int | None
    headroom_low_bytes: int | None
    retries: int
    step_ns: Span | None
    samples_per_step: float | None
    samples_per_s: Span | None
    tokens_per_s: Span | None
    mfu: float | None
    limit: str
    causes: dict[str, float]
    unit: str
    units_per_step: float | None
    work_ns: Span | None
    price_per_hour: float | None
    hours: Span | None
    cost: Span | None
    largest: bool
    next_larger: str
    edge: int | None
    command: str

    @property
    def fits(self) -> bool:
        """Whether it ran, with or without a margin."""
        return self.status in (demand.FITS, demand.TIGHT)

    @property
    def work_cost(self) -> Span | None:
        """The cost of one unit of work; None without a price."""
        if self.price_per_hour is None or self.work_ns is None:
            return None
        return self.work_ns.times(self.price_per_hour / HOUR_NS)

    def to_json(self) -> Json:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Work:
    """A whole run: its length in steps or samples, and the goal. `prices` are per hour, by the GPU's key."""

    steps: int | None = None
    samples: int | None = None
    prices: Mapping[str, float] | None = None
    goal: str | None = None

    @property
    def chosen(self) -> str:
        """The goal given, otherwise "cheapest" if there are prices."""
        return self.goal or (CHEAPEST if self.prices else FASTEST)


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """`--price H100=2.49`: the price of one GPU per hour, by the GPU's key.

    Raises:
        UsageError: a text does not have that form, or its GPU is unknown.
    """
    prices = {}
    for text in [part for one in texts for part in one.split(",")]:
        name, _, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 <= price < float("inf"):
            raise UsageError(f"--price {text} gives no price: write --price H100=2.49, per GPU and hour")
        prices[gpus.find(name).key] = price
    return prices


def rows_of(answers: Sequence[Answer], question: Question, work: Work) -> list[Row]:
    """The answers as rows: best first by the goal, then those that do not fit, by how much they are short.

    Raises:
        UsageError: the run's length was given in samples, and the number of samples in a step is unknown.
    """
    ran = [answer for answer in answers if answer.verdict.fits]
    one_number_of_ranks = len({question.ranks(answer.candidate.spec) for answer in ran}) == 1
    units = (*UNITS, *(_batches(question) if one_number_of_ranks else []))
    unit = next((unit for unit in units if ran and all(_units(answer, unit) for answer in ran)), STEP)
    if work.samples is not None and not all(_units(answer, SAMPLE) for answer in ran):
        raise UsageError(
            "nothing says how many samples a step of this program has (no DataLoader delivers them, and what is copied "
            "to the GPU does not agree on its first dimension): give --steps instead of --samples"
        )
    rows = [_row(answer, question, work, unit) for answer in answers]
    return sorted(rows, key=lambda row: _place(row, work))


def _batches(question: Question) -> list[str]:
    """The option whose value counts as a step's samples if nothing else tells them: the one searched for, otherwise the
    only varying number whose name says that it is a batch."""
    if question.largest is not None:
        return [question.largest.name]
    named = [axis.name for axis in question.axes if axis.numbers is not None and "batch" in axis.name.lower()]
    return named if len(named) == 1 else []


def _units(answer: Answer, unit: str) -> float | None:
    """How many tokens or samples a step has; for any other unit, the value of the option of that name."""
    found = answer.verdict.measurement
    if unit in UNITS:
        return None if found is None else found.tokens if unit == TOKEN else found.samples
    values = [choice.value for choice in answer.candidate.choices if choice.name == unit]
    return float(values[0]) if values and values[0] is not None else None


def _place(row: Row, work: Work) -> tuple[int, float, float, str]:
    order = (demand.FITS, demand.TIGHT, demand.DOES_NOT_FIT, demand.PRUNED, demand.FAILED, demand.NOT_TRIED)
    if not row.fits:
        return 1 + order.index(row.status), -(row.headroom_bytes or 0), 0.0, row.gpus
    time = row.work_ns.value if row.work_ns else float("inf")
    cost = row.work_cost.value if row.work_cost else float("inf")
    return (0, cost, time, row.gpus) if work.chosen == CHEAPEST else (0, time, cost, row.gpus)


def _row(answer: Answer, question: Question, work: Work, unit: str) -> Row:
    candidate, verdict = answer.candidate, answer.verdict
    models = layout.models(candidate.spec) * layout.nodes(candidate.spec)
    found, need = verdict.measurement, verdict.need
    step = None
    if verdict.fits and found is not None and found.step_ns:
        band = NO_BAND if found.band is None else found.band
        step = Span(found.step_ns, found.step_ns * (1 - band), found.step_ns * (1 + band))
    samples = found.samples if found else None
    units = 1.0 if unit == STEP else _units(answer, unit)
    price = _price(models, work.prices or {})
    hours = _hours(answer, step, work)
    program, variables, _ = applied(question.program, candidate.choices)
    return Row(
        gpus=candidate.spec,
        gpu_count=len(models),
        choices={choice.name: choice.value for choice in candidate.choices},
        status=verdict.status,
        why=verdict.why,
        how=verdict.how,
        memory_bytes=min(model.memory_bytes for model in models),
        peak_bytes=need.needed_bytes if need else None,
        peak_band=need.band if need else None,
        reserved_bytes=need.taken_bytes if need else None,
        headroom_bytes=need.memory_bytes - need.needed_bytes if need else None,
        headroom_low_bytes=need.memory_bytes - need.upper_bytes if need else None,
        retries=need.retries if need else 0,
        step_ns=step,
        samples_per_step=samples,
        samples_per_s=step.inverse(samples * 1e9) if step and samples else None,
        tokens_per_s=step.inverse(found.tokens * 1e9) if step and found and found.tokens else None,
        mfu=found.mfu if verdict.fits and found else None,
        limit=found.limit if verdict.fits and found else "",
        causes=found.causes if verdict.fits and found else {},
        unit=unit,
        units_per_step=units,
        work_ns=step.times(1.0 / units) if step and units else None,
        price_per_hour=price,
        hours=hours,
        cost=hours.times(price) if hours and price is not None else None,
        largest=candidate.largest,
        next_larger=_beyond(answer),
        edge=answer.edge,
        command=_command(program, variables, candidate.spec, question.ranks(candidate.spec)),
    )


def _price(models: Sequence[Gpu], prices: Mapping[str, float]) -> float | None:
    """The price of all GPUs per hour; None if the price of one is unknown."""
    return sum(prices[model.key] for model in models) if all(model.key in prices for model in models) else None


def _hours(answer: Answer, step: Span | None, work: Work) -> Span | None:
    """The time of the whole run; its first step takes longer."""
    found = answer.verdict.measurement
    if step is None or found is None:
        return None
    number = work.samples / found.samples if work.samples is not None and found.samples else work.steps
    if number is None:
        return None
    more = max(0, (found.first_step_ns or 0) - (found.step_ns or 0))
    return Span(*(max(0.0, (one * number + more) / HOUR_NS) for one in (step.value, step.low, step.high)))


def _beyond(answer: Answer) -> str:
    """The outcome of a search's next larger value, in a few words."""
    if not answer.candidate.largest or not answer.verdict.fits:
        return ""
    if answer.next_larger is None:
        return "as far as was asked"
    value, verdict = answer.next_larger
    if verdict.status == demand.TIGHT:
        one = answer.edge in (None, value)
        return f"{value} {'fits' if one else f'to {answer.edge} fit'} only without the band's margin"
    excess = excess_bytes(verdict)
    if excess:
        return f"{value} needs {format_bytes(excess)} more than there is"
    request = _REQUEST.search(verdict.why)
    return f"{value} finds no room for {request[1]} in one piece" if request else f"{value} does not fit"


def _command(program: Program, variables: Mapping[str, str | None], spec: str, ranks: int | None) -> str:
    """The command to type on a machine with these GPUs, or on each machine of a cluster."""
    flag = {"script": [], "module": ["-m"], "code": ["-c"], "command": [], "cuda": []}[program.kind]
    line = shlex.join([*flag, program.name, *program.arguments])
    if ranks is not None:
        nodes = layout.nodes(spec)
        meeting = f"--nnodes={nodes} {MEETING}" if nodes > 1 else "--standalone"
        line = f"torchrun {meeting} --nproc-per-node={ranks // nodes} {line}"
    elif program.kind != "command":
        line = f"python {line}"
    unset = [f"-u {name}" for name, value in variables.items() if value is None]
    set_to = [f"{name}={shlex.quote(value)}" for name, value in variables.items() if value is not None]
    return " ".join([*(["env", *unset] if unset else []), *set_to, line])
