"""A running program's memory is there to be read by other processes."""

import os

from windtunnel import live


def test_what_a_device_holds_can_be_read_from_outside(tmp_path) -> None:
    words = live.counters(tmp_path, 2)
    first = live.SharedMemory(words[0], 1 << 30)
    live.SharedMemory(words[1], 1 << 30, device=1)
    assert live.processes(tmp_path) == []
    first.occupied_bytes += 300 << 20
    address = first.malloc(3 << 20)
    assert [(p.pid, p.used_bytes) for p in live.processes(tmp_path)] == [(os.getpid(), (304 << 20, 0))]
    assert address is not None
    first.free(address)
    assert live.processes(tmp_path)[0].used_bytes == (300 << 20, 0)
    assert first.free_bytes == (1 << 30) - (300 << 20)
    first.xid = 79
    assert live.errors(tmp_path) == {0: 79}


def test_processes_that_ended_are_not_shown(tmp_path) -> None:
    (tmp_path / "4194305.live").write_bytes(bytes(8) + (1 << 20).to_bytes(8, "little"))
    assert live.processes(tmp_path) == []


def test_what_another_process_holds_is_not_free(tmp_path) -> None:
    memory = live.device_memory(0, 2, 1 << 30, str(tmp_path))
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        live.device_memory(0, 2, 1 << 30, str(tmp_path)).malloc(600 << 20)
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert memory.others() == [(child, 600 << 20)]
    assert live.device_memory(1, 2, 1 << 30, str(tmp_path)).free_bytes == 1 << 30
    assert memory.malloc(500 << 20) is None
    os.write(done[1], b"1")
    os.waitpid(child, 0)
    assert memory.malloc(500 << 20) is not None


def test_the_gpus_of_another_node_are_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "1")
    live.SharedMemory(live.counters(tmp_path, 1)[0], 1 << 30).malloc(600 << 20)
    os.rename(tmp_path / f"{os.getpid()}.live", tmp_path / f"{os.getppid()}.live")
    memory = live.device_memory(0, 1, 1 << 30, str(tmp_path))
    assert memory.others() == [(os.getppid(), 600 << 20)]
    monkeypatch.setenv("GROUP_RANK", "0")
    assert memory.free_bytes == 1 << 30


def test_a_forked_process_counts_its_own_memory(tmp_path) -> None:
    memory = live.device_memory(0, 1, 1 << 30, str(tmp_path))
    child = os.fork()
    if child == 0:
        memory.occupied_bytes += 300 << 20
        seen = {process.pid: process.used_bytes for process in live.processes(tmp_path)}
        os._exit(0 if seen == {os.getpid(): (300 << 20,)} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.occupied_bytes == 0
    assert live.processes(tmp_path) == []
