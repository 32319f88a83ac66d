"""Plans: which rehearsals are needed, what they say about the candidates, and which can be left out.

A program takes the same memory on every GPU of a family (`demand.family_of`), so it is first rehearsed on one of them,
with more memory than the GPU has if it needs more. That shows for all of them whether it fits and by how much. Only if
the allocated memory fits and the reserved memory does not, a rehearsal with the GPU's own memory has to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

from windtunnel import gpus
from windtunnel.gpus import versions
from windtunnel.launch import Program
from windtunnel.planning import demand, layout
from windtunnel.planning.cache import Cache
from windtunnel.planning.demand import DOES_NOT_FIT, NOT_TRIED, PRUNED, Verdict
from windtunnel.planning.measurement import FAILED, NO_MEMORY, RAN, REFUSED, Measurement
from windtunnel.planning.pools import Pool
from windtunnel.planning.rehearsal import Job, Rehearsed
from windtunnel.planning.search import Search
from windtunnel.planning.space import Axis, Choice, Largest, applied
from windtunnel.trace.units import format_bytes

REHEARSED, RETIMED, CACHED = "rehearsed", "retimed", "cached"
INTERRUPTED = "the plan was interrupted before it was known"


@dataclass(frozen=True)
class Question:
    """The input of a plan: a program, the GPUs to choose from, and what varies.

    `options` are fields of `options.Options` for every rehearsal. `processes` is the number of ranks of a candidate: a
    number, "gpu" for one per GPU, None for a program that is started directly; a cluster has one per GPU. A rehearsal
    ends after `stop_after` steps.
    """

    program: Program
    specs: tuple[str, ...]
    axes: tuple[Axis, ...] = ()
    largest: Largest | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    processes: int | str | None = None
    stop_after: int | None = 3
    folder: str = "."
    timeout_s: float = 900.0

    def ranks(self, spec: str) -> int | None:
        """How many processes torchrun's agents start on these GPUs; None if an agent is not needed."""
        if self.processes == "gpu" or layout.is_cluster(spec):
            return layout.nodes(spec) * len(layout.models(spec))
        return None if self.processes is None else int(self.processes)

    def cuda_version(self, spec: str) -> str:
        """The CUDA version for a rehearsal on these GPUs: the one given, or that of the installed PyTorch."""
        given = self.options.get("cuda_version")
        built = versions.runtime_cuda(layout.models(spec), versions.installed_torch())
        return str(given) if given else ".".join(map(str, built))

    def job(self, spec: str, choices: Sequence[Choice], overcommit: bool) -> Job:
        """The rehearsal of a candidate."""
        program, variables, files = applied(self.program, choices)
        options = {**self.options, "no_data": True, "overcommit": overcommit, "stop_after": self.stop_after}
        nodes = layout.nodes(spec) if layout.is_cluster(spec) else None
        return Job(program, gpus.absolute(layout.machine(spec)), options, variables, files, self.ranks(spec),
                   self.folder, self.timeout_s, nodes)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One row of a plan: GPUs, and a value for each axis; if `largest`, the last value is the result of a search."""

    spec: str
    choices: tuple[Choice, ...] = ()
    largest: bool = False


@dataclass(frozen=True)
class Answer:
    """A candidate and what is known about it; `next_larger` is a search's next larger value and its verdict.

    `edge` is the largest value that fits with no margin left, where it is larger.
    """

    candidate: Candidate
    verdict: Verdict
    next_larger: tuple[int, Verdict] | None = None
    edge: int | None = None


def _learn(search: Search, value: int, verdict: Verdict, margin: bool) -> None:
    """Tell a search what came out of a value, whose memory is the upper end of its band where a margin is wanted."""
    need = verdict.need
    fits = verdict.status == demand.FITS if margin else verdict.fits
    needed = None if need is None else need.upper_bytes if margin else need.needed_bytes
    search.found(value, fits, needed, need.taken_bytes if need and not need.retries else None)


def _failed(tried: Mapping[int, Verdict]) -> int | None:
    """The value that the program failed with."""
    return next((value for value, verdict in tried.items() if verdict.status == demand.FAILED), None)


class MissingError(Exception):
    """A rehearsal must be done first; never raised outside this module."""

    def __init__(self, spec: str, choices: tuple[Choice, ...], overcommit: bool) -> None:
        super().__init__(spec)
        self.key = spec, choices, overcommit


Key = tuple[str, tuple[Choice, ...], bool]


class Planner:
    """Answers a question. `progress` is called with the planner each time a rehearsal ends."""

    def __init__(
        self, question: Question, pool: Pool, cache: Cache, progress: Callable[[Planner], None] | None = None
    ) -> None:
        self.question = question
        self.pool = pool
        self.cache = cache
        self.progress = progress
        self.done: dict[Key, Rehearsed] = {}
        self.origin: dict[Key, str] = {}
        self.rehearsals = 0
        self.cached = 0
        self.interrupted = False
        self._numbers: dict[int, tuple[Key, str]] = {}
        self._asked: set[Key] = set()
        self._adapts: bool | None = None  # whether the program answers out of memory by asking for less
        self._probe: Key | None = None  # the rehearsal that says so
        self._retimed: dict[tuple[str, Key], Measurement] = {}
        self._family = {spec: demand.family_of(spec, question.cuda_version(spec)) for spec in question.specs}
        self._groups = [
            (spec, tuple(choices))
            for spec in question.specs
            for choices in product(*(a.choices() for a in question.axes))
        ]

    # ------------------------------------------------------------------ the loop

    def run(self) -> list[Answer]:
        """All answers, in the order of the question; after Ctrl-C, those known so far."""
        try:
            while True:
                answers, missing = self._answers()
                if self._submit(missing):
                    continue
                if not self.pool.busy:
                    return answers
                for number, rehearsed in self.pool.results():
                    self._take(number, rehearsed)
                if self.progress is not None:
                    self.progress(self)
        except KeyboardInterrupt:
            self.interrupted = True
            self.pool.close()
            return self._answers()[0]

    def answers(self) -> list[Answer]:
        """What is known now."""
        return self._answers()[0]

    def _submit(self, missing: Iterable[Key]) -> bool:
        """Submit the missing rehearsals; returns whether the cache answered any of them."""
        answered = False
        for key in missing:
            if key in self._asked:
                continue
            self._asked.add(key)
            job = self.question.job(*key)
            name = job.key()
            known = self.cache.get(name)
            if known is not None:
                self.done[key] = Rehearsed(*known)
                self.origin[key] = CACHED
                self._learn(key)
                self.cached += 1
                answered = True
                continue
            number = len(self._numbers)
            self._numbers[number] = key, name
            self.pool.submit(number, job)
        return answered

    def _take(self, number: int, rehearsed: Rehearsed) -> None:
        key, name = self._numbers[number]
        self.done[key] = rehearsed
        self.origin[key] = REHEARSED
        self.rehearsals += 1
        self._learn(key)
        if rehearsed.measurement.status != FAILED:
            self.cache.put(name, rehearsed.measurement, rehearsed.trace, rehearsed.files)

    def _learn(self, key: Key) -> None:
        """The first rehearsal that should not fit shows whether the program ends or retries with less memory."""
        if key == self._probe and self._adapts is None:
            self._adapts = self.done[key].measurement.status == RAN

    # ------------------------------------------------------------------ answers

    def _answers(self) -> tuple[list[Answer], list[Key]]:
        """What is known about each candidate, and the missing rehearsals."""
        answers: list[Answer] = []
        missing: dict[Key, None] = {}
        verdicts: dict[Candidate, Verdict] = {}
        for spec, choices in self._groups:
            try:
                if self.question.largest is None:
                    candidate = Candidate(spec, choices)
                    answer = Answer(candidate, self._pruned(candidate, verdicts) or self._verdict(spec, choices))
                else:
                    answer = self._largest(spec, choices, self.question.largest)
            except MissingError as lacking:
                missing[lacking.key] = None
                answer = Answer(
                    Candidate(spec, choices, self.question.largest is not None), Verdict(NOT_TRIED, why=INTERRUPTED)
                )
            verdicts[answer.candidate] = answer.verdict
            answers.append(answer)
        return answers, list(missing)

    def _rehearsed(self, spec: str, choices: tuple[Choice, ...], overcommit: bool) -> Rehearsed:
        key = spec, choices, overcommit
        if key not in self.done:
            raise MissingError(*key)
        return self.done[key]

    def _kin(self, spec: str) -> list[str]:
        return [other for other in self.question.specs if self._family[other] == self._family[spec]]

    def _known(self, spec: str, choices: tuple[Choice, ...]) -> Key | None:
        """A rehearsal that shows how much memory a candidate needs: its own or one of its family; else None."""
        for other in [spec, *self._kin(spec)]:
            for overcommit in (True, False):
                found = self.done.get((other, choices, overcommit))
                if found is None or not (overcommit or demand.had_room(found.measurement)):
                    continue
                if other == spec or demand.may_be_shared(found.measurement):
                    return other, choices, overcommit
        return None

    def _verdict(self, spec: str, choices: tuple[Choice, ...], *, timed: bool = True, near: bool = False) -> Verdict:
        """The verdict of a candidate; unless `timed`, its times may be those of another GPU.

        A candidate `near` the largest that fits is rehearsed with the GPU's own memory.

        Raises:
            MissingError: a rehearsal has to be done first.
        """
        key = self._known(spec, choices)
        if key is None:
            if near or (spec, choices, False) in self.done:
                return self._exact(spec, choices, None)
            first = self._kin(spec)[0]
            raise MissingError(spec if (first, choices, True) in self.done else first, choices, True)
        found = self.done[key]
        measurement, how = found.measurement, self.origin[key]
        if measurement.status in (FAILED, REFUSED):
            return Verdict(demand.FAILED, measurement=measurement, how=how, why=measurement.message)
        needs = demand.on_spec(measurement, spec)
        if measurement.status == NO_MEMORY:
            return demand.misfit(measurement, needs, how)
        if demand.too_large(needs):
            if self._adapts is None:
                self._probe = self._probe or (spec, choices, False)
                self._rehearsed(*self._probe)
            return demand.misfit(measurement, needs, how) if self._adapts is False else self._exact(spec, choices, key)
        if not demand.undisturbed(needs):
            return self._exact(spec, choices, key)
        if key[0] == spec or not timed:
            return demand.judged(measurement, needs, how)
        if demand.may_be_retimed(found) and "curves" not in self.question.options:
            if (spec, key) not in self._retimed:
                self._retimed[spec, key] = demand.retimed(found, spec)
            return demand.judged(self._retimed[spec, key], needs, f"{RETIMED} from {key[0]}")
        own = spec, choices, True
        return demand.judged(self._rehearsed(*own).measurement, needs, self.origin[own])

    def _exact(self, spec: str, choices: tuple[Choice, ...], predicted: Key | None) -> Verdict:
        """The verdict of a rehearsal with the GPUs' own memory; `predicted` is one that had more.

        Raises:
            MissingError: it has to be done first.
        """
        key = spec, choices, False
        measurement = self._rehearsed(*key).measurement
        how = self.origin[key]
        if measurement.status == RAN:
            return demand.judged(measurement, demand.on_spec(measurement, spec), how)
        if measurement.status != NO_MEMORY:
            return Verdict(demand.FAILED, measurement=measurement, how=how, why=measurement.message)
        if predicted is None:
            return Verdict(DOES_NOT_FIT, None, measurement, how, measurement.message)
        known = self.done[predicted].measurement
        return demand.misfit(replace(known, message=measurement.message), demand.on_spec(known, spec), how)

    # ------------------------------------------------------------------ the largest value

    def _largest(self, spec: str, choices: tuple[Choice, ...], largest: Largest) -> Answer:
        """The answer for the largest value that fits with a margin; values on both sides of it were tried.

        Raises:
            MissingError: a rehearsal has to be done first.
        """
        tried: dict[int, Verdict] = {}
        search = self._search(spec, choices, largest, tried, margin=True)
        if (failed := _failed(tried)) is not None:
            return Answer(Candidate(spec, (*choices, largest.choice(failed)), True), tried[failed])
        value = largest.low if search.best is None else search.best
        candidate = Candidate(spec, (*choices, largest.choice(value)), True)
        verdict = self._verdict(spec, candidate.choices)
        if search.best is None or search.too_large is None:
            return Answer(candidate, verdict)
        beyond = search.too_large, tried[search.too_large]
        if not beyond[1].fits:
            return Answer(candidate, verdict, beyond)
        edge = self._search(spec, choices, largest, tried, margin=False).best
        return Answer(candidate, verdict, beyond, edge if _failed(tried) is None else None)

    def _search(
        self, spec: str, choices: tuple[Choice, ...], largest: Largest, tried: dict[int, Verdict], *, margin: bool
    ) -> Search:
        """A search for the largest value that fits, with the band's margin or without; it ends early at a failure.

        `tried` has the verdicts of earlier searches, and those of this one afterwards.
        """
        search = Search(largest, min(gpu.memory_bytes for gpu in layout.models(spec)))
        for earlier, verdict in tried.items():
            _learn(search, earlier, verdict, margin)
        while (value := search.next_value()) is not None:
            verdict = self._verdict(spec, (*choices, largest.choice(value)), timed=False, near=len(tried) > 1)
            tried[value] = verdict
            if verdict.status == demand.FAILED:
                break
            _learn(search, value, verdict, margin)
        return search

    # ------------------------------------------------------------------ what need not be tried

    def _pruned(self, candidate: Candidate, verdicts: Mapping[Candidate, Verdict]) -> Verdict | None:
        """Why a candidate cannot fit: a smaller number does not, and memory grows with it. None otherwise.

        Raises:
            MissingError: the smaller value has to be rehearsed first.
        """
        for index, axis in enumerate(self.question.axes):
            smaller = self._smaller(candidate, index, axis)
            if smaller is None:
                continue
            verdict = verdicts.get(smaller)
            if verdict is None or verdict.status == NOT_TRIED:
                verdict = self._pruned(smaller, verdicts) or self._verdict(smaller.spec, smaller.choices)
            if verdict.status in (DOES_NOT_FIT, PRUNED) and self._grows(index, axis):
                value = smaller.choices[index].value
                by = f" ({format_bytes(excess)} too much)" if (excess := excess_bytes(verdict)) else ""
                why = (
                    verdict.why
                    if verdict.status == PRUNED
                    else f"{axis.name}={value} does not fit{by}, and memory grows with it"
                )
                return Verdict(PRUNED, why=why)
        return None

    def _smaller(self, candidate: Candidate, index: int, axis: Axis) -> Candidate | None:
        """The candidate in which one number has its next smaller value."""
        if axis.numbers is None:
            return None
        own = int(str(candidate.choices[index].value))
        below = [number for number in axis.numbers if number < own]
        if not below:
            return None
        choice = replace(candidate.choices[index], value=axis.values[axis.numbers.index(max(below))])
        return replace(candidate, choices=(*candidate.choices[:index], choice, *candidate.choices[index + 1 :]))

    def _grows(self, index: int, axis: Axis) -> bool:
        """Whether, of any two rehearsals that differ in this number alone, the larger value needed more memory."""
        by_rest: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for (spec, choices, overcommit), rehearsed in self.done.items():
            need = demand.worst(rehearsed.measurement.devices)
            if overcommit and need is not None and len(choices) > index:
                rest = (spec, *choices[:index], *choices[index + 1 :])
                by_rest.setdefault(rest, []).append((int(str(choices[index].value)), need.needed_bytes))
        pairs = [pair for points in by_rest.values() for pair in _neighbours(sorted(points))]
        return bool(pairs) and all(before < after for before, after in pairs)


def excess_bytes(verdict: Verdict) -> int:
    """How many bytes a candidate is short; 0 if it fits or nothing is known about it."""
    return 0 if verdict.need is None else max(0, verdict.need.needed_bytes - verdict.need.memory_bytes)


def _neighbours(points: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for (_, before), (_, after) in pairwise(points):
        yield before, after
