"""Which rehearsals a plan asks for, and what it concludes from them; a pool that computes stands in for processes."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import windtunnel
from windtunnel import gpus
from windtunnel.errors import UsageError
from windtunnel.launch import Program
from windtunnel.planning import ranks_of, specs_of
from windtunnel.planning.cache import Cache, checksum, digest
from windtunnel.planning.demand import DOES_NOT_FIT, FAILED, FITS, NOT_TRIED, PRUNED, Verdict
from windtunnel.planning.measurement import FAILED as BROKEN
from windtunnel.planning.measurement import NO_MEMORY, RAN, DeviceNeed, Measurement
from windtunnel.planning.planner import Answer, Candidate, Planner, Question
from windtunnel.planning.rehearsal import Job, Rehearsed
from windtunnel.planning.result import Plan
from windtunnel.planning.rows import Work, parse_prices, rows_of
from windtunnel.planning.space import parse_axis, parse_largest

GIB = 1 << 30
CONTEXT = GIB // 2
SPEED = {"T4": 1.0, "L4": 2.0, "RTX4090": 5.0, "A100": 8.0, "H100": 16.0}


class Model:
    """A pool whose program needs `base + batch` GiB and takes time by its batch over the speed of the GPU."""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        self.jobs: list[Job] = []
        self.waiting: list[tuple[int, Job]] = []
        self.reserved = 1.0
        self.band = 0.0
        self.adapts = False
        self.broken: Callable[[Job], str] = lambda job: ""
        self.closed = False

    @property
    def busy(self) -> int:
        return len(self.waiting)

    def submit(self, number: int, job: Job) -> None:
        self.waiting.append((number, job))
        self.jobs.append(job)

    def results(self) -> Iterator[tuple[int, Rehearsed]]:
        number, job = self.waiting.pop(0)
        yield number, Rehearsed(self.measured(job))

    def close(self) -> None:
        self.closed = True
        self.waiting.clear()

    def measured(self, job: Job) -> Measurement:
        if why := self.broken(job):
            return Measurement(BROKEN, why)
        given = re.search(r"--batch=(\d+)", " ".join(job.program.arguments))
        batch = int(given[1]) if given else 4
        memory = gpus.parse(job.spec)[0].memory_bytes
        allocated = (2 + batch) * GIB
        fits = CONTEXT + allocated <= memory
        if self.adapts and not fits and not job.options["overcommit"]:
            allocated, fits = GIB, True
        reserved = round(allocated * self.reserved)
        need = DeviceNeed(memory, CONTEXT, allocated, reserved, allocated, self.band)
        if not fits and not job.options["overcommit"]:
            return Measurement(NO_MEMORY, "CUDA out of memory.", (need,), 1)
        step = round(1e9 * batch / SPEED.get(job.spec, 1.0))
        return Measurement(RAN, "", (need,), 1, 3, step, 2 * step, 0.1, samples=float(batch), **self.facts)


def question(specs: str, *axes: str, largest: str | None = None, **options: object) -> Question:
    return Question(
        Program("script", "train.py", ("--epochs", "1")),
        specs_of(specs),
        tuple(map(parse_axis, axes)),
        None if largest is None else parse_largest(largest),
        options,
    )


def plan(asked: Question, pool: Model | None = None, work: Work | None = None, cache: Cache | None = None) -> Plan:
    planner = Planner(asked, pool or Model(), cache or Cache(None))
    answers = planner.run()
    work = work or Work()
    return Plan(rows_of(answers, asked, work), work, "train.py", planner.rehearsals, planner.cached)


def status(made: Plan) -> dict[tuple[str, ...], str]:
    return {(row.gpus, *(str(value) for value in row.choices.values())): row.status for row in made.rows}


def test_each_gpu_gets_its_largest_batch_and_the_next_one_is_shown_not_to_fit() -> None:
    made = plan(question("T4,L4,A100,H100", largest="--batch"))
    for row in made.rows:
        batch = int(str(row.choices["--batch"]))
        assert row.status == FITS
        assert CONTEXT + (2 + batch) * GIB <= row.memory_bytes < CONTEXT + (3 + batch) * GIB
        assert re.match(rf"{batch + 1} (needs|does not fit)", row.next_larger)


def test_the_edge_is_found_beyond_the_margin() -> None:
    pool = Model()
    pool.band = 0.1
    row = plan(question("A100", largest="--batch"), pool).rows[0]
    batch = int(str(row.choices["--batch"]))
    assert row.status == FITS
    assert batch < row.edge
    assert CONTEXT + (2 + row.edge) * GIB <= row.memory_bytes < CONTEXT + (3 + row.edge) * GIB
    assert row.next_larger == f"{batch + 1} to {row.edge} fit only without the band's margin"
    assert len(pool.jobs) <= 8


def test_the_next_larger_value_says_what_found_no_room() -> None:
    found = Measurement(NO_MEMORY, "CUDA out of memory. Tried to allocate 3.45 GiB. GPU 0 has 22 GiB")
    beyond = Verdict(DOES_NOT_FIT, None, found, "rehearsed", found.message)
    candidate = Candidate("L4", (parse_largest("--batch").choice(17),), True)
    asked = question("L4", largest="--batch")
    ran = Answer(candidate, Verdict(FITS, measurement=Measurement(RAN)), (18, beyond))
    assert rows_of([ran], asked, Work())[0].next_larger == "18 finds no room for 3.45 GiB in one piece"


def test_a_search_stays_within_its_range() -> None:
    pool = Model()
    made = plan(question("A100", largest="--batch=2..9"), pool)
    assert made.rows[0].choices == {"--batch": "9"}
    assert made.rows[0].next_larger == "as far as was asked"
    tried = {int(word.partition("=")[2]) for job in pool.jobs for word in job.program.arguments if "--batch=" in word}
    assert tried <= set(range(2, 10))


def test_what_does_not_fit_says_by_how_much_and_larger_values_are_pruned() -> None:
    made = plan(question("L4", "--batch=8,16,32,64,128"))
    assert status(made) == {("L4", "8"): FITS, ("L4", "16"): FITS, ("L4", "32"): DOES_NOT_FIT,
                            ("L4", "64"): PRUNED, ("L4", "128"): PRUNED}  # fmt: skip
    short = next(row for row in made.rows if row.status == DOES_NOT_FIT)
    assert short.headroom_bytes == short.memory_bytes - CONTEXT - 34 * GIB
    assert any("pruned without a rehearsal" in note for note in made.notes)
    assert any("--batch=32 does not fit" in reason for reason in made.reasons)


def test_nothing_is_pruned_where_memory_does_not_grow() -> None:
    class Shrinking(Model):
        def measured(self, job: Job) -> Measurement:
            text = " ".join(job.program.arguments)
            arguments = re.sub(r"--parts=(\d+)", lambda found: f"--batch={64 // int(found[1])}", text).split()
            return super().measured(Job(Program("script", "", tuple(arguments)), job.spec, job.options))

    made = plan(question("L4", "--parts=1,2,4,8"), Shrinking())
    assert status(made) == {("L4", "1"): DOES_NOT_FIT, ("L4", "2"): DOES_NOT_FIT, ("L4", "4"): FITS, ("L4", "8"): FITS}


def test_gpus_of_one_family_share_what_memory_says() -> None:
    pool = Model(streams=2)
    made = plan(question("L4,RTX4090", "--batch=8,32"), pool)
    assert sum(job.options["overcommit"] for job in pool.jobs) == 3  # 32 fits neither: it ran on one of them
    assert status(made)["RTX4090", "32"] == DOES_NOT_FIT


def test_a_program_that_asks_for_the_gpu_is_rehearsed_on_each() -> None:
    pool = Model(asked=("memory",))
    plan(question("L4,RTX4090", "--batch=8"), pool)
    assert [job.spec for job in pool.jobs] == ["L4", "RTX4090"]


def test_what_is_reserved_too_much_is_left_to_the_memory_that_there_is() -> None:
    pool = Model()
    pool.reserved = 1.5
    made = plan(question("L4", "--batch=16"), pool)
    assert [job.options["overcommit"] for job in pool.jobs] == [True, False]
    assert made.rows[0].status == FITS


def test_a_program_that_answers_out_of_memory_is_rehearsed_with_the_memory_that_there_is() -> None:
    pool = Model()
    pool.adapts = True
    made = plan(question("L4", "--batch=32,64"), pool)
    assert set(status(made).values()) == {FITS}


def test_a_program_that_fails_says_why() -> None:
    pool = Model()
    pool.broken = lambda job: "it ended with 1: ValueError: no data" if job.spec == "L4" else ""
    made = plan(question("L4,A100"), pool)
    assert status(made) == {("A100",): FITS, ("L4",): FAILED}
    assert made.rows[1].why == "it ended with 1: ValueError: no data"


def test_an_interrupted_plan_keeps_what_is_done(tmp_path: Path) -> None:
    class Interrupted(Model):
        def results(self) -> Iterator[tuple[int, Rehearsed]]:
            if len(self.jobs) - len(self.waiting) == 2:
                raise KeyboardInterrupt
            return super().results()

    pool, cache = Interrupted(), Cache(tmp_path)
    asked = question("T4,L4,A100")
    planner = Planner(asked, pool, cache)
    answers = planner.run()
    assert [answer.verdict.status for answer in answers] == [FITS, FITS, NOT_TRIED]
    assert planner.interrupted
    assert pool.closed
    again = Model()
    assert {row.status for row in plan(asked, again, cache=cache).rows} == {FITS}
    assert [job.spec for job in again.jobs] == ["A100"]


def test_one_more_gpu_costs_one_more_rehearsal(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    plan(question("T4,A100"), cache=cache)
    pool = Model()
    made = plan(question("T4,A100,H100"), pool, cache=cache)
    assert [job.spec for job in pool.jobs] == ["H100"]
    assert (made.rehearsals, made.cached) == (1, 2)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The same file with a bit, a digit or a stretch of it changed, cut short, or replaced by something else."""
    place = dice.randrange(len(data))
    kinds: list[Callable[[], bytes]] = [
        lambda: data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :],
        lambda: data[:place],
        lambda: data[:place] + data[place : place + 20] * 2 + data[place + 20 :],
        lambda: data.replace(str(digit := dice.randrange(1, 10)).encode(), str(digit - 1).encode(), 1),
        lambda: b"[" * dice.randrange(1, 100_000),
        lambda: dice.choice((b"", b"null", b"[]", b"{}", b'{"checksum": 1, "content": {"files": 3}}', b"\x1f\x8b")),
    ]
    return dice.choice(kinds)()


