"""Rehearsal without data: what the host put on the device is known, and what training scripts ask goes through."""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import resource

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.errors import FileFormatError, UnsupportedError
from windtunnel.seam.torch.tensor.placeholders import is_one


@pytest.fixture
def session():
    """A rehearsal without data on one V100."""
    with windtunnel.emulate("V100", no_data=True) as session:
        yield session


def assumed(session) -> list[dict[str, str | int]]:
    """What was assumed so far."""
    return [dict(note.detail) for note in session.trace.notes if note.code == "assumed-value"]


def test_an_embedding_with_sparse_gradients_trains(session) -> None:
    model = nn.Embedding(10, 4, sparse=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([1, 2, 1], device="cuda")).sum().backward()
    assert model.weight.grad.layout is torch.sparse_coo
    optimizer.step()
    assert [row.signature.name for row in session.trace if "add_" in row.signature.name]


def test_a_model_is_moved_under_the_eyes_of_its_optimizer(session) -> None:
    model = nn.Linear(4, 4)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters)
    model.to("cuda")
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert all(p.is_cuda and p.requires_grad and p.is_leaf for p in parameters)
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    assert torch.cuda.memory_allocated() >= before + 2 * sum(p.nbytes for p in parameters)


def test_a_model_that_has_gradients_is_moved_with_them(session) -> None:
    model = nn.Linear(4, 4)
    weight = model.weight
    model(torch.randn(2, 4)).sum().backward()
    model.cuda()
    assert model.weight is weight
    assert weight.grad is not None
    assert weight.grad.is_cuda


def test_a_parameter_is_given_data_on_another_device(session) -> None:
    weight = nn.Parameter(torch.zeros(3))
    weight.data = weight.data.cuda()
    assert weight.is_cuda
    assert weight.requires_grad


def test_tied_weights_stay_tied(session) -> None:
    embedding, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
    head.weight = embedding.weight
    nn.ModuleList([embedding, head]).cuda()
    assert head.weight is embedding.weight
    assert torch.cuda.memory_allocated() == 512


def test_integers_of_the_host_are_read_back(session) -> None:
    labels = torch.tensor([3, -100, 5])
    on_device = labels.to("cuda")
    assert on_device.tolist() == [3, -100, 5]
    assert on_device[2].item() == 5
    assert (on_device != -100).sum().item() == 2
    assert on_device.view(3, 1).cpu().flatten().tolist() == [3, -100, 5]
    assert int(on_device.max()) == 5
    assert assumed(session) == []


def test_the_mask_of_known_labels_selects_what_it_does(session) -> None:
    labels = torch.tensor([3, -100, 5]).cuda()
    scores = torch.randn(3, 7).cuda()
    assert scores[labels != -100].shape == (2, 7)
    assert torch.nonzero(labels > 3).shape == (1, 1)
    assert torch.masked_select(scores[:, 0], labels > 0).shape == (2,)
    assert assumed(session) == []


def test_what_is_written_over_known_integers_is_known_or_forgotten(session) -> None:
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    count += torch.tensor([1, 0, 1]).cuda().sum()
    assert count.item() == 2
    count.copy_(torch.randint(0, 9, (), device="cuda"))
    with pytest.raises(UnsupportedError, match="reads values of a device tensor"):
        count.item()
    buffer = torch.zeros(4, dtype=torch.int64, device="cuda")
    buffer[1] = 7
    buffer[2:].fill_(3)
    assert buffer.tolist() == [0, 7, 3, 3]
    buffer[0] = torch.randn(3, device="cuda").argsort()[1]
    with pytest.raises(UnsupportedError):
        buffer.tolist()


def test_a_batch_copied_into_a_buffer_is_known(session) -> None:
    buffer = torch.empty(3, dtype=torch.int64, device="cuda")
    buffer.copy_(torch.tensor([1, 2, 3]).pin_memory(), non_blocking=True)
    assert buffer.tolist() == [1, 2, 3]


def test_an_accuracy_is_counted(session) -> None:
    labels = torch.tensor([0, 3, 0, 1])
    guess = nn.Linear(4, 10).cuda()(torch.randn(4, 4).cuda()).argmax(1)
    assert guess.cpu().tolist() == [5, 6, 7, 8]
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    total += (guess == labels.cuda()).sum()
    assert total.item() == 0
    assert not bool(total > 0)
    assert {one["what"] for one in assumed(session)} == {"index"}


