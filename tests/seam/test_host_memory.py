"""The guard for the host: what this machine's memory cannot hold is refused before it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import windtunnel
from windtunnel.errors import HostMemoryError, UnsupportedError, UsageError
from windtunnel.seam import host_memory
from windtunnel.seam.host_memory import Room, parse_size
from windtunnel.session import Session

MIB = 1 << 20
GIB = 1 << 30


def halve_until_it_fits(batch: int) -> int:
    """The batch at which 16 layers' activations fit on the card, as programs look for it."""
    while True:
        try:
            kept = [torch.randn(batch, 1024, device="cuda")]
            for _ in range(16):
                kept.append(torch.relu(kept[-1]))
        except torch.OutOfMemoryError:
            kept = []
            batch //= 2
        else:
            return batch


def test_a_parameter_without_a_shape_moves_where_memory_is_short() -> None:
    with windtunnel.emulate("V100", host_memory_limit="64MiB"):
        layer = torch.nn.LazyLinear(1).to("cuda")
        assert layer(torch.ones(2, 3, device="cuda")).is_cuda


def test_a_halving_loop_ends_in_a_sentence_that_names_its_line_and_the_ways_out() -> None:
    with windtunnel.emulate("V100", host_memory_limit="64MiB"), pytest.raises(HostMemoryError) as caught:
        halve_until_it_fits(1 << 20)
    line = halve_until_it_fits.__code__.co_firstlineno + 4
    text = str(caught.value)
    assert f"test_host_memory.py:{line} makes 4.00 GiB of values for emulated GPU 0" in text
    assert "--host-memory-limit 64.0 MiB leaves no room" in text
    assert "--no-data" in text


def test_small_tensors_together_meet_the_limit_too() -> None:
    with windtunnel.emulate("V100", host_memory_limit=64 * MIB), pytest.raises(HostMemoryError):
        halve_until_it_fits(1 << 10)


def test_what_the_card_cannot_hold_is_the_cards_error_first() -> None:
    with windtunnel.emulate("V100", host_memory_limit="64MiB"):
        kept = torch.empty(15 * MIB, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(4 * GIB, device="cuda")
        del kept


def test_without_data_nothing_is_refused() -> None:
    with windtunnel.emulate("V100", no_data=True, host_memory_limit="64MiB"):
        assert halve_until_it_fits(1 << 20) == 1 << 17


def test_what_is_given_back_can_be_had_again() -> None:
    with windtunnel.emulate("V100", host_memory_limit="64MiB"):
        for _ in range(8):
            x = torch.ones(8 * MIB, device="cuda")
            del x


def test_it_is_no_out_of_memory_of_the_card() -> None:
    assert issubclass(HostMemoryError, MemoryError)
    assert issubclass(HostMemoryError, UnsupportedError)
    assert not issubclass(HostMemoryError, RuntimeError)


# ---------------------------------------------------------------------- a machine with little memory


@pytest.fixture
def free(session: Session) -> Callable[[int], None]:
    """Sets how many bytes this machine says are available, the emulation's reserve not counted."""
    room = session._installations[0].state.room

    def free(size: int) -> None:
        room.available = lambda: room.reserve + size
        room.look()

    return free


def test_a_large_product_of_small_matrices_is_refused_before_it_is_computed(free: Callable[[int], None]) -> None:
    a, b = torch.ones(1 << 15, 1, device="cuda"), torch.ones(1, 1 << 15, device="cuda")
    free(128 * MIB)
    with pytest.raises(HostMemoryError, match=r"makes 4\.00 GiB"):
        a @ b
    assert (a[:4] @ b[:, :4]).sum().item() == 16


def test_a_factory_is_asked_while_there_is_plenty(session: Session) -> None:
    room = session._installations[0].state.room
    room.available, room.near_bytes = lambda: room.reserve + 3 * GIB, 0
    room.look()
    assert not room.near
    with pytest.raises(HostMemoryError, match=r"makes 4\.00 GiB"):
        torch.zeros(1 << 30, device="cuda")


def test_empty_memory_is_counted_when_it_is_written(free: Callable[[int], None]) -> None:
    free(256 * MIB)
    cache = torch.empty(1 << 30, device="cuda")  # 4 GiB, of which no page is touched
    cache[: 1 << 20].zero_()
    with pytest.raises(HostMemoryError, match=r"makes 4\.00 GiB"):
        cache.normal_()


def test_a_copy_to_the_gpu_is_refused_before_it_is_made(free: Callable[[int], None]) -> None:
    batch = torch.zeros(1, device="cpu").expand(1 << 28)
    free(128 * MIB)
    with pytest.raises(HostMemoryError, match=r"makes 1\.00 GiB"):
        batch.to("cuda")


def test_sizes_by_meta_kernels_do_not_move_the_generators(free: Callable[[int], None]) -> None:
    torch.manual_seed(3)
    expected = [torch.randn(4, device="cuda").tolist(), torch.nn.functional.dropout(torch.ones(8, device="cuda"))]
    free(128 * MIB)
    torch.manual_seed(3)
    assert torch.randn(4, device="cuda").tolist() == expected[0]
    assert torch.equal(torch.nn.functional.dropout(torch.ones(8, device="cuda")), expected[1])


# ---------------------------------------------------------------------- what the machine says


def test_plenty_of_memory_needs_no_look_at_each_operator() -> None:
    room = Room(lambda: 0, None, lambda: 60 * GIB, lambda: 64 * GIB)
    assert not room.near
    assert room.left == host_memory.STRIDE


def test_little_memory_is_near_and_leaves_the_reserve_alone() -> None:
    room = Room(lambda: 0, None, lambda: 4 * GIB, lambda: 64 * GIB)
    assert room.near
    assert room.free() == 4 * GIB - 64 * GIB // 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 * GIB), ("500MB", 500_000_000), ("8G", 8 * 10**9), (4096, 4096), ("1.5 kib", 1536), ("12b", 12)],
)
def test_sizes_are_bytes_or_have_units(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["much", "0", "-4GiB", "4 parsecs", ""])
def test_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size of memory"):
        parse_size(text)


def lay_out(root: Path, files: dict[str, str]) -> Path:
    """Write the files of /proc and /sys that a kernel would show."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_control_group_of_version_2_limits_through_its_ancestors(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "sys/fs/cgroup/jobs/one/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": "1048576\n",
            "sys/fs/cgroup/jobs/memory.current": "600000\n",
            "sys/fs/cgroup/jobs/memory.stat": "anon 1\ninactive_file 90000\nactive_file 10000\n",
        },
    )
    assert host_memory.available_bytes(root) == 1048576 - 500000
    assert host_memory.total_bytes(root) == 1048576


def test_a_control_group_of_version_1_in_a_container_is_at_the_mounts_root(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "400000\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100000\ntotal_active_file 0\n",
        },
    )
    assert host_memory.available_bytes(root) == 700000
