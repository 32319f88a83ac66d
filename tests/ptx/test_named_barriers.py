"""What barriers of some of a block's warps order, and what they do not: beside an oracle that knows all orders."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.ptx.cuda import launch, np
from windtunnel import ptx

HEAD = """
#define SYNC(n, c) asm volatile("bar.sync %0, %1;" :: "n"(n), "n"(c) : "memory")
#define ARRIVE(n, c) asm volatile("bar.arrive %0, %1;" :: "n"(n), "n"(c) : "memory")
#define IS(n) (x[w + 32 * n] == 33 * n)  // no jump by a table
#define BEGIN KERNEL k(int *x, int *y) { __shared__ int s[128]; int t = threadIdx_x, w = t / 32;
"""


def kinds(body: str, block: int = 128, values: list[int] | None = None) -> list[str]:
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    done = launch(HEAD + "BEGIN " + body + "}", [x, y], block=(block,))
    assert done.trap is None
    assert values is None or list(y[: len(values)]) == values
    return [fault.kind for fault in done.faults]


GROUPS = "s[t] = x[t]; if (t < 64) { SYNC(1, 64); y[t] = s[%s - t]; } else { SYNC(2, 64); y[t] = s[191 - t]; }"
READ = "s[t] = x[t]; __syncthreads(); y[t] = s[127 - t]; if (t < 64) { SYNC(1, 64); s[t] = 3; } else SYNC(2, 64);"
GLOBAL = "y[t] = x[t]; if (t < 64) { SYNC(1, 64); y[128 + t] = y[%s - t]; } else { SYNC(2, 64); y[t + 128] = 0; }"
CHAIN = """if (IS(0)) { s[t] = x[t]; SYNC(1, 64); } if (IS(1)) { %s }
           if (IS(2)) { SYNC(2, 64); y[t] = s[t - 64]; }"""
ATOMIC = """if (t == 0) s[0] = 0; __syncthreads(); __nvvm_atom_add_gen_i(s, 1);
            if (t < 64) { SYNC(%s); y[t] = s[0]; } else SYNC(%s);"""


@pytest.mark.parametrize(
    ("body", "block", "found"),
    [
        (GROUPS % 63, 128, []),
        (GROUPS % 127, 128, ["shared-race"]),
        (READ, 128, ["shared-race"]),
        (GLOBAL % 63, 128, []),
        (GLOBAL % 127, 128, ["global-race"]),
        (CHAIN % "SYNC(1, 64); SYNC(2, 64);", 96, []),
        (CHAIN % "SYNC(2, 64); SYNC(1, 64);", 96, ["shared-race"]),
        (ATOMIC % ("1, 128", "1, 128"), 128, []),
        (ATOMIC % ("1, 64", "2, 64"), 128, ["shared-race"]),
    ],
)
def test_a_barrier_orders_those_that_meet_at_it(body: str, block: int, found: list[str]) -> None:
    assert kinds(body, block) == found


PIPE = """for (int i = 0; i < 4; i++) {
  if (t < 64) { %s s[t] = x[t] + i; %s ARRIVE(1, 128); %s }
  else { SYNC(1, 128); y[t + 64 * (i & 1) - 64] = s[127 - t]; if (i < 3) ARRIVE(2, 128); }
}"""
EMPTY = "if (i) SYNC(2, 128);"


@pytest.mark.parametrize(
    ("parts", "found"),
    [((EMPTY, "", ""), False), (("", EMPTY, ""), True), ((EMPTY, "", "s[t] += 1;"), True)],
)
def test_a_warp_that_arrives_hands_on_what_it_did_before(parts: tuple[str, str, str], found: bool) -> None:
    values = None if found else [*range(65, 1, -1), *range(66, 2, -1)]
    assert bool(kinds(PIPE % parts, values=values)) == found


MEMORY = """
  __shared__ unsigned long long b;
  unsigned at = (unsigned)(unsigned long)(__attribute__((address_space(3))) void *)&b;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%%0], 1;" :: "r"(at) : "memory");
  __syncthreads();
  if (w == 0) {
    s[t] = x[t];
    asm volatile("bar.warp.sync -1;" ::: "memory");
    if (t == 0) asm volatile("{ .reg .b64 p; mbarrier.arrive.shared.b64 p, [%%0]; }" :: "r"(at) : "memory");
    %s
  }
  if (w == 1) {
    unsigned done = 0;
    while (!done) asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%%1], 0;"
                               " selp.u32 %%0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
  }
  if (w == %s) y[t] = s[t %% 32];
