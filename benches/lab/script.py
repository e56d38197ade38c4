"""A small data-parallel trainer as people write them for torchrun: it knows nothing of rankdeck.

An environment worker is forked by every rank, as vectorised environments do. `LAB_FAULT=NAME@RANK:STEP` makes one rank misbehave and
`LAB_MODE=NAME` changes how the program works, for the laboratory.
"""
import ctypes, multiprocessing, os, random, signal, sys, threading, time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from faults import FAULTS

NOTHING = ("", -1, -1)


def fault():
    text = os.environ.get("LAB_FAULT", "")
    if not text:
        return NOTHING
    name, _, target = text.partition("@")
    rank, _, step = target.partition(":")
    return name, int(rank), int(step)


def environment(pipe, seed):
    chance = random.Random(seed)
    while True:
        question = pipe.recv()
        if question is None:
            return
        time.sleep(0.005)
        pipe.send([chance.random() for _ in range(64)])


ROWS, LOCK = [1.0, 2.0], threading.Lock()


def gather(indices):
    with LOCK:
        return [row(index) for index in indices]


def row(index):
    with LOCK:
        return ROWS[index]


# Called in the place of the exchange of losses.
INSTEAD = ("op", "count")
# All ranks have a part in it.
OF_ALL = ("order", "recv", "irecv")


def strike(name, rank, victim, groups):
    print(f"inject: {name} strikes in iteration 0 at {time.time():.3f}", file=sys.stderr, flush=True)
    if name in FAULTS:
        FAULTS[name]()
    if name == "raise":
        raise ValueError("injected failure in the loss of a minibatch")
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "exit":
        os._exit(3)
    if name in ("recv", "irecv") and rank == (victim + 1) % dist.get_world_size():
        # From a rank that never sends.
        waits = dist.irecv(torch.zeros(4), src=victim) if name == "irecv" else dist.recv(torch.zeros(4), src=victim)
        waits.wait()
    if name == "lock" or name in ("recv", "irecv") and rank == victim:
        gather([0, 1])
    if name == "gil":
        # PyDLL keeps the interpreter lock during the call.
        ctypes.PyDLL(None).sleep(1000)
    if name == "spin":
        while True:
            pass
    if name == "sleep":
        time.sleep(1000)
    if name == "leave":
        os._exit(0)
    if name == "op":
        dist.broadcast(torch.zeros(1), 0)
    if name == "count":
        dist.all_reduce(torch.zeros(3))
    if name == "order":
        # Every other rank uses its two groups the other way round.
        for group in (groups if rank % 2 == 0 else groups[::-1]):
            dist.all_reduce(torch.zeros(8), group=group)


def main():
    name, victim, at = fault()
    mode = os.environ.get("LAB_MODE", "")
    steps = int(os.environ.get("LAB_STEPS", "1000000"))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    if name.startswith("init-") and rank == victim:
        # Behind the rendezvous, before the group is there.
        dist.distributed_c10d._new_process_group_helper = lambda *_, **__: strike(name.removeprefix("init-"), rank, victim, [])
    if name.startswith("join-") and rank == victim:
        own = {"join-port": "MASTER_PORT", "join-world": "WORLD_SIZE"}[name]
        os.environ[own] = str(int(os.environ[own]) + 1)
    dist.init_process_group("gloo")
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    pair = dist.new_group([0, 1])
    pipe, other = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=environment, args=(other, rank), daemon=True)
    worker.start()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        if mode != "fast":
            pipe.send(step)
            batch = torch.tensor(pipe.recv()).reshape(1, 64)
            time.sleep(0.02)
        else:
            batch = torch.ones(1, 64)
        struck = step == at and (rank == victim or name in OF_ALL)
        if struck and name not in INSTEAD:
            strike(name, rank, victim, groups)
        loss = model(batch).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if struck and name in INSTEAD:
            strike(name, rank, victim, groups)
        else:
            dist.all_reduce(torch.tensor([float(loss.detach())]))
        if mode == "groups" and rank in (0, 1):
            for _ in range(3):
                dist.all_reduce(torch.ones(4), group=pair)
        if mode == "evaluate" and step == 40 and rank == 0:
            # Rank 0 evaluates for a long time and says nothing meanwhile; the others wait in the next
            # collective.
            until = time.time() + 60
            while time.time() < until:
                torch.ones(64, 64) @ torch.ones(64, 64)
        if step % 10 == 0 and rank == 0:
            print(f"iteration {step}", flush=True)
    pipe.send(None)
    if mode == "finish":
        # Ranks end within five seconds of each other, all with code 0.
        time.sleep(random.Random(time.time_ns() ^ rank).uniform(0, 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
