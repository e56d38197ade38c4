"""All-reduces of torch.distributed over NCCL, sizes and ways as `rankdeck-trainer --all-reduce` has them.

python3 torch_reduce.py LARGEST, as one of the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name; rank 0 prints a JSON array."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

# As src/trainer/host_check.rs.
SIZES = [4, 1 << 10, 36_620, 256 << 10, 1 << 20, 6_746_772, 16 << 20, 32 << 20]
WARM, ROUNDS, QUEUED = 5, 50, 20
BYTES, LEAST = 128 << 20, 3


def main():
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    found = []
    for size in (size for size in SIZES if size <= int(sys.argv[1])):
        values, most = torch.zeros(size // 4, device="cuda"), max(BYTES // size, LEAST)
        for _ in range(min(WARM, most)):
            dist.all_reduce(values)
        torch.cuda.synchronize()
        alone, queued = [], []
        for _ in range(min(ROUNDS, most)):
            begun = time.perf_counter()
            dist.all_reduce(values)
            torch.cuda.synchronize()
            alone.append(time.perf_counter() - begun)
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(min(QUEUED, most)):
                dist.all_reduce(values)
            torch.cuda.synchronize()
            queued.append((time.perf_counter() - begun) / min(QUEUED, most))
        median = lambda times: round(sorted(times)[len(times) // 2] * 1e6, 2)
        found.append({"bytes": size, "us": median(alone), "queued_us": median(queued)})
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print(json.dumps(found))


main()
