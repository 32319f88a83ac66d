"""Dumps of Flight Recorder: PyTorch's own analysis reads ours, and we read what it reads."""

from __future__ import annotations

import io
import json
import pickle
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from windtunnel.cli import report
from windtunnel.errors import FileFormatError
from windtunnel.ranks import flight_recorder
from windtunnel.ranks.calls import Call, Channel, Group, Operation, Rank, State
from windtunnel.trace.operation import Site

WORLD = Group("default_pg", (0, 1))


def operation(name="all_reduce", size=8, **more):
    return Operation(name, ((size,),), ("float32",), (size,), **more)


def rank(number, *operations, waits=()):
    """A rank that has called these operations, the ones at `waits` not completed."""
    calls = [
        Call(Channel("0"), at, what, Site("train.py", 10 * at), State.WAITING if at in waits else State.DONE, at)
        for at, what in enumerate(operations, 1)
    ]
    return Rank(number, {"0": WORLD}, calls, {Channel("0"): len(calls)})


def written(folder, *ranks):
    paths = []
    for one in ranks:
        path = folder / f"nccl_trace_rank_{one.rank}"
        path.write_bytes(flight_recorder.dump(one))
        paths.append(path)
    return paths


def verdict_of_pytorch(paths):
    """Which collectives PyTorch's own analysis finds mismatched, by its database."""
    from torch.distributed.flight_recorder.components.builder import build_db

    details = {}
    for path in paths:
        content = pickle.loads(path.read_bytes())
        details[path.name] = {"rank": int(path.name[-1]), **content}
    arguments = SimpleNamespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10
    )  # fmt: skip
    with redirect_stdout(io.StringIO()):
        database = build_db(details, arguments, flight_recorder.VERSION)
    return [one for one in database.collectives if not one.pass_check or one.missing_ranks]


def codes(ranks):
    return [(note.code, note.site.line) for note in flight_recorder.wrong(ranks)]


GATHER = operation("all_gather_into_tensor")
CASES = {
    "same": ([operation(), GATHER], [operation(), GATHER], (), []),
    "type": ([operation()], [GATHER], (), [("collective-mismatch", 10)]),
    "size": ([operation()], [operation(size=9)], (), [("collective-mismatch", 10)]),
    "dtype": (
        [operation()], [operation()._replace(dtypes=("float64",))], (), [("collective-mismatch", 10)],
    ),
    "missing": ([operation(), operation()], [operation()], (2,), [("collective-missing", 20)]),
    "scatter": ([operation("reduce_scatter_tensor")] * 2, [operation("reduce_scatter_tensor")] * 2, (), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_verdicts_are_those_of_pytorch(tmp_path, name):
    first, second, waits, expected = CASES[name]
    paths = written(tmp_path, rank(0, *first, waits=waits), rank(1, *second))
    assert bool(verdict_of_pytorch(paths)) == bool(expected)
    assert codes(flight_recorder.load(paths)) == expected


def test_what_is_written_is_read_again(tmp_path):
    mine = rank(1, operation(), GATHER, waits=(2,))
    (found,) = flight_recorder.load(written(tmp_path, mine))
    assert (found.rank, found.groups, found.counts) == (1, mine.groups, mine.counts)
    for call, expected in zip(found.calls, mine.calls, strict=True):
        assert (call.channel, call.number, call.site) == (expected.channel, expected.number, expected.site)
        assert (call.state, call.operation.name) == (expected.state, expected.operation.name)
        assert (call.operation.shapes, call.operation.elements) == (expected.operation.shapes, (8,))


def entry(number, name="nccl:all_reduce", state="completed", sizes=((3, 4),), out=None, frames=()):
    """An entry as PyTorch 2.5 to 2.9 write it."""
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": name, "time_created_ns": 1724779239936775119 + number,
        "input_sizes": sizes, "input_dtypes": ["Float"], "output_sizes": out or sizes, "output_dtypes": ["Float"],
        "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600000, "is_p2p": False, "frames": list(frames),
    }  # fmt: skip


ONE = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}


def real(folder, number, *entries, ranks="[0, 1]"):
    path = folder / f"nccl_trace_rank_{number}"
    configured = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    path.write_bytes(pickle.dumps({"version": "2.9", "pg_config": configured, "entries": list(entries)}, 2))
    return path