@pytest.mark.parametrize("suffix", [".json", ".trace"])
def test_a_damaged_entry_is_none(suffix: str, tmp_path: Path) -> None:
    dice, cache = random.Random(suffix), Cache(tmp_path)
    program = tmp_path / "program.py"
    program.write_text("pass")
    measurement = Measurement(RAN, message="it ran", files=(str(program),))
    cache.put("key", measurement, b"what happened", {str(program): digest(program)})
    path = tmp_path / f"key{suffix}"
    whole = path.read_bytes()
    for _ in range(300):
        path.write_bytes(damaged(whole, dice))
        assert cache.get("key") in (None, (measurement, b"what happened"))  # a repeated key changes nothing
    path.write_bytes(whole)
    assert cache.get("key") == (measurement, b"what happened")
    os.rename(tmp_path / "key.json", tmp_path / "other.json")
    assert cache.get("other") is None


@pytest.mark.parametrize(
    "content",
    [
        [], {"files": [], "trace": ""}, {"files": {"a": 3}, "trace": ""}, {"files": {}, "trace": 7},
        {"files": {}, "trace": "", "measurement": {"status": "ran", "steps": "three"}},
        {"files": {}, "trace": "", "measurement": {"status": "ran", "devices": [{"memory_bytes": 1}]}},
    ],
)  # fmt: skip
def test_an_entry_of_another_form_is_none_whatever_its_checksum(content: object, tmp_path: Path) -> None:
    entry = {"checksum": checksum("key", content), "content": content}
    (tmp_path / "key.json").write_text(json.dumps(entry))
    assert Cache(tmp_path).get("key") is None


