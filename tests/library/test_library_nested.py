"""What `wt.to` does with batches of every kind, and with sources that change right after it."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from windtunnel import torch as wt


@dataclasses.dataclass
class Normalized:
    """Prepares its values once, and has a field that `__init__` does not know."""

    values: torch.Tensor
    mask: torch.Tensor = dataclasses.field(init=False)
    late: object = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.values = self.values / 255
        self.mask = torch.ones(2)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: torch.Tensor


def test_a_dataclass_is_moved_as_it_is(session):
    batch = Normalized(torch.full((2,), 255.0))
    batch.mask = torch.zeros(2)
    batch.extra = "kept"
    moved = wt.to(batch, wt.gpu(0))
    assert moved.values.tolist() == [1, 1]
    assert moved.mask.tolist() == [0, 0]
    assert wt.device_of(moved) == wt.gpu(0)
    assert wt.device_of(batch) == wt.cpu()
    assert moved.extra == "kept"
    assert wt.to(moved, wt.gpu(0)) is moved
    assert wt.to(Frozen(torch.ones(1)), wt.gpu(0)).values.device == wt.gpu(0)


def test_sets_and_mappings_keep_their_classes(session):
    class Encoding(collections.UserDict):
        pass

    class Labelled(dict):
        pass

    encoding, labelled = Encoding(ids=torch.ones(2)), Labelled(x=torch.ones(1))
    encoding.source = labelled.source = "file"
    for batch in (encoding, labelled):
        moved = wt.to(batch, wt.gpu(0))
        assert type(moved) is type(batch)
        assert moved.source == "file"
        assert wt.device_of(moved) == wt.gpu(0)
        assert wt.device_of(batch) == wt.cpu()
    assert wt.device_of(wt.to({torch.ones(1), "name"}, wt.gpu(0))) == wt.gpu(0)
    assert type(wt.to(frozenset([torch.ones(1)]), wt.gpu(0))) is frozenset
    assert wt.device_of(wt.to(types.MappingProxyType({"x": torch.ones(1)}), wt.gpu(0))) == wt.gpu(0)


def test_a_tensor_that_is_there_twice_stays_one(session):
    shared = torch.ones(2)
    moved = wt.to([shared, {"again": shared}, torch.ones(2)], wt.gpu(0))
    assert moved[0] is moved[1]["again"]
    assert moved[0] is not moved[2]


class Graph:
    """A batch that is no container of Python's, as libraries have them."""

    def __init__(self, nodes, edges) -> None:
        self.nodes, self.edges = nodes, edges


class RegisteredGraph(Graph):
    """One whose library has registered it."""


pytree.register_pytree_node(
    RegisteredGraph, lambda graph: ([graph.nodes], graph.edges), lambda values, edges: RegisteredGraph(*values, edges)
)


def test_a_class_that_is_registered_with_pytorchs_pytree_moves(session):
    graph = RegisteredGraph(torch.ones(2), edges=((0, 1),))
    moved = wt.to({"graph": graph}, wt.gpu(0))["graph"]
    assert (type(moved), moved.edges) == (RegisteredGraph, graph.edges)
    assert (wt.device_of(moved), wt.device_of(graph)) == (wt.gpu(0), wt.cpu())
    assert wt.to(moved, wt.gpu(0)) is moved


def test_a_class_that_nobody_has_registered_is_left_alone(session):
    graph = Graph(torch.ones(2), edges=())
    assert wt.to(graph, wt.gpu(0)) is graph
    assert graph.nodes.device == wt.cpu()


def test_sequences_of_every_class_move(session):
    class Names(list):
        pass

    class Pair(NamedTuple):
        x: torch.Tensor
        y: str

    class Both(Pair):
        pass

    x = torch.ones(2)
    sequences = (
        collections.deque([x], maxlen=3),
        Names([x]),
        Pair(x, "y"),
        Both(x, "y"),
        torch.max(torch.ones(1, 2), 1),
    )
    for batch in (*sequences, collections.OrderedDict(x=x)):
        moved = wt.to(batch, wt.gpu(0))
        assert type(moved) is type(batch)
        assert wt.device_of(moved) == wt.gpu(0)
    assert wt.to(sequences[0], wt.gpu(0)).maxlen == 3
    assert wt.to(collections.defaultdict(list, x=x), wt.gpu(0))["new"] == []


def test_what_does_not_change_stays_the_same_object(session):
    names, there = ["a", "b"], {"x": torch.ones(1, device=wt.gpu(0))}
    moved = wt.to((torch.ones(1), names, there), wt.gpu(0))
    assert moved[1] is names
    assert moved[2] is there


def test_modules_in_a_batch_move_in_place(session):
    layer = nn.Linear(2, 2)
    moved = wt.to([layer, torch.ones(1)], wt.gpu(0))
    assert moved[0] is layer
    assert wt.device_of(moved) == wt.gpu(0)
    twin = wt.copy({"layer": layer}, wt.gpu(1))["layer"]
    assert (wt.device_of(twin), wt.device_of(layer)) == (wt.gpu(1), wt.gpu(0))


@pytest.mark.parametrize("pinned", [False, True])
def test_the_source_may_change_at_once(session, pinned):
    source = torch.ones(1000)
    source = source.pin_memory() if pinned else source
    moved = wt.to(source, wt.gpu(0))
    source.zero_()
    assert moved.sum().item() == 1000


def test_expanded_and_strided_tensors_arrive(session):
    for tensor in (
        torch.ones(1).expand(5),
        torch.arange(6.0).view(2, 3).t(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.arange(10.0)[::3],
        torch.tensor([1 + 2j]).conj(),
    ):
        moved = wt.to(tensor, wt.gpu(0))
        assert torch.equal(moved.cpu(), tensor)
        if tensor.is_contiguous(memory_format=torch.channels_last) and tensor.dim() == 4:
            assert moved.is_contiguous(memory_format=torch.channels_last)
