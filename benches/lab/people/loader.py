"""Supervised training with DistributedDataParallel and a torch DataLoader with worker processes."""
import os, sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import happenings  # noqa: E402

BATCH = 8


class Samples(Dataset):
    """What happens at a step happens in the worker that loads it."""

    def __len__(self):
        return 8_000_000

    def __getitem__(self, index):
        if index % BATCH == 0:
            happenings.happens(index // BATCH, int(os.environ["RANK"]))
        return torch.randn(32), torch.randn(1)


def main():
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    happenings.beside()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=2, prefetch_factor=2)
    for step, (inputs, targets) in enumerate(loader, 1):
        loss = (model(inputs) - targets).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 10 == 0:
            dist.all_reduce(loss.detach())
            if rank == 0:
                print(f"iteration {step}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
