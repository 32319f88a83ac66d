"""Which ranks a program's source sets apart."""

import pytest

from windtunnel.ranks.rank_uses import imports, uses

RANK = "rank, world = dist.get_rank(), dist.get_world_size()\n"


def apart(text, world=8, per_node=8):
    """The ranks to compare besides the first and the last."""
    return sorted(uses({"train.py": text}, world, per_node).ranks)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (RANK + "if rank == 3: work()", [3]),
        (RANK + "if rank == world // 2: work()", [4]),
        (RANK + "if 2 <= rank < 6: work()", [2]),
        (RANK + "torch.randn(512 * (1 + rank % 4))", [1, 2]),
        (RANK + "match rank:\n    case 5: work()", [5]),
        ("if int(os.environ['RANK']) in (2, 5): work()", [2]),
        ("sizes = [1, 1, 1, 4, 1, 1, 1, 1]\nsizes[int(os.environ.get('LOCAL_RANK', 0))]", [3]),
        ("extra = {4: 10}\nrange(extra.get(dist.get_rank(), 1))", [4]),
        ("SPECIAL = 6\nif dist.get_rank() == SPECIAL: work()", [6]),
        ("def work(r):\n    if r == 5: more()\nwork(dist.get_rank())", [5]),
        ("class A:\n    def f(self):\n        if self.rank == 6: work()", [6]),
        ("def mine(): return dist.get_rank()\nif mine() == 2: work()", [2]),
        (RANK + "torch.randn(abs(rank - 3))", [1, 2, 3]),
    ],
)
def test_ranks_with_a_value_of_their_own_are_compared(text, ranks):
    assert apart(text) == ranks


@pytest.mark.parametrize(
    "text",
    [
        RANK + "torch.manual_seed(42 + rank)\nprint(f'rank {rank}', 'of %d' % rank)\ntorch.cuda.set_device(rank)",
        RANK + "if rank == 0: print('first')\nif rank == world - 1: save()",
        RANK + "torch.cuda.set_device(rank % torch.cuda.device_count())",
        RANK + "files = files[rank::world]",
        RANK + "x = torch.arange(world * unknown) + 100 * rank",
        "world = int(os.environ['WORLD_SIZE'])\nif world // parts > 1: shard()",
    ],
)
def test_other_uses_set_no_rank_apart(text):
    found = uses({"train.py": text}, 8, 8)
    assert not found.ranks
    assert not found.unknown


def test_what_only_the_running_program_knows_is_named():
    assert uses({"train.py": RANK + "\nif rank == args.special: work()"}, 8, 8).unknown == ["train.py:3"]
    assert uses({"train.py": "pp = mesh['pp'].get_local_rank()\nif pp == 1: work()"}, 8, 8).unknown == ["train.py:2"]


def test_periods_and_blocks_are_kinds_of_ranks():
    assert uses({"a.py": RANK + "if rank % 4 == 2: work()"}, 64, 8).kinds == {(1, 4)}
    assert uses({"a.py": RANK + "x = sizes(rank // 16 % 2 == 1) if rank // 16 in (1, 2) else 0"}, 64, 8).ranks == {16}


def test_few_ranks_may_differ_from_all_others():
    assert uses({"a.py": RANK + "if rank in (0, 3): work()"}, 8, 8).few == {0, 3}
    assert uses({"a.py": RANK + "if rank == 0: work()"}, 64, 8).few == {0}


def test_seeds_of_the_hosts_random_numbers_are_named():
    found = uses({"a.py": RANK + "random.seed(seed + rank)\nrng = np.random.default_rng(seed=rank)"}, 64, 8)
    assert found.seeded == ["a.py:2", "a.py:3"]
    assert found.ranks == {1, 32, 62}
    assert uses({"a.py": RANK + "random.seed(7)\ntorch.manual_seed(rank)"}, 64, 8).seeded == []


def test_a_file_that_is_no_python_says_nothing():
    assert uses({"a.py": "if rank ==="}, 8, 8).ranks == set()


def test_imports_are_named():
    assert imports("import a.b\nfrom c import d\nfrom . import e") == ["a.b", "c", "c.d", "e"]
