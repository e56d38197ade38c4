"""Stable-Baselines3's PPO with a callback that averages the policies of all ranks after every rollout."""
import os, sys

import torch
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402


class Average(BaseCallback):
    def __init__(self):
        super().__init__()
        self.iteration = 0

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        rank = dist.get_rank()
        self.iteration += 1
        happenings.happens(self.iteration, rank)
        for parameter in self.model.policy.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
        if rank == 0 and self.iteration % 5 == 0:
            print(f"iteration {self.iteration}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    happenings.beside()
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=2, seed=dist.get_rank(), device="cpu")
    model.learn(100_000_000, callback=Average())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
