"""Stable-Baselines3: PPO and DQN on the cart's pole, SAC on the pendulum, networks on the GPU.

windtunnel run --gpus A100 reinforce.py
"""

import gymnasium
from stable_baselines3 import DQN, PPO, SAC


def main() -> None:
    """A few steps of each; PPO is saved and loaded."""
    first = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, device="cuda", seed=0)
    first.learn(128)
    first.save("ppo")
    observation, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    before, after = (model.predict(observation, deterministic=True)[0] for model in (first, PPO.load("ppo")))
    assert before == after, "the loaded policy acts otherwise"
    values = DQN("MlpPolicy", "CartPole-v1", learning_starts=20, buffer_size=200, batch_size=16, seed=0)
    values.learn(60)
    actor = SAC("MlpPolicy", "Pendulum-v1", learning_starts=20, buffer_size=200, batch_size=16, seed=0)
    actor.learn(40)
    print("learned on", first.device, values.device, actor.device)


if __name__ == "__main__":
    main()
