"""What every operator's card states, held against PyTorch's registry and schemas; each test names all offenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from windtunnel.checks.host_sync import ADVICE
from windtunnel.operators.card import CUBLAS, CUDNN, Card, card
from windtunnel.operators.classes import classify, operators, tables
from windtunnel.seam.torch import kernels
from windtunnel.seam.torch.plans.dtypes import SETS
from windtunnel.seam.torch.tags import VERSION

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
Argument = torch._C.Argument
REGISTERED = torch._C._dispatch_get_all_op_names()
NEWEST = (2, 13)
"""The PyTorch whose operators the cards are of: older ones lack some."""


def overloads(name: str) -> dict[str, torch._C.FunctionSchema]:
    """The schemas of an operator by overload."""
    found = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return {schema.overload_name or "default": schema for schema in found}


def arguments(name: str) -> dict[str, Argument]:
    return {argument.name: argument for schema in overloads(name).values() for argument in schema.arguments}


def at(name: str, position: int) -> Argument:
    return overloads(name)["default"].arguments[position]


def is_tensor(argument: Argument) -> bool:
    return "Tensor" in str(argument.type)


def is_there(name: str, known: Card) -> bool:
    return bool(overloads(name)) or VERSION < NEWEST


def its_host_arguments_are_tensors_of_its_schema(name: str, known: Card) -> bool:
    given = arguments(name)
    return all(argument in given and is_tensor(given[argument]) for argument in known.host)


def what_it_writes_against_its_schema_is_a_tensor_behind_a_flag(name: str, known: Card) -> bool:
    return not known.hidden_writes or (
        all(is_tensor(at(name, position)) for position in known.hidden_writes)
        and str(at(name, known.writes_if).type) == "bool"
    )


def its_query_and_its_texts_are_where_it_says(name: str, known: Card) -> bool:
    if known.query is None:
        return not known.texts
    counted = known.counted_as or name
    texts = at(name, known.texts).name if known.counted_as else ""
    return at(counted, known.query).name == "query" and texts in ("", "cum_seq_q", "cu_seqlens_q")


def the_operators_that_it_names_are_there(name: str, known: Card) -> bool:
    return all(bool(overloads(other)) for other in (known.counted_as, known.measured_as) if other)


def it_has_words_and_advice_if_the_host_waits(name: str, known: Card) -> bool:
    a_name = known.advice in ADVICE or " " in known.advice
    return bool(known.waits) == bool(known.what) == bool(known.advice) and (a_name or not known.advice)


def it_says_what_it_takes_and_how_it_refuses(name: str, known: Card) -> bool:
    return bool(known.kernel) == bool(known.takes) and {w.partition(">=")[0] for w in known.takes.split()} <= set(SETS)


def its_workspace_is_of_cublas(name: str, known: Card) -> bool:
    return (not known.workspace or known.library == CUBLAS) and known.tf32 in ("", known.library or CUDNN)


def autocast_has_a_kernel_for_it(name: str, known: Card) -> bool:
    stated = tables().rows[name]  # autocast leaves operators alone that write in place
    keys = [
        key for key, of in (("CUDA", "autocast"), ("CPU", "autocast_cpu")) if stated.get(of, "recurrent") != "recurrent"
    ]
    names = [full for full in REGISTERED if full.partition(".")[0] == f"aten::{name}"]
    return not names or all(any(has_kernel(full, f"Autocast{key}") for full in names) for key in keys)


def what_it_allocates_has_no_second_source(name: str, known: Card) -> bool:
    return not (known.results_only and name in kernels.deviations().rows)


def it_waits_for_a_kernel_that_it_launches(name: str, known: Card) -> bool:
    return known.launches or not (known.waits or known.asserts or known.library)


def its_in_place_row_says_something_of_its_own(name: str, known: Card) -> bool:
    stated = tables().rows[name]
    return not name.endswith("_") or any(tables().rows.get(name[:-1], {}).get(key) != stated[key] for key in stated)


CHECKS: list[Callable[[str, Card], bool]] = [
    is_there,
    its_host_arguments_are_tensors_of_its_schema,
    what_it_writes_against_its_schema_is_a_tensor_behind_a_flag,
    its_query_and_its_texts_are_where_it_says,
    the_operators_that_it_names_are_there,
    it_has_words_and_advice_if_the_host_waits,
    it_says_what_it_takes_and_how_it_refuses,
    its_workspace_is_of_cublas,
    autocast_has_a_kernel_for_it,
    what_it_allocates_has_no_second_source,
    it_waits_for_a_kernel_that_it_launches,
    its_in_place_row_says_something_of_its_own,
]


def rows() -> Iterator[str]:
    """The operators of which more is known than a class."""
    return (name for name, facts in tables().rows.items() if facts)


@pytest.mark.parametrize("holds", CHECKS, ids=lambda check: check.__name__)
def test_of_every_card(holds: Callable[[str, Card], bool]) -> None:
    assert not [name for name in rows() if not holds(name, card(f"aten::{name}"))]


def test_an_in_place_form_shares_the_facts_of_its_operator() -> None:
    assert card("aten::addmm_").workspace
    assert card("aten::add_.Tensor").layout == card("aten::add.Tensor").layout == "order"
    assert card("aten::copy_").access == "writes"
    assert not card("aten::copy").access


def test_what_transfers_and_what_overwrites() -> None:
    """What a rehearsal without data, a graph's replay, compiled programs and reports of the host ask a card for."""
    names = [name for name in rows() if card(f"aten::{name}").transfers]
    assert sorted(names) == ["_to_copy", "copy_"]
    names = [name for name in rows() if card(f"aten::{name}").overwrites]
    assert sorted(names) == ["copy_", "fill_", "zero_"]


def test_a_library_s_operator_has_a_class_and_nothing_else() -> None:
    assert card("mylib::nonzero") == Card(kind=classify("aten::nonzero"))


def test_an_operator_in_two_places_is_refused() -> None:
    both = {"names": "sort topk", "rows": {"topk msort": {"waits": "always"}}}
    assert [name for name, _ in operators(both)] == ["sort", "topk", "topk", "msort"]
