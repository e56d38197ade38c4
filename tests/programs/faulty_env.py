"""Gymnasium environments that fail in known ways, for tests and for the fault laboratory: `env.id = "faulty_env:Faulty-hang-v0"` with
this folder in PYTHONPATH. They fail when FAULTY_AFTER steps were made (default: when action 1 is taken).
"""
import os
import signal
import time

import gymnasium
import numpy

AFTER = int(os.environ.get("FAULTY_AFTER", "-1"))


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
            self.fail()
        return numpy.ones(2, numpy.float32), 1.0, False, self.steps % 10 == 0, {}

    def fail(self):
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


for kind in ("reset", "raise", "exit", "segv", "hang", "stop", "none"):
    gymnasium.register("Faulty-%s-v0" % kind, entry_point=lambda kind=kind: Faulty(kind))
