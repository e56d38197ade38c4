"""A script as people have them: DDP over NCCL, a step of the optimiser per iteration. Run by rankdeck, which changes nothing in it.

    python3 torch_script.py STEPS [RANK STEP]        RANK leaves the collective of STEP out, and sleeps"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local % torch.cuda.device_count())
torch.cuda.set_device(device)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
stuck = tuple(int(word) for word in sys.argv[2:4])
for step in range(int(sys.argv[1])):
    if stuck == (rank, step):
        time.sleep(3600)
    optimiser.zero_grad()
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    loss.backward()
    optimiser.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    mean.item()
    if step % 10 == 0:
        torch.cuda.synchronize()
        print(f"step {step}", flush=True)
dist.destroy_process_group()
