"""A third-party script, unchanged: `LAB_SCRIPT` is its file, `LAB_ARGS` its arguments, `LAB_PATH` more folders to import from.

Faults strike before a step of an optimiser; steps are what is counted. Names that Gymnasium has changed since are the new ones.
"""
import os, runpy, shlex, sys

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402


def renamed():
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    names = vars(gymnasium.wrappers)
    for old, new in (("GrayScaleObservation", "GrayscaleObservation"), ("FrameStack", "FrameStackObservation")):
        names.setdefault(old, names[new])


def main():
    script, rank, steps = os.environ["LAB_SCRIPT"], int(os.environ["RANK"]), 0
    sys.path[:0] = [os.path.dirname(script), os.path.dirname(os.path.dirname(script)), *filter(None, os.environ.get("LAB_PATH", "").split(":"))]
    sys.argv = [script, *shlex.split(os.environ.get("LAB_ARGS", ""))]

    def before(*_):
        nonlocal steps
        steps += 1
        happenings.happens(steps, rank)
        if rank == 0 and steps % 10 == 0:
            print(f"iteration {steps}", flush=True)

    register_optimizer_step_pre_hook(before)
    torch.set_num_threads(1)
    renamed()
    happenings.beside()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