PAIRS = {
    "equal": [{}, {}],
    "type": [{}, {"name": "nccl:all_gather"}],
    "size": [{}, {"sizes": ((4, 4),)}],
    "output": [{}, {"out": ((4, 4),)}],
    "reduced into another size": [{"out": ((4, 4),)}] * 2,
    "rows and columns": [{"sizes": ((12,),)}] * 2,
    "gathered": [{"name": "nccl:all_gather", "out": ((6, 4),)}] * 2,
    "gathered too little": [{"name": "nccl:all_gather", "out": ((5, 4),)}] * 2,
    "scattered": [{"name": "nccl:_reduce_scatter_base", "sizes": ((6, 4),), "out": ((3, 4),)}] * 2,
    "scattered too much": [{"name": "nccl:_reduce_scatter_base", "sizes": ((6, 4),), "out": ((4, 4),)}] * 2,
    "list scattered": [{"name": "nccl:reduce_scatter", "sizes": ((6, 4),), "out": ((3, 4),)}] * 2,
    "exchanged": [{"name": "nccl:all_to_all", "sizes": ((3, 4),), "out": ((5, 4),)},
                  {"name": "nccl:all_to_all", "sizes": ((5, 4),), "out": ((3, 4),)}],
    "broadcast": [{"name": "nccl:broadcast"}] * 2,
    "gather": [{"name": "nccl:gather", "out": ((6, 4),)}, {"name": "nccl:gather", "out": ((0,),)}],
    "state": [{}, {"state": "scheduled"}],
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_of_calls_differs_where_pytorch_says_so(tmp_path, name):
    from torch.distributed.flight_recorder.components.types import MatchState, Op

    entries = [entry(1, **changed) for changed in PAIRS[name]]
    one, other = (Op(each, {"0": {0, 1}}, "0") for each in entries)
    verdict = one.match(other).state
    paths = [real(tmp_path, number, each) for number, each in enumerate(entries)]
    differs = verdict not in (MatchState.FULLY_MATCHED, MatchState.UNDECIDED, MatchState.COLLECTIVE_STATE_MISMATCH)
    assert [note.code for note in flight_recorder.wrong(flight_recorder.load(paths))] == [
        "collective-mismatch"
    ] * differs


FRAMES = (
    {"name": "all_reduce", "filename": "/usr/lib/python3/dist-packages/torch/distributed/c10d.py", "line": 3},
    {"name": "train", "filename": "/home/me/train.py", "line": 31},
)


def test_the_line_is_the_programs_and_not_pytorchs(tmp_path):
    paths = [real(tmp_path, 0, entry(1, frames=FRAMES)), real(tmp_path, 1, entry(1, "nccl:broadcast", frames=FRAMES))]
    (note,) = flight_recorder.wrong(flight_recorder.load(paths))
    assert note.site == Site("/home/me/train.py", 31, "train")


def test_what_is_queued_behind_a_collective_that_hangs_is_not_waited_in(tmp_path):
    ahead = [
        entry(1),
        entry(2, state="started", frames=FRAMES),
        entry(3, state="scheduled"),
        entry(4, state="scheduled"),
    ]
    paths = [real(tmp_path, 0, *ahead), real(tmp_path, 1, entry(1))]
    (note,) = flight_recorder.wrong(flight_recorder.load(paths))
    assert (note.code, note.site.line, dict(note.detail)["rank"]) == ("collective-missing", 31, 1)


def test_all_to_all_is_compared_over_all_ranks(tmp_path):
    def both(received):
        return [
            real(tmp_path, 0, entry(1, "nccl:all_to_all", sizes=((4, 4),), out=((2, 4),))),
            real(tmp_path, 1, entry(1, "nccl:all_to_all", sizes=((2, 4),), out=((received, 4),))),
        ]

    assert codes(flight_recorder.load(both(4))) == []
    assert codes(flight_recorder.load(both(5))) == [("collective-mismatch", 0)]


def test_sends_and_receives_are_paired(tmp_path):
    sent = entry(0, "nccl:send 0->1", state="started") | {"is_p2p": True, "p2p_seq_id": 1}
    other = entry(0, "nccl:send 1->0", state="started") | {"is_p2p": True, "p2p_seq_id": 1}
    assert codes(flight_recorder.load([real(tmp_path, 0, sent), real(tmp_path, 1, other)])) == [
        ("collective-deadlock", 0)
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"pg_config": {}, "entries": 3}, "is not a dump of Flight Recorder"),
        ({"pg_config": {"0": {"desc": "d", "ranks": "__import__('os')"}}, "entries": []}, "is not a dump"),
        ({"pg_config": {"0": {"desc": "d", "ranks": f"[{1 << 70}]"}}, "entries": []}, "too large"),
        ({"pg_config": {}, "entries": [entry(1)]}, "belongs to group 0, which is none of its groups"),
        ({"pg_config": ONE, "entries": [{**entry(1), "process_group": ("7", "d")}]}, "belongs to group 7"),
        ({"pg_config": ONE, "entries": [entry(1, sizes=((1 << 70,),))]}, "too large"),
        ({"pg_config": {"0": {"desc": "d", "ranks": "[0, 1"}}, "entries": []}, "its ranks are no list"),
        ({"pg_config": {"0": {"desc": "d", "ranks": "[" * 5000}}, "entries": []}, "is not a dump"),
        ({"entries": []}, "is not a dump"),
    ],
)
def test_a_damaged_dump_is_refused(tmp_path, content, words):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(content, 2))
    with pytest.raises(FileFormatError, match=words):
        flight_recorder.load([path])


