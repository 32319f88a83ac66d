"""The allocators' history, PyTorch's snapshots of it, and what each allocation was for."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz as viz

import windtunnel
from windtunnel.analysis.replay import replay
from windtunnel.reports.parts.peak import peaks
from windtunnel.seam.torch.tags import VERSION
from windtunnel.session import Session

cuda = torch.cuda
memory = cuda.memory


@pytest.fixture
def kept() -> Iterator[Session]:
    """Two V100 whose allocations are kept from the start, for one test."""
    with windtunnel.emulate("2xV100", memory_history=True) as emulated:
        yield emulated


def actions(index: int = 0) -> list[str]:
    """The actions that a snapshot shows of a device."""
    return [event["action"] for event in memory._snapshot()["device_traces"][index]]


def train(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small training."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        batch = torch.ones(8, 64).cuda()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return model, optimizer


# ---------------------------------------------------------------------------------------------- PyTorch's snapshots


def test_without_history_there_are_segments_and_no_events(session: Session) -> None:
    x = torch.ones(10, device="cuda")
    snapshot = memory._snapshot()
    assert [segment["total_size"] for segment in snapshot["segments"]] == [2 << 20]
    assert snapshot["segments"][0]["blocks"][0]["state"] == "active_allocated"
    assert snapshot["segments"][0]["blocks"][0]["requested_size"] == x.nbytes
    assert not any(snapshot["device_traces"])


def test_events_carry_the_programs_line(session: Session) -> None:
    memory._record_memory_history(stacks="python")
    x = torch.ones(10, device="cuda")
    line = test_events_carry_the_programs_line.__code__.co_firstlineno + 2
    assert actions() == ["segment_alloc", "alloc"]
    snapshot = memory._snapshot()
    event = snapshot["device_traces"][0][1]
    assert (event["size"], event["stream"]) == (40, 0)
    assert event["addr"] == x.data_ptr()
    frame = event["frames"][0]
    assert (Path(frame["filename"]).name, frame["line"]) == ("test_memory_history.py", line)
    assert frame["name"] == "test_events_carry_the_programs_line"
    block = snapshot["segments"][0]["blocks"][0]
    assert block["frames"] == event["frames"]


def test_a_segment_that_is_cut_loses_its_line_as_in_pytorch(session: Session) -> None:
    memory._record_memory_history(stacks="python")
    whole = torch.ones(20 << 18, device="cuda")
    part = torch.ones(10, device="cuda")
    frames = {segment["total_size"]: segment["frames"] for segment in memory._snapshot()["segments"]}
    assert frames[20 << 20][0]["name"] == "test_a_segment_that_is_cut_loses_its_line_as_in_pytorch"
    assert frames[2 << 20] == []
    assert whole.is_cuda
    assert part.is_cuda


def test_with_all_stacks_the_operator_comes_first(session: Session) -> None:
    memory._record_memory_history()
    x = torch.rand(10, device="cuda")
    frames = memory._snapshot()["segments"][0]["blocks"][0]["frames"]
    assert [frame["name"] for frame in frames[:2]] == [
        "at::_ops::rand::call",
        "test_with_all_stacks_the_operator_comes_first",
    ]
    assert x.is_cuda


def test_stacks_are_those_of_the_moment(session: Session) -> None:
    memory._record_memory_history(context="all", stacks="python")
    x = torch.ones(4, device="cuda")
    memory._record_memory_history(context=None)
    y = torch.ones(4, device="cuda")
    memory._record_memory_history(context="all", stacks="python")
    blocks = memory._snapshot()["segments"][0]["blocks"]
    assert [bool(block["frames"]) for block in blocks[:2]] == [True, False]
    assert x.is_cuda
    assert y.is_cuda


def test_a_free_carries_the_line_where_the_tensor_died(session: Session) -> None:
    memory._record_memory_history()
    x = torch.ones(10, device="cuda")
    line = test_a_free_carries_the_line_where_the_tensor_died.__code__.co_firstlineno + 4
    del x
    torch.ones(10, device="cuda")
    frees = [e for e in memory._snapshot()["device_traces"][0] if e["action"].startswith("free")]
    assert [e["frames"][0]["line"] for e in frees][:2] == [line, line]


def test_what_died_before_the_choice_changed_was_freed_before(session: Session) -> None:
    def here() -> None:
        nonlocal x
        x = torch.ones(20, device="cuda")

    x = torch.ones(10, device="cuda")
    memory._record_memory_history(context=None)
    here()
    memory._record_memory_history(context="all", stacks="python")
    x = torch.ones(10, device="cuda")
    events = memory._snapshot()["device_traces"][0]
    names = [frame["name"] for event in events for frame in event["frames"]]
    assert "here" not in names
    assert "test_what_died_before_the_choice_changed_was_freed_before" in names


def test_frames_of_pytorch_itself_are_there(session: Session) -> None:
    memory._record_memory_history(stacks="python")
    torch.ones(10, device="cuda")
    cuda.empty_cache()
    event = memory._snapshot()["device_traces"][0][-1]
    assert event["action"] == "segment_free"
    assert [frame["name"] for frame in event["frames"][:2]] == [
        "empty_cache",
        "test_frames_of_pytorch_itself_are_there",
    ]


def test_a_frame_of_torchscript_comes_first(session: Session) -> None:
    memory._record_memory_history("state", stacks="python")

    @torch.jit.script
    def scripted():  # type: ignore[no-untyped-def]
        return torch.rand(10, device="cuda")

    x = scripted()
    frames = memory._snapshot()["segments"][0]["blocks"][0]["frames"]
    assert [frame["name"] for frame in frames[:2]] == ["scripted", "test_a_frame_of_torchscript_comes_first"]
    assert x.is_cuda


def test_what_is_recorded_can_be_chosen(session: Session) -> None:
    memory._record_memory_history(context="alloc")
    x = torch.ones(10, device="cuda")
    del x
    events = memory._snapshot()["device_traces"][0]
    assert [event["frames"] for event in events] == [events[0]["frames"]] * 4  # where it was asked for, each time
    memory._record_memory_history(max_entries=2)
    assert len(memory._snapshot()["device_traces"][0]) == 2
    memory._record_memory_history("state")
    y = torch.ones(10, device="cuda")
    snapshot = memory._snapshot()
    assert [len(trace) for trace in snapshot["device_traces"]] == [1, 1]
    assert snapshot["segments"][0]["blocks"][0]["frames"]
    memory._record_memory_history(None)
    z = torch.ones(10, device="cuda")
    assert not any(memory._snapshot()["device_traces"])
    memory._record_memory_history(context=None)
    torch.ones(10, device="cuda")
    assert not any(event["frames"] for event in memory._snapshot()["device_traces"][0])
    assert y.is_cuda
    assert z.is_cuda


def test_the_legacy_signature(session: Session) -> None:
    memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    x = torch.ones(10, device="cuda")
    assert actions() == ["segment_alloc", "alloc"]
    memory._record_memory_history(False)
    assert not any(memory._snapshot()["device_traces"])
    assert x.is_cuda


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"enabled": "some"}, "expected state to be 'state', 'all', or None"),
        ({"context": "some"}, "expected context to be 'state', 'alloc', 'all', or None"),
        ({"stacks": "some"}, "expected stacks to be 'python', or 'all'"),
    ],
)
def test_what_cannot_be_chosen(session: Session, arguments: dict[str, str], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        memory._record_memory_history(**arguments)


def test_metadata_goes_with_the_events(session: Session) -> None:
    memory._record_memory_history()
    torch._C._cuda_setMemoryMetadata("warm-up")  # torch.cuda.memory._set_memory_metadata, where it is there
    x = torch.ones(10, device="cuda")
    torch._C._cuda_setMemoryMetadata("")
    y = torch.ones(10, device="cuda")
    events = memory._snapshot()["device_traces"][0]
    found = [(event["action"], event["user_metadata"]) for event in events]
    assert found == [("segment_alloc", "warm-up"), ("alloc", "warm-up"), ("alloc", "")]
    assert x.is_cuda
    assert y.is_cuda


def test_actions_can_be_left_out(session: Session) -> None:
    torch._C._cuda_record_memory_history("all", "all", "python", 100, False, False, False, ["segment_alloc"])
    x = torch.ones(10, device="cuda")
    assert actions() == ["alloc"]
    assert x.is_cuda


def test_out_of_memory_is_an_event(session: Session) -> None:
    memory._record_memory_history()
    free, _ = cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 36, dtype=torch.uint8, device="cuda")
    event = memory._snapshot()["device_traces"][0][0]
    assert (event["action"], event["device_free"], event["size"]) == ("oom", free, 1 << 36)


def test_memory_viz_reads_a_dump(session: Session, tmp_path: Path) -> None:
    memory._record_memory_history()
    model, _ = train(2)
    path = tmp_path / "dump.pickle"
    memory._dump_snapshot(str(path))
    data = pickle.loads(path.read_bytes())
    lines = "test_memory_history.py"
    assert lines in viz.memory(data, format_flamegraph=lambda text: text)
    assert "cudaMalloc" in viz.trace(data)
    assert "Summary of segments" in viz.segsum(data)
    for plot in (viz.trace_plot(data), viz.segment_plot(data)):
        assert "<!DOCTYPE html>" in plot
    result = replay(path)[0]
    assert result.agrees
    assert result.allocations == result.placements_agree > 20
    assert next(model.parameters()).is_cuda


# ---------------------------------------------------------------------------------------------- what it was for


def test_categories_of_a_training(kept: Session) -> None:
    model, optimizer = train(3)
    kept.complete()
    peak = peaks(kept.trace)[0]
    weights = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())
    assert peak.categories["parameter"] == weights
    assert peak.categories["gradient"] == weights
    assert peak.categories["optimizer"] == 2 * weights  # Adam's step counters lie on the host
    assert peak.categories["workspace"] == 2 * 8519680  # the forward pass's handle, and the backward pass's
    assert peak.categories["input"] == 8 * 64 * 4
    assert peak.allocated_bytes == cuda.max_memory_allocated() == sum(peak.categories.values())
    assert peak.holders[0].category == "workspace"
    assert all(holder.site.file.endswith("test_memory_history.py") for holder in peak.holders)
    assert len(optimizer.state) == 4


def test_activations_outlive_the_forward_pass_and_temporaries_do_not(kept: Session) -> None:
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    for _ in range(2):
        a = (weight * 2).exp().sum()
        with torch.no_grad():
            (weight * 2).exp().sum()
        weight.grad = None
        a.backward()
    kept.complete()
    sizes: Counter[str] = Counter()
    for action in kept.trace.memory_actions():
        if action.action == "alloc" and action.size_bytes == weight.nbytes:
            sizes[action.category] += 1
    # Of each pass: exp keeps its result and weight * 2 goes; without grad both go; backward makes two and one stays.
    # The weight itself is nobody's parameter, and outlived two passes.
    assert sizes == {"": 1, "activation": 2, "temporary": 2 * 4, "gradient": 2}


def test_the_history_ends_with_the_emulation() -> None:
    with windtunnel.emulate("V100", memory_history=True) as emulated:
        model, optimizer = train(1)
    rows = len(emulated.trace.memory)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    assert not hooks
    del model, optimizer
    assert len(emulated.trace.memory) == rows > 0
    assert emulated.trace.facts["memory_from_start"]


# ---------------------------------------------------------------------------------------------- pools


def test_a_pool_holds_its_own_segments(session: Session) -> None:
    pool = cuda.MemPool()
    assert pool.id == (0, 1)
    assert pool.use_count() == 1
    with cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = torch.ones(10, device="cuda")
    y = torch.ones(10, device="cuda")
    assert pool.use_count() == 1
    segments = cuda.memory_snapshot()
    assert [segment["segment_pool_id"] for segment in segments].count((0, 1)) == 1
    assert [segment["address"] for segment in pool.snapshot()] == [x.data_ptr()]
    assert abs(x.data_ptr() - y.data_ptr()) >= 2 << 20
    del x
    cuda.empty_cache()
    assert cuda.memory_reserved() == 4 << 20
    del pool
    assert cuda.memory_reserved() == 2 << 20


def test_handles_of_graph_pools_are_distinct(session: Session) -> None:
    assert cuda.graph_pool_handle() != cuda.graph_pool_handle()


def test_events_name_their_memory_pool(kept: Session, tmp_path: Path) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(1 << 20, device="cuda")
    outside = torch.empty(1 << 20, device="cuda")
    kept.report(tmp_path / "out.snapshot.pickle")
    found = pickle.loads((tmp_path / "out.snapshot.pickle").read_bytes())
    pools = {event["addr"]: event.get("pool_id") for event in found["device_traces"][0] if event["action"] == "alloc"}
    named = VERSION >= (2, 12)
    assert pools[inside.data_ptr()] == (tuple(pool.id) if named else None)
    assert pools[outside.data_ptr()] == ((0, 0) if named else None)


def test_autocasts_copies_of_weights_are_their_own_category(kept: Session) -> None:
    layer = nn.Linear(256, 256).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(torch.ones(8, 256, device="cuda")).float().sum()
    loss.backward()
    kept.complete()
    copies = [a.size_bytes for a in kept.trace.memory_actions() if (a.action, a.category) == ("alloc", "autocast")]
    assert sorted(copies) == [256 * 2, 256 * 256 * 2]
