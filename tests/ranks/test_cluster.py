"""Attempts at a cluster: what a played rank asks for is played next, and ranks that differ come apart."""

import json

import pytest

from windtunnel import agent, cluster, launch
from windtunnel.ranks.fold import EVERY, Change, Fold
from windtunnel.trace import journal
from windtunnel.trace.operation import Kind, Lane, Signature, Site
from windtunnel.trace.trace import Trace

PROGRAM = launch.Program("code", "import torch")


class Attempts:
    """Attempts that leave what a table says: for each number of played ranks the changes, or the ranks' traces."""

    def __init__(self, folder, leave, codes=()):
        self.folder = folder
        self.leave = leave
        self.codes = list(codes)
        self.folds = []

    def __call__(self, fold):
        self.folds.append(fold)
        for rank in fold.played:
            found = self.leave(fold, rank)
            if isinstance(found, Change):
                (self.folder / f"{rank}.fold").write_text(found.to_json(), "utf-8")
            elif found is not None:
                write(self.folder / f"{rank}-{rank}.journal", found)
        return launch.Ended(self.codes.pop(0) if self.codes else 0)


def write(path, trace):
    pages = journal.Pages(trace)
    path.with_suffix(cluster.launch.departure.SUFFIX).write_bytes(journal.MAGIC + b"".join(pages.last()))


def trace(rank, *names, shape=(8,), late_ns=0):
    made = Trace()
    lane = made.lanes.number(Lane(rank, 0))
    for at, name in enumerate(names):
        detail = (("ranks", 8), ("group", "0")) if name.startswith("c10d") else ()
        number = made.signatures.number(Signature(name, (shape,), ("float32",), 1, detail=detail))
        kind = Kind.COLLECTIVE if detail else Kind.KERNEL
        made.rows.append((kind, lane, number, made.sites.number(Site("train.py", at + 1)), at, at, at + 1 + late_ns, 8))
    made.facts.update(rank=rank, world_size=8, devices=[], gpus=[])
    return made


def played(tmp_path, leave, fold=None, codes=(), program=PROGRAM):
    launch.prepare(tmp_path)
    attempts = Attempts(tmp_path, leave, codes)
    was = cluster.play(fold or Fold(8, 8), program, tmp_path, attempts)
    return was, [one.played for one in attempts.folds]


def test_ranks_that_do_the_same_need_one_attempt(tmp_path):
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"))
    assert attempts == [[0, 7]]
    assert was.result.traces[0].facts["job"]["ranks"].startswith("8 ranks by 2 processes")


def test_what_a_rank_asks_for_is_played_next(tmp_path):
    def leave(fold, rank):
        if len(fold.played) == 2 and rank == 0:
            return Change("group", (0, 1), "rank 0 sends to rank 1")
        return trace(rank, "aten::mm") if len(fold.played) > 2 else None

    was, attempts = played(tmp_path, leave)
    assert attempts == [[0, 7], [0, 1, 6, 7]]
    assert was.reasons == ["rank 0 sends to rank 1"]


@pytest.mark.parametrize("special", [0, 7])
def test_where_nothing_says_why_a_rank_differs_all_of_few_are_played(tmp_path, special):
    """The ranks between may differ as well: as where each drops layers at random, by a seed of its own."""

    def leave(fold, rank):
        return trace(rank, "aten::mm", *(["aten::add"] if rank == special else []))

    was, attempts = played(tmp_path, leave)
    assert attempts == [[0, 7], list(range(8))]
    assert was.fold.is_whole
    notes = [note for note in was.result.traces[0].notes if note.code == "ranks-differ"]
    assert {dict(note.detail)["apart"] for note in notes} == {1}


def test_ranks_that_all_differ_are_all_played(tmp_path):
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm", shape=(rank + 1,)))
    assert attempts[-1] == list(range(8))
    assert was.fold.is_whole


def test_a_large_cluster_is_cut_where_ranks_begin_to_differ(tmp_path):
    def leave(fold, rank):  # as uneven shards of a parameter do
        return trace(rank, "aten::mm", shape=(3 if rank < 510 else 2 if rank == 510 else 0,))

    was, attempts = played(tmp_path, leave, Fold(512, 8))
    assert len(attempts) == 2
    assert was.fold.played == [0, 509, 510, 511]
    assert [trace.facts["rank"] for trace in was.result.traces] == [0, 509, 510, 511]
    assert was.fold.first_of[100] == 0


def test_a_first_rank_of_a_large_cluster_that_does_more_is_cut_off(tmp_path):
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, *["aten::mm"] * (1 + (rank == 0))), Fold(64, 8))
    assert len(attempts) == 2
    assert was.fold.played == [0, 1, 63]


def test_a_large_cluster_whose_ranks_all_differ_is_an_error(tmp_path):
    fold = Fold(512, 8)
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm", shape=(rank + 1,)), fold)
    assert len(attempts[-1]) <= 64
    notes = [dict(note.detail) for note in was.result.traces[0].notes if note.code == "ranks-differ"]
    assert not all(detail["apart"] for detail in notes)


