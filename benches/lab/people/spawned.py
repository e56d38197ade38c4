"""One process for each host that spawns its own ranks, as many scripts do with `torch.multiprocessing.spawn`.

`LAB_FAULT=NAME@RANK:STEP` counts these ranks.
"""
import os, socket, sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402

RANKS = 3


def train(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(torch.nn.Linear(32, 1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 1_000_000):
        happenings.happens(step, rank)
        loss = model(torch.randn(64, 32)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 100 == 0:
            print(f"iteration {step}, loss {loss.item():.3f}", flush=True)


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(port,), nprocs=RANKS)


if __name__ == "__main__":
    main()
