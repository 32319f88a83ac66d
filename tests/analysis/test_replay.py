"""Replaying snapshots: what is written by our own allocator comes back; other files are refused with a reason."""

import gzip
import json
import pickle
import random

import pytest

from windtunnel.analysis.replay import Replay, replay
from windtunnel.analysis.snapshot_file import from_dict, read
from windtunnel.analysis.start_state import start_segments
from windtunnel.analysis.what_if import what_if
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.memory.settings import parse

MIB, GIB = 1 << 20, 1 << 30


class Events:
    """Events that complete some operations later."""

    def __init__(self):
        self.clock = 0

    def record(self, stream):
        return self.clock + 5

    def done(self, token):
        return self.clock >= token

    def synchronize(self, token):
        self.clock = max(self.clock, token)


def program(seed, conf="", operations=600, skip=0, total=2 * GIB):
    """A snapshot of a random program, with a history that begins after `skip` operations."""
    numbers = random.Random(seed)
    events = Events()
    allocator = CachingAllocator(0, DeviceMemory(total), parse(conf), events)
    history, live = [], []

    def hear(action, address, size, stream, block):
        history.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": 0})

    for operation in range(operations):
        if operation == skip:
            allocator.on_action = hear
        events.clock += 1
        choice = numbers.random()
        if choice < 0.004:
            allocator.empty_cache()
        elif live and choice < 0.5:
            block = live.pop(numbers.randrange(len(live)))
            if numbers.random() < 0.1:
                allocator.record_stream(block, block.stream + 1)
            allocator.free(block)
        else:
            size = int(2 ** numbers.uniform(2, 27))
            try:
                live.append(allocator.malloc(size, numbers.choice((0, 0, 3))))
            except OutOfMemory:
                continue
    allocator.on_action = None
    events.clock += 100
    return {**allocator.snapshot(), "device_traces": [history]}


def write(path, data):
    path.write_bytes(pickle.dumps(data))
    return path


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:40,roundup_power2_divisions:8"])
@pytest.mark.parametrize("seed", range(4))
def test_a_recording_from_the_start_replays_exactly(tmp_path, seed, conf):
    print(f"seed {seed}")
    (result,) = replay(write(tmp_path / "a.pickle", program(seed, conf, total=64 * GIB)))
    assert result.first_disagreement is None
    assert result.placements_agree == result.allocations > 200
    assert result.driver_calls_agree == result.driver_calls > 10
    assert result.final_blocks_agree == result.final_blocks


@pytest.mark.parametrize("seed", range(4))
def test_a_recording_that_begins_late_finds_its_start(tmp_path, seed):
    print(f"seed {seed}")
    data = program(seed, operations=800, skip=400, total=64 * GIB)
    (result,) = replay(write(tmp_path / "a.pickle", data), driver="recorded")
    assert result.start_segments > 0
    assert result.first_disagreement is None
    assert result.placements_agree == result.allocations


def test_flushes_when_memory_runs_out_replay_too(tmp_path):
    data = program(3, total=1 * GIB)
    actions = [event["action"] for event in data["device_traces"][0]]
    assert "segment_free" in actions
    (result,) = replay(write(tmp_path / "a.pickle", data), driver="recorded")
    assert result.placements_agree == result.allocations


def test_the_first_disagreement_is_named(tmp_path):
    data = program(1)
    event = next(e for e in data["device_traces"][0][200:] if e["action"] == "alloc" and e["size"] < MIB)
    event["addr"] += 512
    (result,) = replay(write(tmp_path / "a.pickle", data))
    assert not result.agrees
    assert result.first_disagreement.event == data["device_traces"][0].index(event)
    assert result.first_disagreement.size == event["size"]
    assert f"differs from event {result.first_disagreement.event} on" in result.verdict
    assert json.loads(json.dumps(result.to_json()))["agrees"] is False


def test_a_difference_of_addresses_alone_is_told_apart():
    """Two free blocks of equal size: the lower address wins, and the recorded driver put the second segment higher."""
    low, high = 0x7F0000000000, 0x7F0010000000
    events = [
        ["segment_alloc", low, 30 * MIB, 0], ["alloc", low, 30 * MIB, 0],
        ["segment_alloc", high, 30 * MIB, 0], ["alloc", high, 30 * MIB, 0],
        ["free_requested", low, 30 * MIB, 0], ["free_completed", low, 30 * MIB, 0],
        ["free_requested", high, 30 * MIB, 0], ["free_completed", high, 30 * MIB, 0],
        ["alloc", low, 30 * MIB, 0],
    ]  # fmt: skip
    (snapshot,) = from_dict({"segments": [], "device_traces": [events]})
    modelled, recorded = Replay(snapshot).run(), Replay(snapshot, "recorded").run()
    assert modelled.placements_agree == 2
    assert recorded.placements_agree == 3
    modelled.with_recorded_addresses = recorded
    assert modelled.explained == recorded.agrees


