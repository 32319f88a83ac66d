"""Each node counts its GPUs from 0, also where played ranks are on several nodes."""

from windtunnel.reports.parts.summary import summarize
from windtunnel.reports.text import render
from windtunnel.trace.merge import merge
from windtunnel.trace.operation import Kind, Lane, Signature
from windtunnel.trace.trace import Trace


def rank(number, per_node=8):
    trace = Trace()
    lane = trace.lanes.number(Lane(number % per_node, 0))
    trace.rows.append((Kind.KERNEL, lane, trace.signatures.number(Signature("aten::mm")), 0, 0, 0, 10, 0))
    places = [{"node": number // per_node, "local": local} for local in range(per_node)]
    devices = [one | {"physical": one["node"] * per_node + one["local"], "memory_bytes": 1} for one in places]
    trace.facts.update(rank=number, devices=devices, gpus=[{"name": "GPU"}] * per_node, nodes=4, job={"ranks": "32"})
    return trace


def test_a_gpu_is_named_by_its_number_in_its_node():
    merged = merge([rank(0), rank(31)])
    assert [one.place for one in summarize(merged, []).devices if one.used] == ["cuda:0 of node 0", "cuda:7 of node 3"]
    text = render(merged, [])
    assert "cuda:7 of node 3 GPU" in text
    assert "not used" not in text  # the other GPUs of a node are other ranks'


def test_one_node_needs_no_word_of_nodes():
    trace = rank(3)
    trace.facts["nodes"] = 1
    assert [one.place for one in summarize(trace, []).devices if one.used] == ["cuda:3"]
