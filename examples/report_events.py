"""Reports to rankdeck without its module: counters of every rank, totals and evaluations of rank 0."""
import json
import os
import socket
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["RANKDECK_EVENTS"])


def send(kind, **fields):
    agent.sendall((json.dumps({"kind": kind, **fields}) + "\n").encode())


send("hello", rank=rank, generation=int(os.environ["RANKDECK_GENERATION"]))
send("joined", world_size=world, backend="none", device="cpu")
for i in range(1, 21):
    time.sleep(0.1)  # one iteration of training: eight steps, one episode
    send("counters", train_iter=i, env_step=8 * i, samples=8 * i, episodes=i, duration_s=0.1 * i)
    if rank == 0:  # here every rank makes the same steps; a real program all-reduces its counters
        send("totals", train_iter=i, env_step=8 * i * world, samples=8 * i * world, episodes=i * world,
             duration_s=0.1 * i * world)
    if rank == 0 and i % 10 == 0:
        send("eval", train_iter=i, env_step=8 * i * world, episodes=2, return_mean=float(i), return_std=1.0,
             return_min=i - 1.0, return_max=i + 1.0, length_mean=8.0, duration_s=0.01, stop=False)
send("finished", reason="budget")