@pytest.mark.parametrize("plant", [os.mkfifo, Path.mkdir])
def test_an_entry_that_is_no_file_is_none(plant: Callable[[Path], object], tmp_path: Path) -> None:
    plant(tmp_path / "key.json")
    assert Cache(tmp_path).get("key") is None


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    cache = Cache(folder)
    cache.put("key", Measurement(RAN), None, {})
    assert cache.get("key") is not None
    folder.chmod(0o777)
    assert cache.get("key") is None


def test_the_goal_decides_the_order() -> None:
    prices = parse_prices(["T4=0.4", "A100=2", "H100=8"])
    assert [row.gpus for row in plan(question("T4,A100,H100")).rows] == ["H100", "A100", "T4"]
    made = plan(question("T4,A100,H100"), work=Work(steps=3600, prices=prices))
    assert [row.gpus for row in made.rows] == ["A100", "T4", "H100"]
    row = made.rows[0]
    assert row.hours is not None
    assert row.cost is not None
    assert row.hours.value == pytest.approx((3600 * 0.5 + 0.5) / 3600)
    assert row.cost.value == pytest.approx(2 * row.hours.value)
    assert row.command == "python train.py --epochs 1"


def test_bands_that_overlap_are_said_to() -> None:
    made = plan(question("A100,H100"))
    assert made.rivals == []
    assert "no other's band reaches it" in made.why
    SPEED["A100"] = 15.0
    try:
        close = plan(question("A100,H100"))
    finally:
        SPEED["A100"] = 8.0
    assert [row.gpus for row in close.rivals] == ["A100"]
    assert "overlaps with that of A100" in close.why


