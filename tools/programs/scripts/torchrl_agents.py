"""torchrl: PPO and DQN on the cart's pole, with collectors, replay buffers and targets on the GPU.

windtunnel run --gpus A100 torchrl_agents.py

Then the losses of both on data drawn on the host, on the CPU and on the GPU: they are the same.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator

import torch
from beside_cpu import compare
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
from torchrl.data.replay_buffers import SamplerWithoutReplacement
from torchrl.envs import GymEnv
from torchrl.modules import EGreedyModule, OneHotCategorical, ProbabilisticActor, QValueActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE

STEPS = 4


def layers(outputs: int) -> nn.Sequential:
    """A small network on the cart's four numbers."""
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, outputs))


def actor_critic(device: str) -> tuple[ProbabilisticTensorDictModule, TensorDictModule]:
    """PPO's networks."""
    logits = TensorDictModule(layers(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True, spec=OneHot(2)
    )
    return actor.to(device), ValueOperator(layers(1), in_keys=["observation"]).to(device)


def learn_ppo(device: str) -> int:
    """Collect with the policy on the device, estimate advantages, take a pass over the buffer; the number of steps."""
    actor, critic = actor_critic(device)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64, device=device), sampler=SamplerWithoutReplacement(), batch_size=16
    )
    collector = Collector(GymEnv("CartPole-v1"), actor, frames_per_batch=64, total_frames=128, policy_device=device)
    taken = 0
    for batch in collector:
        data = batch.to(device)
        with torch.no_grad():
            advantage(data)
        buffer.extend(data.reshape(-1))
        for part in buffer:
            values = loss(part)
            sum(value for key, value in values.items() if key.startswith("loss_")).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    collector.shutdown()
    return taken


def learn_dqn(device: str) -> int:
    """Greedy steps with noise into a buffer on the device, samples of it, a slow target; the number of steps."""
    action = OneHot(2)
    network = QValueActor(layers(2), in_keys=["observation"], spec=action).to(device)
    policy = TensorDictSequential(network, EGreedyModule(action, device=device))
    loss = DQNLoss(network, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, eps=0.95)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200, device=device), batch_size=16)
    collector = Collector(GymEnv("CartPole-v1"), policy, frames_per_batch=20, total_frames=80, policy_device=device)
    taken = 0
    for batch in collector:
        buffer.extend(batch.reshape(-1).to(device))
        loss(buffer.sample())["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        target.step()
        taken += 1
    collector.shutdown()
    assert buffer.sample().device == torch.device(device, 0)
    return taken


def drawn() -> TensorDict:
    """Transitions drawn on the host."""
    count = 32
    action = nn.functional.one_hot(torch.randint(0, 2, (count,)), 2)
    after = {
        "observation": torch.randn(count, 4),
        "reward": torch.rand(count, 1),
        "done": torch.rand(count, 1) < 0.2,
        "terminated": torch.zeros(count, 1, dtype=torch.bool),
    }
    return TensorDict(
        {
            "observation": torch.randn(count, 4),
            "action": action,
            "action_log_prob": torch.full((count,), -0.7),
            "next": after,
        },
        [count],
    )


def both(device: str) -> Iterator[float]:
    """Two losses of PPO and two of DQN, through buffers on the device that are read in order."""
    actor, critic = actor_critic(device)
    data = drawn().to(device)
    with torch.no_grad():
        GAE(gamma=0.99, lmbda=0.95, value_network=copy.deepcopy(critic))(data)
    network = QValueActor(layers(2), in_keys=["observation"], spec=OneHot(2)).to(device)
    values = DQNLoss(network, action_space="one-hot", delay_value=True)
    values.make_value_estimator(gamma=0.99)
    for loss in (ClipPPOLoss(actor, critic, entropy_bonus=False), values):
        optimizer = torch.optim.SGD(loss.parameters(), 0.1)
        ordered = SamplerWithoutReplacement(shuffle=False)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(data), device=device), sampler=ordered, batch_size=16
        )
        buffer.extend(data)
        for part in buffer:
            found = loss(part)
            value = sum(one for key, one in found.items() if key.startswith("loss"))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield value.item()


def main() -> None:
    """Learn, then compare."""
    print(f"PPO took {learn_ppo('cuda')} steps, DQN {learn_dqn('cuda')}")
    compare("torchrl", both)


if __name__ == "__main__":
    sys.exit(main())
