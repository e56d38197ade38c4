"""Gymnasium environments that fail in known ways, for tests and for the fault laboratory: `env.id = "faulty_env:Faulty-hang-v0"` with
this folder in PYTHONPATH. They fail when FAULTY_AFTER steps were made (default: when action 1 is taken), those of rank FAULTY_RANK only
when it is given. Others are slow (FAULTY_SLEEP seconds per step), have no end, or unusual spaces.
"""
import os
import signal
import time

import gymnasium
import numpy

AFTER = int(os.environ.get("FAULTY_AFTER", "-1"))
SLEEP = float(os.environ.get("FAULTY_SLEEP", "0"))
MAKING = float(os.environ.get("FAULTY_MAKING", "0"))
if os.environ.get("FAULTY_RANK", os.environ.get("RANK", "")) != os.environ.get("RANK", ""):
    AFTER = 1 << 60


class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what):
        self.what = what
        self.steps = 0

    def reset(self, seed=None, options=None):
        if self.what == "reset":
            raise RuntimeError("no episode begins")
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        print("a line on standard output")
        self.steps += 1
        if self.steps > AFTER if AFTER >= 0 else action:
            failed = self.fail()
            if failed:
                return failed
        return numpy.ones(2, numpy.float32), 1.0, False, self.steps % 10 == 0, {}

    def fail(self):
        if self.what in ("nan", "inf", "huge"):
            return numpy.ones(2, numpy.float32), {"nan": float("nan"), "inf": float("inf"), "huge": 1e38}[self.what], False, False, {}
        if self.what == "none":
            return numpy.ones(2, numpy.float32), None, False, False, {}
        if self.what == "nan_seen":
            return numpy.array([1.0, numpy.nan], numpy.float32), 1.0, False, False, {}
        if self.what == "shape":
            return numpy.ones(4, numpy.float32), 1.0, False, False, {}
        if self.what == "raise":
            raise ValueError("the pole is on fire")
        if self.what == "exit":
            raise SystemExit(3)
        if self.what == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.what == "hang":
            time.sleep(3600)
        if self.what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


class Slow(gymnasium.Env):
    """Episodes of 100 steps that each take FAULTY_SLEEP seconds; `endless` ones have no end. The second one of a process takes
    FAULTY_MAKING seconds to make."""

    made = 0

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, endless):
        self.endless = endless
        self.steps = 0
        Slow.made += 1
        if Slow.made == 2 and MAKING:
            print("it takes long to make", flush=True)
            time.sleep(MAKING)

    def reset(self, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        time.sleep(SLEEP)
        self.steps += 1
        if self.steps == 1 and os.environ.get("FAULTY_SAYS"):
            print("the first step", flush=True)
        return numpy.ones(2, numpy.float32), 1.0, self.steps == 100 and not self.endless, False, {}


class Meet(gymnasium.Env):
    """A step ends only after another process has begun the step of the same number, which files in FAULTY_MEET record."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.steps = 0

    def reset(self, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        folder, own = os.environ["FAULTY_MEET"], "%d-%d" % (self.steps, os.getpid())
        open(os.path.join(folder, own), "w").close()
        while not any(name.startswith("%d-" % self.steps) and name != own for name in os.listdir(folder)):
            time.sleep(0.002)
        return numpy.ones(2, numpy.float32), 1.0, False, self.steps % 10 == 0, {}


class Spaces(gymnasium.Env):
    """Rewards the action that the first element of the observation names; episodes of 20 steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape, dtype):
        high = 255 if dtype == numpy.uint8 else 1
        self.observation_space = gymnasium.spaces.Box(0, high, shape, dtype)
        self.high = high

    def observe(self):
        self.bit = int(self.np_random.integers(2))
        seen = numpy.zeros(self.observation_space.shape, self.observation_space.dtype)
        seen[...] = self.bit * self.high
        return seen

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        reward = float(action == self.bit)
        return self.observe(), reward, False, self.steps == 20, {}


for name, shape, dtype in (
    ("bytes", (128,), numpy.uint8),
    ("matrix", (3, 4), numpy.float32),
    ("gray", (40, 40), numpy.uint8),
    ("floats", (40, 40, 3), numpy.float32),
    ("pixels", (40, 40, 3), numpy.uint8),
    ("cube", (2, 3, 4, 5), numpy.float32),
):
    gymnasium.register("Spaces-%s-v0" % name, entry_point=lambda shape=shape, dtype=dtype: Spaces(shape, dtype))

gymnasium.register("Meet-v0", entry_point=Meet)
gymnasium.register("Slow-v0", entry_point=lambda: Slow(False))
gymnasium.register("Endless-v0", entry_point=lambda: Slow(True))
for kind in ("reset", "raise", "exit", "segv", "hang", "stop", "never", "nan", "inf", "huge", "none", "nan_seen", "shape"):
    gymnasium.register("Faulty-%s-v0" % kind, entry_point=lambda kind=kind: Faulty(kind))
