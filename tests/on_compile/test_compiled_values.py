"""What compiled programs compute on emulated devices: the values of the uncompiled ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windtunnel.seam.torch.compiled import values
from windtunnel.seam.torch.tags import tag_of
from windtunnel.session import Session


class Block(nn.Module):
    """Attention and a feed-forward part, as in a transformer."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (t.view(batch, tokens, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).split(32, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, 32))
        return x + F.dropout(self.down(F.gelu(self.up(x))), self.p)


class Images(nn.Module):
    """Convolutions with batch norm and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 16, 3, stride=2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.relu(self.second(x)).mean((2, 3)))


class Constants(nn.Module):
    """Tensors that the program makes itself, on the device and on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device) + torch.tensor(2.0, device="cuda")
        return self.layer(x) * scale + torch.arange(4, device=x.device) + torch.ones(4).to(x.device)


class Sparse(nn.Module):
    """An embedding whose weights the output shares, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.words(x)).flatten(0, 1), x.roll(1, 1).flatten())


def words() -> Tensor:
    return torch.randint(0, 50, (4, 8), device="cuda")


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, device="cuda")


def trained(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output and the gradients of one step."""
    for parameter in model.parameters():
        parameter.grad = None
    out = run(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("model", "example"),
    [(Block, numbers(2, 8, 32)), (Images, numbers(4, 3, 16, 16)), (Constants, numbers(3, 4)), (Sparse, words)],
    ids=["block", "images", "constants", "sparse"],
)
def test_a_step_has_the_values_of_an_uncompiled_one(
    session: Session, model: type[nn.Module], example: Callable[[], Tensor]
) -> None:
    torch.manual_seed(0)
    module, x = model().cuda(), example()
    wanted = trained(module, module, x)
    compiled = torch.compile(module)
    for _ in range(2):
        found = trained(module, compiled, x)
        assert all(tensor.is_cuda for tensor in found)
        for first, second in zip(wanted, found, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_weights_that_inductor_lays_out_anew_for_the_backward_pass(session: Session) -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).cuda()
    x = torch.randn(2, 3, 12, 12, device="cuda")
    wanted, found = trained(module, module, x), trained(module, torch.compile(module), x)
    for first, second in zip(wanted, found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


def test_images_with_channels_last_in_inference(session: Session) -> None:
    module = Images().cuda().eval().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(module)(x), module(x), rtol=1e-4, atol=1e-4)


