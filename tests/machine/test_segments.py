"""Device memory as the driver gives it."""

import pytest

from windtunnel.machine.memory.driver import DeviceMemory

MIB, GIB = 1 << 20, 1 << 30


def test_free_is_total_less_what_others_and_we_hold():
    memory = DeviceMemory(16 * GIB, occupied_bytes=GIB)
    memory.malloc(3 * MIB)
    assert memory.info() == (15 * GIB - 4 * MIB, 16 * GIB)


def test_no_memory_is_an_answer_not_an_error():
    memory = DeviceMemory(10 * MIB)
    assert memory.malloc(12 * MIB) is None
    assert memory.malloc_calls == 1
    assert not memory.map(12 * MIB, 6)


def test_ranges_of_32_mib_go_down_and_their_tails_fill_from_the_lowest():
    """As in cranberrii/ftcourse memory_snapshot.pickle: 44, 44, 44 MiB, then 20 and 16 MiB in the tails."""
    memory = DeviceMemory(16 * GIB)
    first, second, third = (memory.malloc(44 * MIB) for _ in range(3))
    assert (first - second, second - third) == (64 * MIB, 64 * MIB)
    assert memory.malloc(20 * MIB) == third + 44 * MIB
    assert memory.malloc(16 * MIB) == second + 44 * MIB
    assert memory.malloc(20 * MIB) == first + 44 * MIB
    assert memory.malloc(22 * MIB) == third - 32 * MIB


def test_freed_ranges_are_used_again():
    memory = DeviceMemory(16 * GIB)
    first, second = memory.malloc(20 * MIB), memory.malloc(12 * MIB)
    memory.free(first)
    assert memory.malloc(20 * MIB) == first
    memory.free(first)
    memory.free(second)
    assert memory.malloc(32 * MIB) == first
    assert memory.reserved_bytes == 32 * MIB


def test_an_unknown_address_cannot_be_freed():
    with pytest.raises(KeyError):
        DeviceMemory(GIB).free(0x1000)


def test_address_reservations_hold_no_memory():
    memory = DeviceMemory(16 * GIB)
    first, second = memory.reserve_address(18 * GIB), memory.reserve_address(18 * GIB)
    assert second - first == 18 * GIB
    assert memory.reserved_bytes == 0
    assert memory.map(20 * MIB, 1)
    memory.unmap(20 * MIB, 1)
    assert (memory.map_calls, memory.unmap_calls, memory.reserved_bytes) == (1, 1, 0)