def test_a_snapshot_without_events_is_compared_with_itself(tmp_path):
    data = {**program(2), "device_traces": [[]]}
    (result,) = replay(write(tmp_path / "a.pickle", data))
    assert result.agrees
    assert result.final_segments == len(data["segments"])


def test_json_and_gzip_hold_the_same(tmp_path):
    data = program(5)
    (tmp_path / "a.json").write_text(json.dumps(data))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    write(tmp_path / "a.pickle", data)
    first, second, third = (read(tmp_path / name) for name in ("a.json", "a.json.gz", "a.pickle"))
    assert first[0].events == second[0].events == third[0].events
    assert first[0].settings == third[0].settings


def test_a_block_that_kept_its_remainder_is_recognized_by_the_next_use():
    """A block of 4 MiB that could not be split keeps up to 1 MiB more; the allocation behind it shows where it ends."""
    segment = {
        "device": 0, "address": 0, "total_size": 20 * MIB, "stream": 0, "segment_type": "large",
        "blocks": [{"size": 20 * MIB, "requested_size": 0, "state": "inactive"}],
    }  # fmt: skip
    events = [
        ["alloc", 4 * MIB + 65536, 2 * MIB, 0],
        ["free_requested", 0, 4 * MIB, 0],
        ["free_completed", 0, 4 * MIB, 0],
    ]
    (snapshot,) = from_dict({"segments": [segment], "device_traces": [events]})
    (start,) = start_segments(snapshot)
    assert [block["size"] for block in start["blocks"]] == [4 * MIB + 65536, 16 * MIB - 65536]


class Evil:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pickle.dumps(Evil()), "a memory snapshot holds plain data only"),
        (b"", "is not a pickle of plain data"),
        (b"not a pickle", "is not a pickle of plain data"),
        (b"{broken", "is not JSON"),
        (b"\x1f\x8bbroken", "is not a complete gzip file"),
        (pickle.dumps([1, 2]), "has no list of segments"),
        (pickle.dumps({"segments": [{"address": 0}]}), "an entry that an allocator does not write"),
        (pickle.dumps({"segments": [], "device_traces": [[{"size": 1}]]}), "an entry that an allocator does not write"),
    ],
    ids=["class", "empty", "text", "json", "gzip", "list", "segment", "event"],
)
def test_other_files_are_refused_with_a_reason(tmp_path, capsys, content, says):
    path = tmp_path / "x.pickle"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=says):
        read(path)
    assert capsys.readouterr().out == ""


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileFormatError, match=r"no\.pickle cannot be read"):
        read(tmp_path / "no.pickle")


# What-if


def test_the_recorded_settings_come_first_and_reserve_what_was_reserved(tmp_path):
    data = program(4, total=64 * GIB)
    table = what_if(write(tmp_path / "a.pickle", data), ["expandable_segments:True", "max_split_size_mb:40"])
    own, expandable, limited = table.rows
    assert [row.alloc_conf for row in table.rows] == ["", "expandable_segments:True", "max_split_size_mb:40"]
    assert own.peak_requested_bytes == expandable.peak_requested_bytes == limited.peak_requested_bytes
    assert own.peak_reserved_bytes > expandable.peak_reserved_bytes >= expandable.peak_allocated_bytes
    assert 0 < expandable.fragmentation < own.fragmentation < 1
    calls = [event for event in data["device_traces"][0] if event["action"].startswith("segment")]
    assert own.driver_calls == len(calls)
    assert max(point[2] for point in own.timeline) == own.peak_reserved_bytes
    assert len(json.loads(json.dumps(table.to_json()))["rows"]) == 3


def test_a_smaller_device_runs_out(tmp_path):
    path = write(tmp_path / "a.pickle", program(4, total=64 * GIB))
    roomy, tight = what_if(path, []).rows[0], what_if(path, [], memory_bytes=200 * MIB).rows[0]
    assert roomy.out_of_memory == 0
    assert tight.out_of_memory > 0
    assert tight.peak_reserved_bytes <= 200 * MIB


def test_settings_that_pytorch_refuses_are_named(tmp_path):
    path = write(tmp_path / "a.pickle", program(4, operations=20))
    with pytest.raises(UsageError, match="'max_split_size_mb:1' cannot be used: CachingAllocator option"):
        what_if(path, ["max_split_size_mb:1"])