def test_a_large_cluster_that_differs_for_no_known_reason_is_an_error(tmp_path):
    was, _ = played(tmp_path, lambda fold, rank: trace(rank, *["aten::mm"] * (1 + (rank > 40))), Fold(64, 8))
    assert was.fold.cuts == {41}
    notes = [dict(note.detail) for note in was.result.traces[0].notes if note.code == "ranks-differ"]
    assert notes
    assert not any(detail["apart"] for detail in notes)
    assert "from 41 on" in was.result.traces[0].facts["job"]["not compared"]


def test_more_ranks_are_compared_where_each_has_random_numbers_of_its_own(tmp_path):
    program = launch.Program("code", "import random\nrandom.seed(7 + rank)")
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"), Fold(64, 8), program=program)
    assert attempts == [[0, 1, 32, 62, 63]]
    assert "<string>:2" in was.result.traces[0].facts["job"]["not compared"]


def test_a_run_that_somebody_ended_is_not_begun_anew(tmp_path):
    change = Change("beside", (3,), "it needs rank 3")
    was, attempts = played(tmp_path, lambda fold, rank: change, codes=[143])
    assert len(attempts) == 1
    assert was.ended.code == 143


def test_a_rank_that_the_source_sets_apart_is_compared(tmp_path):
    program = launch.Program("code", "if rank == 3: work()")
    _, attempts = played(
        tmp_path, lambda fold, rank: trace(rank, "aten::mm", *["aten::add"] * (rank == 3)), program=program
    )
    assert attempts == [[0, 3, 7]]


def test_a_source_that_nobody_can_read_makes_a_small_cluster_whole(tmp_path):
    program = launch.Program("code", "if rank == args.special: work()")
    _, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"), program=program)
    assert attempts == [list(range(8))]
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"), Fold(64, 8), program=program)
    assert attempts == [[0, 63]]
    assert "<string>:1" in was.result.traces[0].facts["job"]["not compared"]


def test_ranks_that_do_the_same_at_other_times_are_all_played(tmp_path):
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm", late_ns=rank))
    assert attempts == [[0, 7], list(range(8))]
    assert was.reasons == ["ranks 0 and 7 do the same at different times"]


def test_a_failure_is_played_by_all_ranks(tmp_path):
    was, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"), codes=(1, 1))
    assert attempts == [[0, 7], list(range(8))]
    assert was.ended.code == 1


def test_nobody_is_compared_where_that_is_asked_for(tmp_path):
    _, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm", shape=(rank + 1,)), Fold(8, 8, 0))
    assert attempts == [[0]]
    _, attempts = played(tmp_path, lambda fold, rank: trace(rank, "aten::mm"), Fold(8, 8, EVERY))
    assert attempts == [list(range(8))]


def test_a_rank_has_the_environment_that_torchrun_gives():
    found = agent.environment(Fold(16, 8), 11, 4242, {"HOME": "/root"})
    assert {name: found[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "11", "LOCAL_RANK": "3", "GROUP_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
    }  # fmt: skip
    assert json.loads(found["WINDTUNNEL_FOLD"])["world"] == 16


def test_a_program_is_read_with_its_own_modules(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "data.py").write_text("if rank == 5: pass")
    (tmp_path / "train.py").write_text("import torch\nfrom parts import data")
    monkeypatch.chdir("/")
    found = cluster.sources(launch.Program("script", "train.py"), tmp_path)
    assert {path.rpartition("/")[2] for path in found} == {"train.py", "data.py", "__init__.py"}


def test_gpus_of_other_nodes_are_other_gpus(tmp_path):
    def leave(fold, rank):
        made = trace(rank, "aten::mm")
        made.facts["devices"] = [{"physical": 0, "memory_bytes": 1}]
        return made

    was, _ = played(tmp_path, leave, Fold(16, 8))
    assert [one.facts["devices"][0]["physical"] for one in was.result.traces] == [0, 8]


def test_a_library_is_read_where_ranks_differ(tmp_path):
    """torchtitan's trainer, which is a package, lets rank 0 sleep at the end."""
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("import torch.distributed as dist\nif dist.get_rank() == 0:\n    work()\n")

    def leave(fold, rank):
        made = trace(rank, "aten::mm")
        if rank == 0:
            number, site = made.signatures.number(Signature("more")), made.sites.number(Site(str(library), 3))
            made.rows.append((Kind.KERNEL, 0, number, site, 1, 1, 2, 0))
        return made

    was, attempts = played(tmp_path, leave, Fold(64, 8))
    assert attempts == [[0, 63], [0, 1, 63]]
    assert was.fold.alone == frozenset({0})


@pytest.mark.parametrize("leave", [lambda fold, rank: None, lambda fold, rank: trace(rank)])
def test_a_failure_before_a_gpu_was_used_is_every_ranks(tmp_path, leave):
    was, attempts = played(tmp_path, leave, codes=[1])
    assert attempts == [[0, 7]]
    assert was.ended.code == 1


def test_a_large_cluster_is_cut_where_a_dimension_runs_out(tmp_path):
    """14,336 rows over 4,096 ranks: four for each, and none from rank 3,584 on."""

    def leave(fold, rank):
        return trace(rank, "aten::mm", shape=(14336 if rank < 3584 else 0, 4096))

    was, attempts = played(tmp_path, leave, Fold(4096, 8))
    assert attempts[1:] == [[0, 1, 2047, 3583, 3584, 4091, 4093, 4094, 4095]]
    assert was.fold.first_of[4000] == 3584
