"""What stands in a function's place takes the calls that the function takes, or refuses them in one sentence."""

import inspect
from types import SimpleNamespace

import pytest

from windtunnel import emulate
from windtunnel.errors import UnsupportedError
from windtunnel.seam import signatures
from windtunnel.seam.patching import Patch, Patches


def load(pointer, mask, other, cache, eviction, volatile):
    """A library's function, in the version that is known."""


def newer_load(pointer, mask, other, policy, volatile):
    return "theirs"


newer_load.__module__ = "triton.runtime.interpreter"


def ours(pointer, mask, other, cache, eviction, volatile):
    return "ours"


FITTING = [
    ("(a, b)", "(a, b)"),
    ("(a, b=1)", "(a, b=2)"),
    ("(a, b)", "(a, b, c=1)"),
    ("(a, b)", "(a, *rest)"),
    ("(a, b=1, *, c=2)", "(a, *rest, **named)"),
    ("(self, a)", "(tensor, a, /)"),
    ("(self, a)", "(self, *a)"),
    ("(a, /, b)", "(x, b)"),
    ("(*args, **kwargs)", "(a, *args, **kwargs)"),
    ("(a, *, c)", "(a, *, c, d=1)"),
]
MISREAD = [
    ("(a, b, c)", "(a, b)"),
    ("(a, b)", "(b, a)"),
    ("(a, c)", "(a, b)"),
    ("(a, b=1)", "(a, b)"),
    ("(a)", "(a, b)"),
    ("(a, *, c=1)", "(a)"),
    ("(a, *rest)", "(a)"),
    ("(a, **named)", "(a, b=1)"),
    ("(a, b)", "(a, b, *, c)"),
]


def signature(text):
    return inspect.signature(eval(f"lambda {text[1:-1]}: None"))


@pytest.mark.parametrize(("stock", "own"), FITTING)
def test_every_call_is_taken(stock, own):
    assert signatures.takes_all(signature(own), signature(stock))


@pytest.mark.parametrize(("stock", "own"), MISREAD)
def test_some_call_would_be_misread(stock, own):
    assert not signatures.takes_all(signature(own), signature(stock))


def test_a_call_that_would_be_misread_is_refused_in_one_sentence():
    library = SimpleNamespace(load=newer_load)
    patches = Patches()
    patches.apply([Patch(library, "load", ours)])
    with pytest.raises(UnsupportedError) as caught:
        library.load(1, 2, 3, 4, 5)
    assert str(caught.value).startswith("triton ")
    assert "has newer_load(pointer, mask, other, policy, volatile), which emulated GPUs do not know" in str(
        caught.value
    )
    assert str(caught.value).endswith('pip install "triton>=3.7,<3.10"')
    with pytest.raises(TypeError, match="missing a required argument: 'policy'"):
        library.load(1, 2, 3)
    patches.restore()
    assert library.load is newer_load


def test_a_call_that_means_the_same_in_both_is_made():
    def stock(a, b=1, new=None):
        return "theirs"

    def mine(a, b=1):
        return a, b

    library = SimpleNamespace(f=stock)
    Patches().apply([Patch(library, "f", mine)])
    assert library.f(3, b=4) == (3, 4)
    with pytest.raises(UnsupportedError, match=r"stock\(a, b, new\)"):
        library.f(3, new=True)


def test_swapped_arguments_are_refused_although_ours_would_take_them():
    def stock(value, pointer):
        return "theirs"

    def mine(pointer, value):
        return "silently wrong"

    library = SimpleNamespace(store=stock)
    Patches().apply([Patch(library, "store", mine)])
    with pytest.raises(UnsupportedError):
        library.store(1, 2)


def test_functions_that_fit_are_put_there_as_they_are():
    library = SimpleNamespace(load=load)
    Patches().apply([Patch(library, "load", ours)])
    assert library.load is ours


def test_nothing_of_the_installed_pytorch_is_misread(monkeypatch):
    met = []
    monkeypatch.setattr(signatures, "_guarded", lambda ours, known, stock, wanted: met.append(stock) or ours)
    with emulate("2xV100"):
        pass
    assert met == []


def test_a_keyword_that_the_library_takes_among_others_keeps_its_name() -> None:
    def stock(model, *args, **kwargs):
        raise AssertionError

    def ours(model, *, device_index, **_):
        return model, device_index

    assert signatures.fitted(ours, stock)("m", device_index=3, other=1) == ("m", 3)
