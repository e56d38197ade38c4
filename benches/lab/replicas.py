"""A data-parallel trainer that averages its gradients by hand, as CleanRL's multi-GPU scripts do; it knows nothing of rankdeck.

`LAB_FAULT=NAME@RANK:STEP` makes one rank (or all) train something else from a step on, and `LAB_MODE=NAME` changes the program on purpose.
"""
import os, sys, time

import torch
import torch.distributed as dist

from script import fault


def main():
    name, victim, at = fault()
    mode = os.environ.get("LAB_MODE", "")
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    noise = torch.nn.Parameter(torch.zeros(64))
    optimiser = torch.optim.Adam([*model.parameters(), *([noise] if mode == "own-noise" else [])], lr=1e-3)
    chance = torch.Generator().manual_seed(1 + rank)
    for step in range(1, 1_000_000):
        time.sleep(0.02)
        struck = step >= at > 0 and (rank == victim or name == "no-sync")
        if step == at and struck:
            print(f"inject: {name} strikes in iteration 0 at {time.time():.3f}", file=sys.stderr, flush=True)
        loss = (model(torch.randn(32, 64, generator=chance) + noise) - rank).square().mean()
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
        # A gradient that is infinite on all ranks, as mixed precision meets now and then.
        if not (struck and name == "skip-step") and not (mode == "scaler" and step % 7 == 0):
            optimiser.step()
        dist.all_reduce(loss.detach())
        if step % 10 == 0 and rank == 0:
            print(f"iteration {step}", flush=True)


if __name__ == "__main__":
    main()