def test_a_mask_of_scores_counts_all(session) -> None:
    scores = torch.randn(16, device="cuda")
    assert (scores > 0.5).sum().item() == 16
    assert {one["what"] for one in assumed(session)} == {"count"}


def test_generated_tokens_follow_those_of_the_prompt(session) -> None:
    prompt = torch.tensor([[5, 6]]).cuda()
    head = nn.Linear(4, 10).cuda()
    drawn = torch.multinomial(head(torch.randn(1, 4).cuda()).softmax(1), 1)
    assert torch.cat((prompt, drawn), 1).tolist() == [[5, 6, 5]]
    assert {one["what"] for one in assumed(session)} == {"index"}


def test_a_users_answer_comes_before_a_guess() -> None:
    with windtunnel.emulate("V100", no_data=True, assume=3):
        assert torch.randn(8, device="cuda").argmax().item() == 3
        assert torch.tensor([7]).cuda().item() == 7


def test_a_lazy_module_gets_its_shape_on_the_device(session) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to("cuda")
    assert model(torch.randn(2, 5, device="cuda")).shape == (2, 3)
    assert model[0].weight.shape == (3, 5)
    assert model[0].weight.is_cuda


def test_losses_and_predictions_are_taken_to_the_host(session) -> None:
    scores = nn.Linear(4, 10).cuda()(torch.randn(16, 4).cuda()).detach()
    assert scores.cpu().numpy().shape == (16, 10)
    assert scores.mean(1).tolist() == [1.0] * 16
    assert {one["what"] for one in assumed(session)} == {"number"}


def test_counts_of_known_numbers_decide(session) -> None:
    loss = nn.Linear(4, 1).cuda()(torch.randn(2, 4).cuda()).mean()
    assert not bool(loss > 3)
    assert bool((loss * 2 < 3).any())


def test_the_numbers_of_a_weight_are_not_all_the_same(session) -> None:
    weight = nn.Linear(4, 4).cuda().weight
    assert not (weight == 0).all()
    assert torch.any(weight != 0)
    assert [(one["what"], one["value"]) for one in assumed(session)] == [("unequal", "False"), ("unequal", "True")]
    assert weight[weight == 0].shape == (16,)  # a mask selects the most that it can


def test_a_checkpoint_is_not_written_over_with_nothing(session, tmp_path) -> None:
    path = tmp_path / "best.pt"
    path.write_text("of a run with data")
    torch.save({"model": nn.Linear(2, 2).cuda().state_dict(), "epoch": 3}, path)
    assert path.read_text() == "of a run with data"
    assert [(one["what"], one["value"]) for one in assumed(session)] == [("save", "best.pt")]
    torch.save({"losses": torch.tensor([1.0])}, path)
    assert torch.load(path)["losses"].tolist() == [1.0]


