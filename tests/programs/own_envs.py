"""Environments, wrappers and factories as users have them."""
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


class Sequenced(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))

    def observation(self, seen):
        return (1, 2)


def make(count, mode):
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(count)], autoreset_mode=mode)


def same_step(num_envs):
    return make(num_envs, AutoresetMode.SAME_STEP)


def next_step(num_envs):
    return make(num_envs, AutoresetMode.NEXT_STEP)


def too_many(num_envs):
    return make(num_envs + 1, AutoresetMode.SAME_STEP)
