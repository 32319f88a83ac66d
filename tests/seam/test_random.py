"""Random numbers: a generator a device, seeded together, with the CPU's values."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import pytest
import torch

import windtunnel
from windtunnel.session import Session


def test_a_seed_gives_the_same_numbers_again(session: Session) -> None:
    torch.manual_seed(7)
    first = torch.rand(4, device="cuda:1")
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(4, device="cuda:1"))


def test_a_run_can_be_seeded() -> None:
    drawn = []
    for _ in range(2):
        with windtunnel.emulate("V100", seed=5):
            drawn.append((torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist(), random.random()))
    assert drawn[0] == drawn[1]


def test_devices_draw_on_their_own(session: Session) -> None:
    torch.manual_seed(7)
    host = torch.rand(4)
    torch.manual_seed(7)
    torch.rand(100, device="cuda:0")
    torch.rand(100, device="cuda:1")
    assert torch.equal(torch.rand(4), host)


def test_states_are_kept_and_put_back(session: Session) -> None:
    torch.cuda.manual_seed_all(3)
    state = torch.cuda.get_rng_state(1)
    states = torch.cuda.get_rng_state_all()
    first = torch.randn(3, device="cuda:1")
    torch.cuda.set_rng_state(state, 1)
    assert torch.equal(first, torch.randn(3, device="cuda:1"))
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(first, torch.randn(3, device="cuda:1"))
    assert torch.cuda.initial_seed() == 3


def test_fork_rng(session: Session) -> None:
    torch.cuda.manual_seed(1)
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(99)
        torch.rand(5, device="cuda")
    first = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(1)
    assert torch.equal(first, torch.rand(3, device="cuda"))


def test_generators_belong_to_a_device(session: Session) -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    assert generator.device == torch.device("cuda:1")
    first = torch.rand(3, device="cuda:1", generator=generator)
    generator.manual_seed(5)
    assert torch.equal(first, torch.rand(3, device="cuda:1", generator=generator))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.rand(3, generator=generator)


def test_a_generator_can_be_pickled(session: Session) -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    twin = pickle.loads(pickle.dumps(generator))
    assert twin.device == torch.device("cuda:1")
    first = torch.rand(3, device="cuda:1", generator=generator)
    assert torch.equal(first, torch.rand(3, device="cuda:1", generator=twin))


def test_dropout_draws_from_the_device(session: Session) -> None:
    x = torch.ones(1000, device="cuda")
    torch.manual_seed(0)
    first = torch.nn.functional.dropout(x, 0.3)
    torch.manual_seed(0)
    torch.rand(7)
    assert torch.equal(first, torch.nn.functional.dropout(x, 0.3))
    assert 0.2 < (first == 0).float().mean().item() < 0.4


def test_a_state_is_a_seed_and_an_offset_as_on_cuda(session: Session) -> None:
    torch.cuda.manual_seed(5)
    torch.rand(3, device="cuda")
    assert torch.cuda.get_rng_state().tolist() == [5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    generator = torch.Generator("cuda").manual_seed(5)
    torch.empty(1 << 20, device="cuda").normal_(generator=generator)
    # V100: 80 SMs of 2048 threads make 640 blocks of 256, so a thread makes ceil(2**20 / (163840 * 4)) = 2 calls of 4.
    assert (generator.initial_seed(), generator.get_offset()) == (5, 8)


def test_an_offset_stands_for_the_same_numbers_in_every_process(session: Session) -> None:
    generator = torch.Generator("cuda").manual_seed(11)
    torch.rand(3, device="cuda", generator=generator)
    second = torch.rand(3, device="cuda", generator=generator)
    other = torch.Generator("cuda").manual_seed(11)
    other.set_offset(4)
    assert torch.equal(second, torch.rand(3, device="cuda", generator=other))


def test_a_state_that_is_none_is_refused(session: Session) -> None:
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        torch.Generator("cuda").set_state(torch.zeros(16))
    states = {torch.set_rng_state: torch.get_rng_state(), torch.cuda.set_rng_state: torch.cuda.get_rng_state()}
    states[torch.Generator().set_state] = torch.get_rng_state()
    states[torch.Generator("cuda").set_state] = torch.cuda.get_rng_state()
    for put, good in states.items():
        with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
            put(good.cuda())
        put(good)
    del states[torch.cuda.set_rng_state]  # PyTorch 2.6's own puts a contiguous copy
    for put, good in states.items():
        with pytest.raises(RuntimeError, match="RNG state must be contiguous"):
            put(torch.stack([good, good], 1)[:, 0])


@pytest.mark.parametrize(
    "drawn",
    [
        lambda x, generator: torch.poisson(x, generator),
        lambda x, generator: torch.poisson(x, generator=generator),
        lambda x, generator: torch.binomial(x, x / 20, generator),
        lambda x, generator: torch.vmap(lambda row: torch.poisson(row, generator), randomness="different")(x),
    ],
)
def test_a_generator_is_taken_by_place(session: Session, drawn: Callable[..., torch.Tensor]) -> None:
    x = torch.full((4, 8), 10.0, device="cuda")
    first, second = (drawn(x, torch.Generator("cuda").manual_seed(3)) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert first.tolist() != drawn(x, torch.Generator("cuda").manual_seed(4)).tolist()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        drawn(x, torch.Generator())
