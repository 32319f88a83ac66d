"""Rehearsal without data: questions that PyTorch itself asks, and operators without a meta kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as of
from torch import Tensor, nn

import windtunnel
from windtunnel.trace.operation import Kind
from windtunnel.train import Checkpoints, Trainer


def given(*shape: int) -> Tensor:
    """Numbers between 0.1 and 0.9 on the GPU, which need a gradient."""
    return torch.full(shape, 0.5, device="cuda").mul_(1.5).sub_(0.25).requires_grad_()


def causal() -> Tensor:
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True, device="cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(5, device="cuda")
    return nn.TransformerEncoder(layer, 1)(torch.rand(2, 5, 8, device="cuda"), mask=mask)


ASKING: dict[str, Callable[[], object]] = {
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(3, 4, device="cuda"), std=0.02),
    "trunc_normal_ of a tail": lambda: nn.init.trunc_normal_(torch.empty(3, 4, device="cuda"), std=0.1, a=0.3, b=1.0),
    "gaussian_nll_loss": lambda: nn.functional.gaussian_nll_loss(given(4), given(4), given(4)),
    "a causal mask": causal,
    "Normal": lambda: of.Normal(given(4), given(4)).log_prob(given(4)),
    "Categorical": lambda: of.Categorical(logits=given(4, 5)).sample(),
    "Bernoulli": lambda: of.Bernoulli(probs=given(4)).sample(),
    "Independent": lambda: of.Independent(of.Normal(given(4), given(4)), 1).log_prob(given(4)),
    "MultivariateNormal": lambda: of.MultivariateNormal(given(4), torch.eye(4, device="cuda")).rsample(),
    "VonMises": lambda: of.VonMises(given(4), given(4)).sample(),
    "Geometric": lambda: of.Geometric(given(4)).sample(),
    "ContinuousBernoulli": lambda: of.ContinuousBernoulli(probs=given(4)).rsample(),
    "Beta": lambda: of.Beta(given(4), given(4)).rsample(),
    "Wishart": lambda: of.Wishart(torch.tensor(5.0, device="cuda"), torch.eye(3, device="cuda")).rsample(),
    "Binomial": lambda: of.kl_divergence(of.Binomial(3, given(4)), of.Binomial(3, given(4))),
}


@pytest.mark.parametrize("assume", [None, True, False])
@pytest.mark.parametrize("name", ASKING)
def test_pytorchs_own_questions_are_answered_as_in_training(name: str, assume: bool | None) -> None:
    with windtunnel.emulate("A100", no_data=True, assume=assume):
        assert torch.as_tensor(ASKING[name]()).is_cuda


def test_an_initialization_is_drawn_once() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        nn.init.trunc_normal_(torch.empty(3, 4, device="cuda"), std=0.02)
    names = [row.signature.name for row in session.trace if row.kind == Kind.KERNEL]
    assert sum(name in ("aten::normal_", "aten::uniform_") for name in names) == 1
    asked = [one.message for one in session.findings() if one.code == "assumed-value"]  # newer PyTorch looks
    assert asked in ([], ["assumed: what a library looked at = False, no number that is drawn lies out of bounds"])


def lists() -> None:
    x = torch.rand(5, 6, device="cuda")
    assert x[[0, 3]].shape == (2, 6)
    assert x[[0, 1], [2, 3]].shape == (2,)
    assert x[[True] * 5].shape == (5, 6)
    x[[0, 1]] = 1.0
    x[torch.ones(5, dtype=torch.bool, device="cuda")] = 0.0
    x[:, [0, 1]] += 1
    assert x.new((3,)).is_cuda
    assert x.new([1.0, 2.0]).is_cuda


def ctc(lengths: str, dtype: torch.dtype, targets: tuple[int, ...]) -> None:
    scores = torch.zeros(50, 16, 20, device="cuda", requires_grad=True)
    labels = torch.ones(targets, dtype=dtype, device="cuda")
    inputs, outputs = (torch.full((16,), length, dtype=dtype, device=lengths) for length in (50, 30))
    nn.functional.ctc_loss(scores.log_softmax(2), labels, inputs, outputs).backward()
    assert scores.grad is not None


def dirichlet() -> None:
    concentration = torch.ones(4, 3, device="cuda", requires_grad=True)
    of.Dirichlet(concentration).rsample().sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lists, id="lists"),
        pytest.param(lambda: ctc("cpu", torch.int64, (16, 30)), id="ctc"),
        pytest.param(lambda: ctc("cuda", torch.int64, (16, 30)), id="ctc of lengths on the GPU"),
        pytest.param(lambda: ctc("cpu", torch.int32, (480,)), id="ctc of cuDNN"),
        pytest.param(dirichlet, id="dirichlet"),
    ],
)
def test_rows_and_memory_are_those_of_a_run_with_data(program: Callable[[], None]) -> None:
    found = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data) as session:
            program()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        rows = [(row.kind, row.signature, row.duration_ns) for row in session.trace if row.kind != Kind.NOTE]
        found.append((rows, peak))
    assert found[0] == found[1]


def test_results_are_placed_in_the_order_of_a_run_with_data() -> None:
    found = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data):
            scores = torch.rand(512, 8, device="cuda")
            torch.cuda.memory._record_memory_history()
            scores.max(1)
            (history,) = torch.cuda.memory._snapshot()["device_traces"]
            found.append([one["size"] for one in history if one["action"] == "alloc"])
    assert found[0] == found[1] == [512 * 4, 512 * 8]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_trainers_checkpoints_are_copied_and_not_written(tmp_path: Path, asynchronous: bool) -> None:
    examples = torch.ones(64, 8), torch.ones(64, 1)
    with windtunnel.emulate("V100", no_data=True) as session:
        checkpoints = Checkpoints(tmp_path / "saved", every_steps=2, asynchronous=asynchronous)
        trainer = Trainer(1, num_gpus=1, checkpoint=checkpoints)
        trainer.fit(nn.Linear(8, 1), examples, loss=nn.MSELoss(), optimizer=torch.optim.Adam, batch_size=16)
    assert not list((tmp_path / "saved").glob("step-*"))
    copies = [row for row in session.trace if row.kind == Kind.COPY and "Device -> Pinned" in row.signature.name]
    assert len(copies) > 6  # weights, biases and two moments of each
    (finding,) = [one for one in session.findings() if "not written" in one.message]
    assert Path(finding.site.file).name == Path(__file__).name
    assert finding.advice.startswith("run with data to write it")


def test_a_trainer_on_the_cpu_writes_its_checkpoints(tmp_path: Path) -> None:
    with windtunnel.emulate("V100", no_data=True):
        trainer = Trainer(1, num_gpus=0, checkpoint=Checkpoints(tmp_path, every_steps=2))
        examples = torch.ones(64, 8), torch.ones(64, 1)
        trainer.fit(nn.Linear(8, 1), examples, loss=nn.MSELoss(), optimizer=torch.optim.Adam, batch_size=16)
    assert list(tmp_path.glob("step-*"))


def test_written_integers_stay_known() -> None:
    with windtunnel.emulate("A100", no_data=True):
        numbers = torch.arange(3, device="cuda")
        numbers[torch.tensor([0], device="cuda")] = 7
        numbers[numbers == 1] = 8
        assert numbers.tolist() == [7, 8, 2]
        numbers[[0]] = 9  # C++ keeps a list of indices to itself
        with pytest.raises(windtunnel.errors.UnsupportedError, match="reads values of a device tensor"):
            numbers.tolist()


def test_known_numbers_decide_shapes() -> None:
    """As vision towers count the patches of images, and compare them with the tokens that stand for them."""
    with windtunnel.emulate("A100", no_data=True):
        grid = torch.tensor([[1, 4, 2], [2, 2, 3]]).cuda()
        lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        assert lengths.tolist() == [8, 6, 6]
        assert torch.rand(2, 5, device="cuda").repeat_interleave(grid[:, 0], dim=0).shape == (3, 5)
        assert [one.tolist() for one in torch.unique(lengths, return_counts=True)] == [[6, 8], [2, 1]]
        torch._check_tensor_all_with(ValueError, lengths.sum() == 20, lambda: "tokens and patches do not match")
        with pytest.raises(ValueError, match="do not match"):
            torch._check_tensor_all_with(ValueError, lengths.sum() == 19, lambda: "tokens and patches do not match")
        with pytest.raises(windtunnel.errors.UnsupportedError, match="decides a shape by values"):
            torch.repeat_interleave(torch.randint(1, 3, (4,), device="cuda"))


COUNTING: dict[str, Callable[[Tensor], Tensor]] = {
    "boundaries": lambda n: nn.functional.pad(n.cumsum(0, dtype=torch.int32), (1, 0)),
    "repeated": lambda n: n.repeat(2),
    "halved": lambda n: n.div(2, rounding_mode="floor"),
    "at least": lambda n: n.clamp_min(3),
    "products": lambda n: n.cumprod(0) * n.prod(),
    "added": lambda n: n.scatter_add(0, n % 2, n).index_add(0, n % 2, n),
    "found": lambda n: torch.searchsorted(n, n * 2),
}


@pytest.mark.parametrize("name", COUNTING)
def test_what_is_counted_of_known_numbers_is_known(name: str) -> None:
    lengths = torch.tensor([2, 3, 5])
    with windtunnel.emulate("A100", no_data=True):
        assert COUNTING[name](lengths.cuda()).tolist() == COUNTING[name](lengths).tolist()


@pytest.mark.parametrize("trainer", ["distillation", "grpo", "rloo"])
def test_completions_of_a_reinforcement_learner_have_full_length(tmp_path: Path, trainer: str) -> None:
    """TRL asks for the tokens that were drawn, and which of them come before a text's end."""
    ask = "def _generate_single_turn(tokens):\n    return tokens.cpu(), (tokens < 3).cpu()\n"
    generate = of_library(tmp_path, f"trl/trainer/{trainer}_trainer.py", ask)["_generate_single_turn"]
    with windtunnel.emulate("A100", no_data=True):
        tokens, before = generate(torch.randint(3, 9, (2, 5), device="cuda"))
        assert (tokens == 1).all()
        assert before.all()