def test_a_checkpoint_is_loaded_onto_a_device(session) -> None:
    file = io.BytesIO()
    given = {"weight": torch.randn(64, 64), "step": torch.tensor(7.0), "shards": torch.tensor([3, 4, 5])}
    torch.save(given | {"part": given["shards"][1:], "none": torch.empty(0), "large": torch.zeros(1 << 20)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cuda")
    assert {one.device.type for one in loaded.values()} == {"cuda"}
    assert loaded["step"].item() == 7.0
    assert (loaded["shards"].tolist(), loaded["part"].tolist()) == ([3, 4, 5], [4, 5])
    assert not assumed(session)
    loaded["shards"] += 1
    assert loaded["part"].tolist() == [5, 6]
    nn.Linear(64, 64).cuda().weight.data.copy_(loaded["weight"])
    assert loaded["weight"].untyped_storage().clone().nbytes() == 64 * 64 * 4
    assert torch.load(file.seek(0) or file)["step"].device.type == "cpu"


def test_what_is_on_the_host_can_be_pickled_and_what_has_no_values_is_refused(session) -> None:
    x = torch.ones(3, device="cuda")
    for held in (torch.tensor(2.0), torch.arange(4), x.cpu(), nn.Linear(2, 2), torch.empty(2, device="meta")):
        again = copy.deepcopy(pickle.loads(pickle.dumps(held)))
        assert type(again) is type(held)
    assert pickle.loads(pickle.dumps({"step": torch.tensor(7.0)}))["step"].item() == 7.0
    for tensor in (x, nn.Parameter(x), x[1:]):
        with pytest.raises(UnsupportedError, match="would write tensors of a device"):
            pickle.dumps([tensor])


def test_safetensors_are_not_written_over_with_nothing(session, tmp_path) -> None:
    safetensors = importlib.import_module("safetensors.torch")
    model, path = nn.Linear(2, 2).cuda(), tmp_path / "model.safetensors"
    path.write_text("of a run with data")
    safetensors.save_file(model.state_dict(), path, metadata={"format": "pt"})
    safetensors.save_model(model, str(path))
    assert path.read_text() == "of a run with data"
    assert [(one["what"], one["value"]) for one in assumed(session)] == [("not written", path.name)] * 2
    safetensors.save_file({"losses": torch.tensor([1.0])}, path)
    assert safetensors.load_file(path)["losses"].tolist() == [1.0]


def test_other_checkpoints_are_refused_before_they_are_opened(session, tmp_path) -> None:
    safetensors = importlib.import_module("safetensors.torch")
    weights = {"weight": torch.empty(2, device="cuda")}
    with pytest.raises(UnsupportedError, match=r"safetensors.torch.save would write"):
        safetensors.save(weights)
    assert list(tmp_path.iterdir()) == []


def test_a_distributed_checkpoint_is_planned_and_not_written(session, tmp_path) -> None:
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    saved = checkpoint.save({"weight": torch.empty(2, device="cuda")}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert saved.state_dict_metadata["weight"].size == (2,)
    assert list(tmp_path.iterdir()) == []
    weight = torch.empty(2, device="cuda")
    checkpoint.load({"weight": weight}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert [(one["what"], one["value"]) for one in assumed(session)] == [("not written", "saved"), ("load", "saved")]
    with pytest.raises(checkpoint.CheckpointException, match="metadata"):
        checkpoint.load({"weight": weight}, checkpoint_id=tmp_path / "other", no_dist=True)


@pytest.mark.parametrize("copied", [lambda w: w.cpu(), lambda w: torch.empty(w.shape).copy_(w)], ids=["new", "into"])
def test_copies_of_weights_take_no_memory_and_are_not_written(session, tmp_path, copied) -> None:
    weights = torch.empty(1 << 28, device="cuda")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    host = copied(weights)
    assert (host.device.type, host.shape, host[:2].tolist()) == ("cpu", weights.shape, [0.0, 0.0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    torch.save({"weight": host, "few": torch.rand(3, device="cuda").cpu()}, tmp_path / "weights.pt")
    assert (tmp_path / "weights.pt").stat().st_size < 4096
    assert [one["what"] for one in assumed(session)] == ["copy", "number", "save"]
    loaded = torch.load(tmp_path / "weights.pt")
    assert (loaded["weight"].shape, loaded["few"].shape, loaded["weight"].device.type) == (host.shape, (3,), "cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_storage_without_values_is_copied_to_the_host(session, tmp_path) -> None:
    host = torch.zeros(4)
    host.untyped_storage().copy_(torch.rand(4, device="cuda").untyped_storage())
    assert host.tolist() == [0.0] * 4
    torch.save(host, tmp_path / "weights.pt")
    assert is_one(tmp_path / "weights.pt")


def test_a_folder_made_for_a_checkpoint_without_values_ends_with_it(tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    with windtunnel.emulate("A100", no_data=True):
        for folder in ("kept", "made/7", "beside/8"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            torch.save(nn.Linear(4, 2).cuda().state_dict(), tmp_path / folder / "model.pt")
        (tmp_path / "beside" / "log.txt").write_text("the program's own")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["beside", "kept", "log.txt"]


def test_a_checkpoint_without_values_is_found_again_and_ends_with_the_emulation(tmp_path) -> None:
    with windtunnel.emulate("2xA100", no_data=True):
        model = nn.Linear(4, 2).cuda()
        torch.save({"model": model.state_dict(), "epoch": 3, "kept": torch.tensor([1.5])}, tmp_path / "part")
        os.replace(tmp_path / "part", tmp_path / "best.pt")
        before = torch.cuda.memory_allocated(1)
        loaded = torch.load(tmp_path / "best.pt", map_location={"cuda:0": "cuda:1"}, weights_only=True)
        assert torch.cuda.memory_allocated(1) - before == 1024
        assert (loaded["epoch"], loaded["kept"].tolist(), loaded["model"]["weight"].device.index) == (3, [1.5], 1)
        model.load_state_dict(loaded["model"])
        buffer = io.BytesIO()
        torch.save(model, buffer)
        again = torch.load(buffer.seek(0) or buffer, weights_only=False)
        assert (again.weight.is_cuda, again.weight.requires_grad) == (True, True)
        left = (tmp_path / "best.pt").read_bytes()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "best.pt").write_bytes(left)
    with pytest.raises(pickle.UnpicklingError, match="windtunnel"):
        torch.load(tmp_path / "best.pt")
    with pytest.raises(FileFormatError, match="written in a rehearsal without data"):
        torch.load(tmp_path / "best.pt", weights_only=False)


def test_a_state_is_copied_on_the_device(session) -> None:
    model = nn.BatchNorm1d(4).cuda()
    before = torch.cuda.memory_allocated()
    state = copy.deepcopy(model.state_dict())
    assert all(tensor.is_cuda for tensor in state.values())
    assert torch.cuda.memory_allocated() == 2 * before
    model.load_state_dict(state)
    with pytest.raises(UnsupportedError, match="reads the memory of a device tensor at"):
        state["weight"].untyped_storage().cpu()


@pytest.mark.parametrize("factory", ["zeros", "ones"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_large_tensor_of_one_number_takes_no_memory_of_the_host(factory: str, dtype: torch.dtype, session) -> None:
    sizes: list[int] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):  # the second one is remembered by its shape
        tensor = getattr(torch, factory)(1 << 28, dtype=dtype, device="cuda")
        sizes.append(tensor.nbytes)
        del tensor
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < sizes[0] // 1024 // 4


def test_a_prompt_has_no_padding_and_its_mask_is_full(session) -> None:
    """How `transformers` makes the mask of a prompt that it does not know, and drops one that masks nothing."""
    prompt, pad, end = torch.randint(3, 512, (2, 12), device="cuda"), torch.tensor(0).cuda(), torch.tensor([2]).cuda()
    usable = torch.isin(prompt, pad).any() * ~torch.isin(end, pad).any()
    mask = prompt.ne(pad).long() * usable + torch.ones(2, 12, dtype=torch.long, device="cuda") * ~usable
    assert not torch.any(mask[:, -1] == 0).item()
    assert (mask == 1).all()
    assert [one["what"] for one in assumed(session)] == ["sought", "sought"]


def test_a_mask_of_ones_like_an_unknown_prompt_is_known(session) -> None:
    mask = torch.ones_like(torch.randint(3, 512, (2, 12), device="cuda"))
    assert (mask == 1).all()
    assert mask.sum().item() == 24
    assert assumed(session) == []


@pytest.mark.parametrize("end", [None, 2])
def test_generation_goes_on_to_the_last_token(session, end: int | None) -> None:
    tokens, unfinished = torch.randint(3, 512, (2, 4), device="cuda"), torch.ones(2, dtype=torch.long, device="cuda")
    for length in range(5, 9):
        logits = torch.randn(2, 512, device="cuda")
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        done = torch.full((2,), length == 8, device="cuda")
        if end is not None:
            done = done | torch.isin(tokens[:, -1], torch.tensor([end], device="cuda"))
        unfinished = unfinished & ~done
        assert bool(unfinished.max() == 0) == (length == 8)


def test_bits_are_combined_as_bits(session) -> None:
    finite = torch.isnan(torch.randn(4, device="cuda"))  # assumed: none
    flags = finite.long() + 6
    assert (flags & 3).max().item() == 2
    assert (flags | 1).min().item() == 7
    assert (~flags).min().item() == -7


@pytest.mark.parametrize("tokens", [64, 4096])
def test_a_router_gives_each_expert_as_many_tokens(session, tokens: int) -> None:
    """Mixtral's and Qwen's loop over the experts, whose one-hot mask may be larger than what is known otherwise."""
    experts, chosen = 16, 4
    indices = torch.randn(tokens, experts, device="cuda").topk(chosen)[1]
    mask = nn.functional.one_hot(indices, experts + 1).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    assert [int(expert[0]) for expert in hit] == list(range(experts))
    assert [torch.where(mask[int(expert)])[0].numel() for expert in hit] == [tokens * chosen // experts] * experts


def test_top_k_takes_no_element_twice_along_any_dimension(session) -> None:
    for shape, k, dim in (((6,), 6, 0), ((3, 7), 5, 1), ((7, 3), 5, 0), ((2, 9, 4), 9, -2)):
        indices = torch.randn(shape, device="cuda").topk(k, dim)[1].cpu()
        ordered = indices.sort(dim).values
        assert (ordered.diff(dim=dim) > 0).all()
        assert indices.min() >= 0
        assert indices.max() < shape[dim]


def test_all_that_an_unknown_mask_selects_is_in_order(session) -> None:
    assert (torch.randn(2, 3, device="cuda") > 0).nonzero().tolist() == [[i, j] for i in range(2) for j in range(3)]


def test_a_guessed_token_is_no_special_one(session) -> None:
    token = torch.randn(2, 9, device="cuda").argmax(-1)
    assert not bool(torch.isin(token, torch.tensor([0], device="cuda")).any())


def test_a_truth_that_one_side_decides_is_known(session) -> None:
    unknown = torch.randn(3, device="cuda") > torch.randn(3, device="cuda")
    done, going = torch.ones(3, dtype=torch.bool, device="cuda"), torch.zeros(3, dtype=torch.bool, device="cuda")
    assert not bool(torch.all(unknown & going))
    assert bool(torch.all(unknown | done))
    assert bool(torch.all(torch.logical_or(done, unknown)))
    assert assumed(session) == []
    with pytest.raises(UnsupportedError):
        bool(torch.all(unknown | going))


def test_bits_are_not_truths(session) -> None:
    unknown = torch.randint(0, 9, (), device="cuda")
    with pytest.raises(UnsupportedError):
        int(unknown | torch.ones((), dtype=torch.int64, device="cuda"))
    assert int(unknown & torch.zeros((), dtype=torch.int64, device="cuda")) == 0


def test_a_buffer_that_is_filled_is_known(session) -> None:
    buffer = torch.empty((2, 4), dtype=torch.int32, device="cuda")
    with pytest.raises(UnsupportedError):
        buffer.tolist()
    assert buffer.zero_().tolist() == [[0] * 4] * 2
    buffer[0, :2] = torch.randn(2, 6, device="cuda").argmax(-1)
    assert buffer[1].tolist() == [0] * 4
    assert buffer.fill_(7)[0].tolist() == [7] * 4
    with pytest.raises(UnsupportedError):
        torch.empty(3, dtype=torch.int64, device="cuda").fill_(torch.randint(0, 9, (), device="cuda")).tolist()


def test_a_single_number_is_known_until_data_are_added(session) -> None:
    total, part = torch.zeros((), device="cuda"), torch.full((1,), 0.25, device="cuda")
    assert (total.item(), part.item(), (total + 2 * part).item()) == (0.0, 0.25, 0.5)
    total += torch.randn(8, device="cuda").sum()
    assert total.item() == 1.0  # assumed


def test_a_flag_that_counts_what_is_not_finite_is_zero() -> None:
    """DeepSpeed adds truths to a float zero, and reads the sum as a byte."""
    with windtunnel.emulate("A100", no_data=True):
        count, gradient = torch.zeros([1], device="cuda"), torch.randn(4, device="cuda")
        count += gradient.isinf().any().logical_or(gradient.isnan().any())
        assert count.bool().byte().item() == 0
        loss = torch.zeros(1, device="cuda")
        loss += gradient.mean()
        assert loss.item() == 1  # a number that nobody knows


def test_nothing_is_read_of_an_empty_tensor() -> None:
    with windtunnel.emulate("A100", no_data=True):
        assert torch.empty(0, dtype=torch.int64, device="cuda").tolist() == []
