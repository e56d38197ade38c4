"""A data-parallel trainer that averages its gradients by hand, as CleanRL's multi-GPU scripts do; it knows nothing of rankdeck.

`LAB_FAULT=NAME@RANK:STEP` makes one rank (or all) train something else from a step on, and `LAB_MODE=NAME` changes the program on purpose.
"""
import os, sys, time

import torch
import torch.distributed as dist

from script import fault


class RunningMeanStd(torch.nn.Module):
    """Normalizes by what it has seen, or by what all ranks have."""

    def __init__(self, is_shared):
        super().__init__()
        self.is_shared = is_shared
        self.register_buffer("running_mean", torch.zeros(64))
        self.register_buffer("running_var", torch.ones(64))

    def forward(self, data):
        seen = torch.stack([data.mean(0), data.var(0)])
        if self.is_shared:
            dist.all_reduce(seen)
            seen /= dist.get_world_size()
        self.running_mean = 0.99 * self.running_mean + 0.01 * seen[0]
        self.running_var = 0.99 * self.running_var + 0.01 * seen[1]
        return (data - self.running_mean) / self.running_var.sqrt()


def main():
    name, victim, at = fault()
    mode = os.environ.get("LAB_MODE", "")
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    norm = torch.nn.Identity()
    if name == "own-scale" or mode == "scale":
        norm = RunningMeanStd(is_shared=mode == "scale")
    elif mode == "batch-norm":
        norm = torch.nn.BatchNorm1d(64, affine=False)
    noise = torch.nn.Parameter(torch.zeros(64))
    optimiser = torch.optim.Adam([*model.parameters(), *([noise] if mode == "own-noise" else [])], lr=1e-3)
    chance = torch.Generator().manual_seed(1 + rank)
    for step in range(1, 1_000_000):
        time.sleep(0.02)
        struck = step >= at > 0 and (rank == victim or name == "no-sync")
        if step == at and struck:
            print(f"inject: {name} strikes in iteration 0 at {time.time():.3f}", file=sys.stderr, flush=True)
        loss = (model(norm(torch.randn(32, 64, generator=chance)) + noise) - rank).square().mean()
        optimiser.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if struck and name == "own-gradient":
                dist.all_reduce(torch.zeros_like(parameter.grad))
            elif name == "never-sync" or struck and name == "no-sync":
                continue
            else:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        if struck and name == "nan":
            model[0].weight.grad.fill_(float("nan"))
        skips = struck and (name == "idle" or name == "skip-step" and step == at)
        # A gradient that is infinite on all ranks, as mixed precision meets now and then.
        if not skips and not (mode == "scaler" and step % 7 == 0):
            optimiser.step()
        dist.all_reduce(loss.detach())
        if step % 10 == 0 and rank == 0:
            print(f"iteration {step}", flush=True)


if __name__ == "__main__":
    main()
