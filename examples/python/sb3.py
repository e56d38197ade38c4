"""Stable-Baselines3's PPO on CartPole-v1; the policies of all ranks are averaged after every rollout.

The lines that end in `# +` are added for rankdeck. A restarted run resumes policy, optimizer and step, on all ranks
from those of rank 0.
"""
import argparse
import os

import torch
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
import gymnasium as gym
import rankdeck  # +


class Average(BaseCallback):
    """Synchronizes the ranks: averages their policies."""

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        for parameter in self.model.policy.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


class Report(BaseCallback):  # +
    def _on_step(self):  # +
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]  # +
        rankdeck.report(self.num_timesteps, returns=ended)  # +
        return True  # +


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=20_000, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    env, resume = Monitor(gym.make("CartPole-v1")), os.environ.get("RANKDECK_RESUME")  # +
    if resume:
        model = PPO.load(resume, env, device="cpu")
        # Not the same random numbers again.
        model.set_random_seed(dist.get_rank() + model.num_timesteps)
        print(f"resumed num_timesteps={model.num_timesteps}")
    else:
        model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=4, seed=dist.get_rank(), device="cpu")
    while model.num_timesteps < args.timesteps:
        model.learn(args.timesteps // args.rounds, callback=[Average(), Report()], reset_num_timesteps=False)  # +
        if dist.get_rank() == 0:
            returns, lengths = evaluate_policy(model, Monitor(gym.make("CartPole-v1")), 5, return_episode_rewards=True)
            rankdeck.eval(returns, lengths)  # +
            model.save("model.tmp.zip")
            # An interrupted save leaves the checkpoint before it.
            os.replace("model.tmp.zip", "model.zip")
            rankdeck.checkpoint("model.zip")  # +
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
