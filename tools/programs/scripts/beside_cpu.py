"""A few training steps of a model of somebody else's library, on the CPU and on a GPU: the losses are the same.

windtunnel run --gpus A100 beside_cpu.py x_transformers

All random numbers are drawn on the host, before they are moved, so that both runs draw the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

STEPS = 4


def steps(model: nn.Module, loss: Callable[[], torch.Tensor], rate: float = 1e-2) -> Iterator[float]:
    """Some steps of SGD; each one's loss."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        yield value.item()


def x_transformers(device: str) -> Iterator[float]:
    """A decoder with rotary positions, RMS norms and gated feed-forward layers."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=layers)).to(device)
    tokens = torch.randint(0, 100, (4, 32)).to(device)
    return steps(model, lambda: model(tokens))


def gpytorch(device: str) -> Iterator[float]:
    """An exact Gaussian process, by its marginal likelihood."""
    import gpytorch as library

    inputs = torch.linspace(0, 1, 40).to(device)
    target = torch.sin(inputs * 6)

    class Exact(library.models.ExactGP):  # type: ignore[misc, name-defined]
        """A constant mean and a kernel of radial basis functions."""

        def __init__(self, likelihood: nn.Module) -> None:
            super().__init__(inputs, target, likelihood)
            self.mean = library.means.ConstantMean()
            self.covariance = library.kernels.ScaleKernel(library.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> object:
            """The prior."""
            return library.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    likelihood = library.likelihoods.GaussianLikelihood().to(device)
    model = Exact(likelihood).to(device).train()
    marginal = library.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return steps(model, lambda: -marginal(model(inputs), target))


def pyro(device: str) -> Iterator[float]:
    """The evidence's bound of a regression whose guide is a point."""
    import pyro as library
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoDelta
    from pyro.optim import Adam

    library.clear_param_store()
    inputs, target = torch.randn(20, 3).to(device), torch.randn(20).to(device)

    def model(inputs: torch.Tensor, target: torch.Tensor) -> None:
        normal = library.distributions.Normal(torch.zeros(3, device=device), torch.ones(3, device=device))
        weights = library.sample("weights", normal.to_event(1))
        with library.plate("rows", 20):
            library.sample("target", library.distributions.Normal(inputs @ weights, 1.0), obs=target)

    start = torch.full((3,), 0.5)
    guide = AutoDelta(model, init_loc_fn=lambda site: start.to(device))
    inference = SVI(model, guide, Adam({"lr": 0.01}), loss=Trace_ELBO())
    for _ in range(STEPS):
        yield float(inference.step(inputs, target))


def e3nn(device: str) -> Iterator[float]:
    """A tensor product of irreducible representations."""
    from e3nn import o3

    model = o3.FullyConnectedTensorProduct("4x0e + 4x1o", "1x0e + 1x1o", "2x0e + 2x1o").to(device)
    first, second = torch.randn(8, 16).to(device), torch.randn(8, 4).to(device)
    return steps(model, lambda: model(first, second).pow(2).mean())


def kornia(device: str) -> Iterator[float]:
    """Filters, colours and a warp, as parts of a loss."""
    from kornia import color, filters, geometry

    images = torch.rand(2, 3, 16, 16).to(device)
    angle = nn.Module()
    angle.degrees = nn.Parameter(torch.tensor([10.0, -5.0]).to(device))

    def loss() -> torch.Tensor:
        turned = geometry.transform.rotate(images, angle.degrees)
        value: torch.Tensor = filters.gaussian_blur2d(color.rgb_to_grayscale(turned), (3, 3), (1.0, 1.0)).pow(2).mean()
        return value

    return steps(angle, loss)


def torchdiffeq(device: str) -> Iterator[float]:
    """A neural differential equation by dopri5, through its solver."""
    from torchdiffeq import odeint

    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    start, times = torch.randn(8, 2).to(device), torch.linspace(0, 1, 5).to(device)
    return steps(field, lambda: odeint(lambda _, y: field(y), start, times)[-1].pow(2).mean())


def ignite(device: str) -> Iterator[float]:
    """A supervised trainer with an evaluator."""
    from ignite.engine import Events, create_supervised_trainer

    model = nn.Linear(8, 1).to(device)
    rows = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(STEPS)]
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    trainer = create_supervised_trainer(model, optimizer, nn.MSELoss(), device=device)
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(rows, max_epochs=1)
    yield from losses


def skorch(device: str) -> Iterator[float]:
    """scikit-learn's interface."""
    import numpy as np
    from skorch import NeuralNetRegressor

    inputs, target = torch.randn(64, 8).numpy(), torch.randn(64, 1).numpy()
    net = NeuralNetRegressor(
        nn.Linear(8, 1), max_epochs=STEPS, lr=0.05, device=device, train_split=None, verbose=0, batch_size=16
    )
    net.fit(inputs.astype(np.float32), target.astype(np.float32))
    yield from net.history[:, "train_loss"]


def monai(device: str) -> Iterator[float]:
    """A U-Net of volumes, Dice with cross entropy, and inference by sliding windows."""
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1).to(device)
    volumes = torch.randn(2, 1, 16, 16, 16).to(device)
    labels = torch.randint(0, 2, (2, 1, 16, 16, 16)).to(device)
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    yield from list(steps(model, lambda: loss(model(volumes), labels)))[: STEPS - 1]
    with torch.no_grad():
        yield sliding_window_inference(volumes, (8, 8, 8), 2, model, overlap=0.5).pow(2).mean().item()


def botorch(device: str) -> Iterator[float]:
    """A Gaussian process fitted by L-BFGS, expected improvement, and the candidate that maximizes it."""
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    inputs = torch.rand(12, 2, dtype=torch.float64).to(device)
    target = torch.sin(inputs.sum(-1, keepdim=True) * 3)
    starts = torch.rand(4, 1, 2, dtype=torch.float64).to(device)
    model = SingleTaskGP(inputs, target).to(device)
    marginal = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    yield marginal(marginal.model.train()(*model.train_inputs), model.train_targets).item()
    improvement = LogExpectedImprovement(model.eval(), best_f=target.max())
    yield improvement(starts).sum().item()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64).to(device)
    found, value = optimize_acqf(improvement, bounds, q=1, num_restarts=4, batch_initial_conditions=starts)
    yield from (value.item(), found.sum().item())


def compare(name: str, program: Callable[[str], Iterator[float]]) -> None:
    """Run on the CPU and on the GPU from the same seed; the process ends with 1 where the losses differ."""
    losses = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        losses.append(list(program(device)))
    on_cpu, on_gpu = (torch.tensor(values, dtype=torch.float64) for values in losses)
    assert len(on_cpu) == STEPS
    same = torch.allclose(on_cpu, on_gpu, rtol=1e-4, atol=1e-6)
    print(f"{name}: {losses[0]} on the CPU, {losses[1]} on the GPU: {'equal' if same else 'DIFFERENT'}")
    sys.exit(not same)


if __name__ == "__main__":
    compare(sys.argv[1], globals()[sys.argv[1]])