"""


@pytest.mark.parametrize(
    ("behind", "reader", "found"),
    [("", 1, []), ("", 2, ["shared-race"]), ("s[t] = 7;", 1, ["shared-race"])],
)
def test_a_barrier_in_memory_orders_what_came_before_for_those_that_wait(
    behind: str, reader: int, found: list[str]
) -> None:
    assert kinds(MEMORY % (behind, reader), 96) == found


GROUPS_OF_FOUR = [group for size in (2, 3, 4) for group in itertools.combinations(range(4), size)]


def generated(seed: int) -> tuple[str, bool]:
    """A program of four warps that meet in random groups, and whether two of them race."""
    chosen = random.Random(seed)
    programs: list[list[tuple[str, int, int]]] = [[] for _ in range(4)]
    for _ in range(chosen.randint(4, 9)):
        if chosen.random() < 0.5:
            group = sorted(chosen.sample(range(4), chosen.randint(2, 4)))
            for warp in group:
                programs[warp].append(("meet", 1 + GROUPS_OF_FOUR.index(tuple(group)), len(group)))
        else:
            programs[chosen.randrange(4)].append((chosen.choice("rrw"), chosen.randrange(2), 0))
    ordered = _ordered(programs)
    acts = [(w, i) for w in range(4) for i, one in enumerate(programs[w]) if one[0] != "meet"]
    races = any(
        programs[a[0]][a[1]][1] == programs[b[0]][b[1]][1]
        and "w" in (programs[a[0]][a[1]][0], programs[b[0]][b[1]][0])
        and a[0] != b[0] and b not in ordered[a] and a not in ordered[b]
        for a in acts for b in acts
    )  # fmt: skip
    lines = "s[t] = 0; __syncthreads();"
    for warp, program in enumerate(programs):
        said = {
            "meet": "SYNC({0}, {2});", "w": 'asm volatile("st.u32 [%0], {3};" :: "l"(s + {0}) : "memory");',
            "r": 'asm volatile("{{ .reg .b32 r; ld.u32 r, [%0]; }}" :: "l"(s + {0}) : "memory");',
        }  # fmt: skip
        lines += (
            f"if (IS({warp})) {{ " + " ".join(said[a].format(b, c, 32 * c, warp + 1) for a, b, c in program) + " }\n"
        )
    return lines, races


def _ordered(programs: list[list[tuple[str, int, int]]]) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """What comes after each act: paths through the warps' programs and the barriers that they pass together."""
    at, following = [0] * 4, {(w, i): {(w, i + 1)} for w in range(4) for i in range(len(programs[w]))}
    while any(at[w] < len(programs[w]) for w in range(4)):
        for w in range(4):
            while at[w] < len(programs[w]) and programs[w][at[w]][0] != "meet":
                at[w] += 1
        waiting = {w: programs[w][at[w]] for w in range(4) if at[w] < len(programs[w])}
        for number in {one[1] for one in waiting.values()}:
            group = [w for w in waiting if waiting[w][1] == number]
            if group and len(group) == waiting[group[0]][2]:
                for a in group:
                    following[a, at[a]] |= {(b, at[b]) for b in group}
                for a in group:
                    at[a] += 1
    found = {}
    for start in following:
        seen, work = set(), [start]
        while work:
            new = following.get(work.pop(), set()) - seen
            seen |= new
            work += new
        found[start] = seen
    return found


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_random_groups_race_where_no_barrier_lies_between(first: int) -> None:
    bodies = [generated(seed) for seed in range(first, first + 8)]
    found = [bool({*kinds(body)} - {"warp-race"}) for body, _ in bodies]
    assert found == [races for _, races in bodies]


def test_the_random_groups_are_of_both_kinds() -> None:
    races = [generated(seed)[1] for seed in range(48)]
    assert 12 <= sum(races) <= 36


def test_unchecked_warps_arrive_as_well() -> None:
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    source = HEAD + "BEGIN " + PIPE % (EMPTY, "", "") + "}"
    checks: tuple[ptx.Checks, ...] = ("none", "all")
    for how in checks:
        for schedule in (0, 1, 2):
            y[:] = 0
            launch(source, [x, y], block=(128,), checks=how, schedule=schedule)
            assert list(y[:128]) == [*range(65, 1, -1), *range(66, 2, -1)]
