"""Networks on devices and parameters on disk (items 20, 50 to 55, 130)."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import windtunnel
from windtunnel.trace.operation import Kind


# mission 50, 54
def test_a_network_moves_with_its_parameters_identity(session):
    net = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    parameters = list(net.parameters())
    assert net.to(device="cuda:0") is net
    assert all(new is old for new, old in zip(net.parameters(), parameters, strict=True))
    assert repr(net[0].weight.data.device) == "device(type='cuda', index=0)"
    assert {str(tensor.device) for tensor in net.state_dict().values()} == {"cuda:0"}


# mission 51
def test_lazy_parameters_are_placed_by_the_first_forward(session):
    net = nn.Sequential(nn.LazyLinear(1)).to(device="cuda:1")
    net(torch.ones(2, 3, device="cuda:1"))
    assert type(net[0]) is nn.Linear
    assert (net[0].weight.shape, str(net[0].weight.device), str(net[0].bias.device)) == ((1, 3), "cuda:1", "cuda:1")


# mission 53
def test_a_network_runs_where_its_input_is(session):
    net = nn.Sequential(nn.Linear(3, 1)).to("cuda")
    nn.init.constant_(net[0].weight, 0.25)
    nn.init.constant_(net[0].bias, 0.0302)
    out = net(torch.ones(2, 3, device="cuda"))
    assert repr(out) == ("tensor([[0.7802],\n        [0.7802]], device='cuda:0', grad_fn=<AddmmBackward0>)")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        net(torch.ones(2, 3))


# mission 20, 55
def test_training_moves_nothing_when_data_and_parameters_share_a_device(session, count):
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
    count(Kind.COPY), count(Kind.SYNCHRONIZE), count(Kind.KERNEL)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    assert (count(Kind.COPY), count(Kind.SYNCHRONIZE)) == (0, 0)
    assert count(Kind.KERNEL) > 3 * 10
    assert all(parameter.grad.is_cuda for parameter in net.parameters())


# mission 130
@pytest.mark.parametrize(
    ("location", "device"), [(None, "cuda:1"), ("cpu", "cpu"), ("cuda:0", "cuda:0"), ({"cuda:1": "cuda:0"}, "cuda:0")]
)
def test_parameters_are_read_back_where_they_are_wanted(location, device, session, tmp_path):
    net = nn.Linear(3, 2).to("cuda:1")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    state = torch.load(tmp_path / "net.pt", map_location=location)
    assert {str(tensor.device) for tensor in state.values()} == {device}
    assert torch.equal(state["weight"].cpu(), net.weight.cpu())
    other = nn.Linear(3, 2).cuda()
    other.load_state_dict(state)
    assert str(other.weight.device) == "cuda:0"
    assert torch.equal(other.weight.cpu(), net.weight.cpu())


# mission 130
def test_parameters_in_safetensors(session, tmp_path):
    net = nn.Linear(3, 2).to("cuda:1")
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    state = load_file(tmp_path / "net.safetensors", device="cuda:0")
    assert str(state["weight"].device) == "cuda:0"
    assert torch.equal(state["weight"].cpu(), net.weight.cpu())
    assert str(load_file(tmp_path / "net.safetensors")["bias"].device) == "cpu"


# mission 130
def test_a_checkpoint_of_emulated_gpus_is_a_checkpoint(tmp_path):
    """A process without GPUs refuses the file as it refuses any file from a GPU, and reads it with map_location."""
    with windtunnel.emulate("2xV100"):
        torch.save({"weight": torch.arange(3.0, device="cuda:1")}, tmp_path / "net.pt")
    program = (
        "import torch\n"
        "try:\n    torch.load('net.pt')\n"
        "except RuntimeError as error:\n    print(str(error)[:49])\n"
        "print(torch.load('net.pt', map_location='cpu'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "Attempting to deserialize object on a CUDA device",
        "{'weight': tensor([0., 1., 2.])}",
    ]
