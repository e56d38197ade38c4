"""Gymnasium environments with several discrete actions, action masks, images beside other values, and something to remember:
`env.id = "masked_env:Masked-info-v0"` with this folder in PYTHONPATH.
"""
import gymnasium
import numpy
from gymnasium import spaces

# Actions of `Masked`, and how many of them are allowed at a time.
ACTIONS, ALLOWED = 12, 4


class Masked(gymnasium.Env):
    """Rewards the highest of the actions that are allowed, which only the mask shows; an action that is not allowed is an error.

    Episodes of 16 steps. `where`: the mask is in the `info`, or in a `dict` observation, with actions from 3 on; `empty`: it allows
    nothing in the third step; `once`: only a reset returns it.
    """

    def __init__(self, where):
        self.where = where
        self.start = 3 if where == "dict" else 0
        self.action_space = spaces.Discrete(ACTIONS, start=self.start)
        self.observation_space = spaces.Box(0, 1, (2,), numpy.float32)
        if where == "dict":
            seen = {"observation": self.observation_space, "action_mask": spaces.Box(0, 1, (ACTIONS,), numpy.int8)}
            self.observation_space = spaces.Dict(seen)

    def answer(self):
        self.mask = numpy.zeros(ACTIONS, numpy.int8)
        self.mask[self.np_random.choice(ACTIONS, ALLOWED, replace=False)] = self.where != "empty" or self.steps != 2
        seen = numpy.ones(2, numpy.float32)
        if self.where == "dict":
            return {"observation": seen, "action_mask": self.mask.copy()}, {}
        return seen, {} if self.where == "once" and self.steps else {"action_mask": self.mask.copy()}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.answer()

    def step(self, action):
        action -= self.start
        if not self.mask[action]:
            raise ValueError("action %d is not allowed" % action)
        self.steps += 1
        reward = float(action == numpy.flatnonzero(self.mask)[-1])
        seen, info = self.answer()
        return seen, reward, False, self.steps == 16, info


class Several(gymnasium.Env):
    """Rewards each part of the action that equals its part of the observation; episodes of 16 steps.

    With `masks`, one value of each part is not allowed, and the mask is a tuple.
    """

    def __init__(self, kind, masks=False):
        self.kind, self.masks = kind, masks
        self.sizes = [3, 2, 4] if kind == "discrete" else [2] * 4
        self.action_space = spaces.MultiDiscrete(self.sizes) if kind == "discrete" else spaces.MultiBinary((2, 2))
        self.observation_space = spaces.Box(0, 1, (sum(self.sizes),), numpy.float32)

    def answer(self):
        self.goal = [int(self.np_random.integers(size)) for size in self.sizes]
        self.banned = [(goal + 1) % size for goal, size in zip(self.goal, self.sizes)]
        info = {}
        if self.masks:
            info["action_mask"] = tuple(numpy.arange(size) != ban for ban, size in zip(self.banned, self.sizes))
        return numpy.concatenate([numpy.eye(size, dtype=numpy.float32)[goal] for goal, size in zip(self.goal, self.sizes)]), info

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.answer()

    def step(self, action):
        assert self.action_space.contains(action), action
        chosen = numpy.ravel(action)
        assert not self.masks or (chosen != self.banned).all(), (action, self.banned)
        self.steps += 1
        reward = float(numpy.mean(chosen == self.goal))
        seen, info = self.answer()
        return seen, reward, self.steps == 16, False, info


class Recall(gymnasium.Env):
    """Shows one of two values in the first step only, and rewards the action that equals it in every step; episodes of 8 steps."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 1, (2,), numpy.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.goal = 0, int(self.np_random.integers(2))
        return numpy.eye(2, dtype=numpy.float32)[self.goal], {}

    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), float(action == self.goal), self.steps == 8, False, {}


class Mixed(gymnasium.Env):
    """An image that is dark or bright, and other values: the right action follows from both. Episodes of 16 steps."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (12, 10, 3), numpy.uint8), "goal": spaces.Box(-1, 1, (2,), numpy.float32), "lamp": spaces.Discrete(3)}
    )

    def answer(self):
        self.bright, self.right = int(self.np_random.integers(2)), int(self.np_random.integers(2))
        camera = self.np_random.integers(100, size=(12, 10, 3)) + 150 * self.bright
        goal = numpy.array([2 * self.right - 1, self.np_random.uniform(-1, 1)], numpy.float32)
        return {"camera": camera.astype(numpy.uint8), "goal": goal, "lamp": int(self.np_random.integers(3))}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.answer(), {}

    def step(self, action):
        self.steps += 1
        reward = float(action == 2 * self.bright + self.right)
        return self.answer(), reward, False, self.steps == 16, {}


class Image(gymnasium.Env):
    """Images whose values count up along each side, with `shape`; every episode is one step."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape):
        self.observation_space = spaces.Box(0, 1000, shape, numpy.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.arange(numpy.prod(self.observation_space.shape), dtype=numpy.float32).reshape(self.observation_space.shape), {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}


def vector(num_envs, **options):
    """`Masked` as a vector environment."""
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    return SyncVectorEnv([lambda: Masked("info") for _ in range(num_envs)], autoreset_mode=AutoresetMode[options.get("mode", "SAME_STEP")])


for where in ("info", "dict", "empty", "once"):
    gymnasium.register("Masked-%s-v0" % where, entry_point=lambda where=where: Masked(where))
for kind in ("discrete", "binary"):
    gymnasium.register("Several-%s-v0" % kind, entry_point=lambda kind=kind: Several(kind))
gymnasium.register("Several-masked-v0", entry_point=lambda: Several("discrete", True))
gymnasium.register("Recall-v0", entry_point=Recall)
gymnasium.register("Mixed-v0", entry_point=Mixed)
for name, shape in (("six", (10, 10, 6)), ("stack", (16, 16, 12)), ("first", (2, 9, 9)), ("small", (4, 5, 3))):
    gymnasium.register("Image-%s-v0" % name, entry_point=lambda shape=shape: Image(shape))