def test_a_dump_needs_its_rank(tmp_path):
    path = tmp_path / "dump"
    path.write_bytes(flight_recorder.dump(rank(0)))
    with pytest.raises(FileFormatError, match="no rank at the end of its name"):
        flight_recorder.load([path])


def test_the_command_shows_the_finding(tmp_path):
    paths = [real(tmp_path, 0, entry(1, frames=FRAMES)), real(tmp_path, 1, entry(1, "nccl:broadcast", frames=FRAMES))]
    done = CliRunner().invoke(report.command, [*map(str, paths), "--json"], standalone_mode=False)
    assert done.exception is None
    found = json.loads(done.output)["findings"]
    assert [(one["code"], Path(one["file"]).name, one["line"]) for one in found] == [
        ("collective-mismatch", "train.py", 31)
    ]
    shown = CliRunner().invoke(report.command, list(map(str, paths)), standalone_mode=False)
    assert shown.exception is None
    assert "collective-mismatch" in shown.output


def bare(number, name, sizes=((4, 4),), out=None, group=("0", "default"), dtype="float32", state="completed"):
    """An entry as PyTorch's own tests of its analysis make them: numbers of calls as text, types without a list."""
    return {
        "record_id": number, "process_group": group, "collective_seq_id": "0", "p2p_seq_id": "0", "is_p2p": False,
        "profiling_name": f"nccl:{name}", "time_created_ns": 0, "input_sizes": [list(size) for size in sizes],
        "output_sizes": [list(size) for size in (sizes if out is None else out)], "input_dtypes": "float32",
        "output_dtypes": dtype, "state": state, "frames": [],
    }  # fmt: skip


SUB = ("1", "sub_pg")
DATABASES = {
    "reduced in two groups": [[("all_reduce", {}), ("all_reduce", {"sizes": ((5, 5),), "group": SUB})]] * 2,
    "coalesced": [[("allreduce_coalesced", {})]] * 2,
    "two broadcasts together": [[("broadcast", {}), ("broadcast", {}), ("coalesced", {"sizes": ((),)})]] * 2,
    "gathered unevenly, differing": [
        [("_broadcast_oop", {}), ("_broadcast_oop", {"sizes": (size,)}), ("ALLGATHER_coalesced", {"sizes": ((),)})]
        for size in ((5, 5), (4, 4))
    ],
    "gathered unevenly, the first differs": [
        [("_broadcast_oop", {"sizes": (size,)}), ("_broadcast_oop", {}), ("ALLGATHER_coalesced", {"sizes": ((),)})]
        for size in ((5, 5), (4, 4))
    ],
    "scattered unevenly": [
        [("_reduce_oop", {}), ("_reduce_oop", {}), ("REDUCE_SCATTER_coalesced", {"sizes": ((),)})]
    ] * 2,
    "nothing together on one rank": [
        [("all_reduce", {})],
        [("all_reduce", {}), ("_reduce_oop", {}), ("_reduce_oop", {}), ("REDUCE_SCATTER_coalesced", {"sizes": ((),)})],
    ],
    "results of different types": [[("all_reduce", {"dtype": dtype})] for dtype in ("float32", "float16")],
}  # fmt: skip


@pytest.mark.parametrize("name", DATABASES)
def test_the_databases_of_pytorchs_own_tests_have_its_verdicts(tmp_path, name):
    paths = []
    for rank_, calls in enumerate(DATABASES[name]):
        configured = {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
            "1": {"name": "1", "desc": "sub_pg", "ranks": f"[{rank_}]"},
        }
        entries = [bare(number, called, **more) for number, (called, more) in enumerate(calls)]
        path = tmp_path / f"nccl_trace_rank_{rank_}"
        path.write_bytes(pickle.dumps({"version": "2.9", "pg_config": configured, "entries": entries}, 2))
        paths.append(path)
    assert bool(flight_recorder.wrong(flight_recorder.load(paths))) == bool(verdict_of_pytorch(paths))


def test_every_collective_of_pytorchs_analysis_is_read(tmp_path):
    from torch.distributed.flight_recorder.components.types import COLLECTIVES

    for number, name in enumerate(sorted(COLLECTIVES)):
        gathers, scatters = "gather" in name and name != "gather", "reduce_scatter" in name
        out = ((32,),) if gathers else ((2, 4),) if scatters else ((4, 4),)
        folder = tmp_path / str(number)
        folder.mkdir()
        entries = [entry(1, f"nccl:{name}", sizes=((4, 4),), out=out)] * 2
        paths = [real(folder, rank_, one) for rank_, one in enumerate(entries)]
        assert codes(flight_recorder.load(paths)) == [], name
