"""Traces of several processes as one."""

from windtunnel.trace.merge import merge
from windtunnel.trace.operation import Kind, Lane, Note, Signature, Site
from windtunnel.trace.trace import Trace


def process(rank: int, physical: list[int], device: int = 0) -> Trace:
    """A process with one kernel, one note, one step and one allocation on its `device`."""
    trace = Trace()
    trace.facts |= {
        "rank": rank,
        "gpus": [{"name": f"GPU {number}"} for number in physical],
        "devices": [{"physical": number, "peak_allocated_bytes": 10 + rank} for number in physical],
        "band": rank / 10,
    }
    lane = trace.lanes.number(Lane(device, 0))
    signature = trace.signatures.number(Signature(f"kernel {rank}"))
    site = trace.sites.number(Site("train.py", 5 + rank))
    trace.notes.append(Note(f"note {rank}", Site("train.py", 1)))
    trace.rows.append((Kind.KERNEL, lane, signature, site, 0, rank, rank + 5, 64))
    trace.rows.append((Kind.NOTE, lane, signature, site, 6, 6, 6, 0))
    trace.rows.append((Kind.STEP, lane, signature, site, 7, 7, 7, 1))
    trace.memory.append((0, device, 0, 4096, 512, rank, site, 0))
    return trace


def test_one_process_is_itself() -> None:
    alone = process(0, [0])
    assert merge([alone]) is alone


def test_every_row_keeps_its_meaning() -> None:
    both = merge([process(0, [0, 1], 0), process(1, [0, 1], 1)])
    kernels = [record for record in both if record.kind is Kind.KERNEL]
    assert [(k.lane.device, k.lane.thread, k.signature.name, k.site.line) for k in kernels] == [
        (0, 0, "kernel 0", 5),
        (1, 1, "kernel 1", 6),
    ]
    assert [both.notes[record.value].code for record in both if record.kind is Kind.NOTE] == ["note 0", "note 1"]
    assert [record.lane.thread for record in both if record.kind is Kind.STEP] == [0]
    assert [(action.device, action.time_ns) for action in both.memory_actions()] == [(0, 0), (1, 1)]


def test_devices_have_the_machines_order_under_cuda_visible_devices() -> None:
    both = merge([process(0, [3]), process(1, [2])])
    assert [gpu["name"] for gpu in both.facts["gpus"]] == ["GPU 2", "GPU 3"]
    assert [record.lane.device for record in both if record.kind is Kind.KERNEL] == [1, 0]


def test_totals_of_a_shared_device_are_added_up() -> None:
    both = merge([process(0, [0]), process(1, [0])])
    assert [device["peak_allocated_bytes"] for device in both.facts["devices"]] == [21]
    assert both.facts["band"] == 0.1
    assert len(list(both.memory_actions())) == 1
