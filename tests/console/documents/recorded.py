"""The rank whose run becomes the examples of docs/json.md: it reports, prints, and rank 1 kills itself once."""
import json
import os
import signal
import socket
import time

# A PNG of one pixel.
PICTURE = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==")

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
generation = int(os.environ["RANKDECK_GENERATION"])
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["RANKDECK_EVENTS"])


def send(kind, **fields):
    agent.sendall((json.dumps({"kind": kind, **fields}) + "\n").encode())


send("hello", rank=rank, generation=generation)
send("joined", world_size=world, backend="tcp", device="cpu")
print("collecting with 4 environments", flush=True)
for i in range(1, 11):
    time.sleep(0.1)
    own = {"train_iter": i, "env_step": 512 * i, "samples": 512 * i, "episodes": 20 * i, "duration_s": 0.0625 * i}
    returns = {"sum": 980.0, "count": 40, "min": 9.0, "max": 61.0}
    send("counters", **own, updates=16 * i)
    if rank == 0:
        totals = {name: value * (1 if name == "train_iter" else world) for name, value in own.items()}
        send("totals", **totals, updates=16 * i, returns=returns, return_last_100=23.75)
        print(f"global_step={512 * i}, episodic_return=21.5", flush=True)
        print(f"loss={0.5 / i:.3f}, grad_norm={i / 8:.3f}", flush=True)
    if rank == 0 and i == 5:
        folder = os.environ["RANKDECK_RUN_DIR"]
        send("eval", train_iter=i, env_step=1024 * i, episodes=20, return_mean=487.5, return_std=21.25, return_min=402.0,
             return_max=500.0, length_mean=487.5, duration_s=0.25, stop=False)
        send("histogram", name="actions", train_iter=i, env_step=1024 * i, edges=[-0.5, 0.5, 1.5], counts=[310, 202])
        send("image", name="seen", train_iter=i, env_step=1024 * i, data=PICTURE)
        send("evaluation", train_iter=i)  # no such kind
        os.makedirs(f"{folder}/checkpoints", exist_ok=True)
        with open(f"{folder}/checkpoints/best", "w") as file:
            file.write("weights")
        send("checkpoint", path=f"{folder}/checkpoints/best", env_step=1024 * i, train_iter=i, reason="best")
    if rank == 1 and generation == 0 and i == 8:
        os.kill(os.getpid(), signal.SIGKILL)
send("finished", reason="budget")