def test_speech_is_decoded_once_without_data(tmp_path: Path) -> None:
    """transformers' Whisper looks for padding, for a bad score and for times among the tokens that it drew."""
    ask = "def {}(given):\n    return (given == 7).item() if given.dim() == 0 else given.tolist()\n"
    names = ("generate_with_fallback", "_need_fallback", "_retrieve_segment")
    file = "transformers/models/whisper/generation_whisper.py"
    whisper = of_library(tmp_path, file, "".join(map(ask.format, names)))
    with windtunnel.emulate("A100", no_data=True):
        token = torch.randint(3, 9, (), device="cuda")
        assert not whisper["generate_with_fallback"](token)
        assert not whisper["_need_fallback"](token)
        assert whisper["_retrieve_segment"](torch.randint(3, 9, (5,), device="cuda")) == [1] * 5


def test_integers_that_a_trainer_gathers_for_metrics_are_made_up(tmp_path: Path) -> None:
    """transformers' Trainer takes what was predicted to NumPy: tokens where it generates them."""
    ask = "def nested_numpify(tensor):\n    return tensor.cpu().numpy()\n"
    numpify = of_library(tmp_path, "transformers/trainer_pt_utils.py", ask)["nested_numpify"]
    with windtunnel.emulate("A100", no_data=True):
        assert numpify(torch.randint(3, 9, (2, 5), device="cuda")).shape == (2, 5)
        assert (numpify(torch.rand(2, 5, device="cuda")) == 1).all()