def test_autocast(session: Session) -> None:
    module, x = Block().cuda(), torch.randn(2, 8, 32, device="cuda")
    compiled = torch.compile(module)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found, wanted = compiled(x), module(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_sizes_that_change(session: Session) -> None:
    double = torch.compile(lambda x: (x * 2).sum(1), dynamic=True, fullgraph=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4, device="cuda")
        torch.testing.assert_close(double(x), (x * 2).sum(1))


def test_inputs_that_are_written(session: Session) -> None:
    @torch.compile
    def count(state: Tensor, x: Tensor) -> Tensor:
        state.add_(x.sum())
        return state * 2

    state = torch.zeros(3, device="cuda")
    for number in (1, 2):
        assert count(state, torch.ones(4, device="cuda")).tolist() == [8.0 * number] * 3
        assert state.tolist() == [4.0 * number] * 3


def test_results_that_are_views(session: Session) -> None:
    @torch.compile
    def parts(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x[1:], y, y[0], x

    x = torch.arange(6.0, device="cuda").view(2, 3)
    tail, y, first, same = parts(x)
    assert same is x
    assert tail.data_ptr() == x[1:].data_ptr()
    assert first.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    x.zero_()
    assert tail.tolist() == [[0.0, 0.0, 0.0]]
    assert y.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_dropout_draws_from_the_device_and_is_the_same_in_backward(session: Session) -> None:
    drop = torch.compile(lambda x: F.dropout(x, 0.5) * 3)
    x = torch.ones(1000, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        x.grad = None
        out = drop(x)
        out.sum().backward()
        assert x.grad is not None
        return out.detach(), x.grad

    torch.manual_seed(1)
    first, gradient = step()
    second, _ = step()
    torch.manual_seed(1)
    again, _ = step()
    assert torch.equal(first, gradient)
    assert set(first.unique().tolist()) == {0.0, 6.0}
    assert 300 < int((first == 0).sum()) < 700
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_a_program_is_compiled_anew_for_another_device(session: Session) -> None:
    increase = torch.compile(lambda x: x + 1, backend="aot_eager")
    places = [torch.device("cuda", 0), torch.device("cpu"), torch.device("cuda", 1), torch.device("cuda", 0)]
    for place in places:
        out = increase(torch.zeros(2, device=place))
        assert out.device == place
        assert out.tolist() == [1.0, 1.0]


def test_what_breaks_a_graph_and_compiles_it_again_is_found(session: Session) -> None:
    @torch.compile(dynamic=False)
    def half(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum().item() > 0:
            y = y / 2
        return y + 1

    for rows in (2, 3, 4, 5):
        assert half(torch.ones(rows, device="cuda")).tolist() == [2.0] * rows
    found = {finding.code: finding for finding in session.findings()}
    line = half.__wrapped__.__code__.co_firstlineno
    assert "Tensor.item" in found["graph-break"].message
    assert found["graph-break"].site.line == line + 3
    assert found["recompile"].severity == "warning"
    assert "size mismatch at index 0" in found["recompile"].message


def test_numbers_of_the_host_in_a_graph(session: Session) -> None:
    scale = torch.compile(lambda x, s, y: (x * s, (x.cpu() + y).cos(), x * y.sum()))
    x, y = torch.randn(4, device="cuda"), torch.randn(4)
    for number in (3.0, 4.0):
        scaled, on_host, summed = scale(x, torch.tensor(number), y)
        torch.testing.assert_close(scaled, x * number)
        assert not on_host.is_cuda
        torch.testing.assert_close(on_host, (x.cpu() + y).cos())
        torch.testing.assert_close(summed, x * y.sum().item())


def test_layers_of_the_same_sizes_that_padding_is_tried_for(session: Session) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).cuda()
    x = torch.randn(3, 4, device="cuda")
    wanted, found = trained(module, module, x), trained(module, torch.compile(module), x)
    for first, second in zip(wanted, found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(session: Session, mode: str) -> None:
    module = nn.EmbeddingBag(10, 4, mode=mode).cuda()
    words, bags = torch.tensor([1, 2, 4, 5, 4, 3], device="cuda"), torch.tensor([0, 2], device="cuda")
    compiled = torch.compile(module)
    wanted = trained(module, lambda x: module(x, bags), words)
    found = trained(module, lambda x: compiled(x, bags), words)
    for first, second in zip(wanted, found, strict=True):
        torch.testing.assert_close(first, second)


def test_a_generator_of_the_program(session: Session) -> None:
    """As on a GPU, Dynamo leaves what draws from it to the operator, between two graphs."""

    def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(4, device=x.device, generator=generator) * x

    x = torch.full((4,), 2.0, device="cuda")
    expected = noisy(x, torch.Generator("cuda").manual_seed(1))
    assert torch.equal(torch.compile(noisy)(x, torch.Generator("cuda").manual_seed(1)), expected)


def test_a_sparse_gradient_of_an_embedding(session: Session) -> None:
    module = nn.Embedding(10, 4, sparse=True).cuda()
    compiled, words = torch.compile(module), torch.tensor([1, 2, 1], device="cuda")
    for scale in (1.0, 2.0):  # the second call has everything compiled
        (wanted,) = torch.autograd.grad(module(words).square().sum() * scale, module.weight)
        (found,) = torch.autograd.grad(compiled(words).square().sum() * scale, module.weight)
        assert (found.layout, found.device, found.is_coalesced()) == (torch.sparse_coo, words.device, False)
        torch.testing.assert_close(found.to_dense(), wanted.to_dense())
        assert tag_of(found).block is not None  # its values have memory of the device


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Those that compute the values of what a test compiles."""
    stock, made = values.computed_from, []

    def computed_from(*args, **kwargs):
        made.append(stock(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(values, "computed_from", computed_from)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_relu_is_one_operator_of_the_cpu(
    session: Session, graphs: list[torch.fx.GraphModule], dtype: torch.dtype
) -> None:
    special = torch.tensor([[1.0, 0.0, -0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-40]], dtype=dtype)
    plain, compiled = (special.to("cuda").requires_grad_() for _ in range(2))

    weight = torch.eye(8, dtype=dtype, device="cuda").requires_grad_()  # whose gradient needs what `relu` gives

    def work(x: Tensor) -> Tensor:
        return F.relu(x) @ weight

    upstream = torch.arange(1, 9, dtype=dtype, device="cuda")[None]
    work(plain).backward(upstream)
    torch.compile(work)(compiled).backward(upstream)
    assert plain.grad is not None
    assert compiled.grad is not None
    assert torch.equal(plain.grad.view(torch.uint8), compiled.grad.view(torch.uint8))
    assert "threshold_backward" in graphs[-1].code
    assert "aten__where" not in graphs[-1].code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_calls_the_kernel_of_the_cpu_where_nothing_is_half_precise(
    session: Session, graphs: list[torch.fx.GraphModule], dtype: torch.dtype
) -> None:
    x, weight = torch.randn(8, 300, device="cuda", dtype=dtype), torch.randn(300, 8, device="cuda", dtype=dtype)
    found = torch.compile(torch.mm)(x, weight)
    assert torch.equal(found, x @ weight)
    calls_it = torch.ops.aten.mm.default._op in graphs[-1].forward.__globals__.values()
    assert calls_it == (dtype is torch.float32)


def test_conversions_to_integers_are_a_gpus(session: Session) -> None:
    compiled = torch.compile(lambda x: (x * 2).to(torch.int32))
    assert compiled(torch.tensor([float("nan"), float("inf"), 3.0], device="cuda")).tolist() == [0, (1 << 31) - 1, 6]