def test_a_price_that_no_candidate_uses_is_said() -> None:
    made = plan(question("T4"), work=Work(steps=3600, prices=parse_prices(["T4=0.4", "A100-80GB=2"])))
    assert "--price of A100-SXM4-80GB was not used: no candidate has that GPU" in made.notes
    assert not any("not used" in note for note in plan(question("T4"), work=Work(prices={"T4": 0.4})).notes)


def test_different_batches_are_compared_by_the_sample() -> None:
    made = plan(question("L4", "--batch=4,16"), work=Work(steps=100))
    assert made.rows[0].work_ns == made.rows[1].work_ns
    assert any("different numbers of samples" in note for note in made.notes)


class Uncounted(Model):
    """Nothing says how many samples a step has."""

    def measured(self, job: Job) -> Measurement:
        return replace(super().measured(job), samples=None)


def test_the_largest_batches_are_compared_by_what_was_searched_for() -> None:
    made = plan(question("L4,A100,H100", largest="--batch"), Uncounted())
    assert [row.gpus for row in made.rows] == sorted(("L4", "A100", "H100"), key=lambda key: -SPEED.get(key, 1.0))
    assert {row.unit for row in made.rows} == {"--batch"}
    assert any("the order is by time over --batch" in note for note in made.notes)


def test_batches_that_vary_count_as_samples() -> None:
    made = plan(question("L4", "--batch=4,16"), Uncounted())
    assert [(row.unit, row.units_per_step) for row in made.rows] == [("--batch", 4), ("--batch", 16)]
    assert any("the order is by time over --batch" in note for note in made.notes)


def test_different_sizes_that_nobody_counts_are_said_to_be_compared_by_the_step() -> None:
    made = plan(question("L4", "--batch=4,16", "--mini-batch=1,2"), Uncounted())
    assert [row.choices["--batch"] for row in made.rows] == ["4", "4", "16", "16"]
    assert any("nothing says how many samples" in note for note in made.notes)


def test_nothing_that_fits_says_what_is_nearest() -> None:
    made = plan(question("T4,L4", "--batch=64"))
    assert made.best is None
    assert made.verdict == "EMULATED: nothing fits"
    assert made.why.startswith("the nearest, L4 with --batch=64, needs 44.")


def test_a_plan_that_was_interrupted_at_once_says_so() -> None:
    class Interrupted(Model):
        def results(self) -> Iterator[tuple[int, Rehearsed]]:
            raise KeyboardInterrupt

    made = replace(plan(question("T4,L4"), Interrupted()), interrupted=True)
    assert made.verdict == "EMULATED: interrupted before anything was known"
    assert (made.why, made.next) == ("no rehearsal had ended", "the same command again")


@pytest.mark.parametrize(("vary", "largest"), [(["--batch=4,8"], "--batch"), (["--batch=4,8", "--batch=16"], None)])
def test_what_varies_twice_is_refused(vary: list[str], largest: str | None) -> None:
    with pytest.raises(UsageError, match="--batch varies twice: name it in one --vary, or in --largest"):
        windtunnel.plan("train.py", gpus="L4", vary=vary, largest=largest)


def test_several_gpus_are_ranks_of_an_agent() -> None:
    specs = specs_of("A100,4xA100")
    assert ranks_of(None, specs) == "gpu"
    assert ranks_of(None, specs_of("A100,H100")) is None
    asked = Question(Program("script", "train.py"), specs, processes="gpu")
    assert [asked.job(spec, (), False).processes for spec in specs] == [1, 4]
    with pytest.raises(UsageError, match="it must be a number, or gpu"):
        ranks_of("all", specs)