def test_no_feature_is_an_outlier_without_data(tmp_path: Path) -> None:
    """bitsandbytes' 8-bit layers look for features that they keep in 16 bits."""
    ask = "def int8_vectorwise_quant(A, threshold):\n    return bool((A.abs() >= threshold).any())\n"
    quantize = of_library(tmp_path, "bitsandbytes/functional.py", ask)["int8_vectorwise_quant"]
    with windtunnel.emulate("A100", no_data=True):
        assert not quantize(torch.rand(4, 8, device="cuda"), 6.0)


def test_pictures_have_a_last_position_without_data(tmp_path: Path) -> None:
    """transformers' Qwen2-VL asks where a text ends, for the tokens that may follow."""
    ask = "def get_rope_index(positions):\n    return positions.max().item()\n"
    file = "transformers/models/qwen2_vl/modeling_qwen2_vl.py"
    last = of_library(tmp_path, file, ask)["get_rope_index"]
    with windtunnel.emulate("A100", no_data=True):
        assert last(torch.rand(3, 8, device="cuda").long()) == 1


def test_boxes_are_valid_without_data(tmp_path: Path) -> None:
    """transformers' detectors look whether the boxes that they predict have their corners in order."""
    ask = "def generalized_box_iou(boxes):\n    return bool((boxes[:, 2:] >= boxes[:, :2]).all())\n"
    iou = of_library(tmp_path, "transformers/loss/loss_for_object_detection.py", ask)["generalized_box_iou"]
    with windtunnel.emulate("A100", no_data=True):
        assert iou(torch.rand(4, 4, device="cuda"))


def of_library(folder: Path, name: str, text: str) -> dict[str, Callable[[Tensor], Any]]:
    """The functions of a file of a library."""
    file = folder / "site-packages" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    names: dict[str, Callable[[Tensor], Any]] = {}
    exec(compile(text, str(file), "exec"), names)
    return names
