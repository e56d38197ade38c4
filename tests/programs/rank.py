"""A torchrun-style program without torch, for tests of everything around the trainer.

Every rank counts to --iters, one iteration per --pause seconds, 8 environment steps each, and reports on rankdeck's event socket
as the built-in trainer does. SIGTERM makes it leave with code 0. It can fail, fork workers that ignore SIGTERM, and print.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.05)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--fail-at", type=int, default=0)
parser.add_argument("--fail-how", default="exit:3", help="exit:CODE or signal:NUMBER")
parser.add_argument("--family", action="store_true", help="fork a worker that ignores SIGTERM and a double-forked daemon")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--save", help="write this file every ten iterations and report it as a checkpoint")
parser.add_argument("--silent", action="store_true", help="send nothing on the event socket")
parser.add_argument("--wait-for", default="", help="a file: after 10 iterations, go on once it exists")
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
generation = int(os.environ["RANKDECK_GENERATION"])
# The same with every seed, which sweeps may change.
seed = int(os.environ.get("RANKDECK_SEED", "0"))
stop = False


def on_term(signum, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, signal.SIG_IGN if args.ignore_term else on_term)

if args.family:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        os._exit(0)

events = None
if not args.silent and "RANKDECK_EVENTS" in os.environ:
    events = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    events.connect(os.environ["RANKDECK_EVENTS"])


def send(kind, **fields):
    if events:
        events.sendall((json.dumps({"kind": kind, **fields}) + "\n").encode())


send("hello", rank=rank, generation=generation)
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS", "RANKDECK_RESUME", "GLOO_SOCKET_IFNAME",
         "NCCL_SOCKET_IFNAME"]
print("environment", json.dumps({name: os.environ.get(name) for name in names}), flush=True)
send("joined", world_size=world, backend="none", device="cpu")

finished = "budget"
for i in range(1, args.iters + 1):
    if stop:
        finished = "stopped"
        break
    while args.wait_for and i > 10 and not stop and not os.path.exists(args.wait_for):
        time.sleep(0.01)
    if rank == args.fail_rank and i == args.fail_at:
        how, _, number = args.fail_how.partition(":")
        print("about to fail", file=sys.stderr, flush=True)
        if how == "signal":
            os.kill(os.getpid(), int(number))
        sys.exit(int(number))
    time.sleep(args.pause)
    own = {"train_iter": i, "env_step": 8 * i, "samples": 8 * i, "episodes": i, "duration_s": i * args.pause, "updates": i}
    send("counters", **own)
    if rank == 0:
        send("totals", **{k: v if k in ("train_iter", "updates") else v * world for k, v in own.items()})
        if i % 5 == 0:
            send("eval", env_step=8 * i * world, train_iter=i, episodes=4, return_mean=float(i), return_std=0.5, return_min=0.0,
                return_max=2.0 * i, length_mean=10.0, duration_s=0.01, stop=False)
    if rank == 0 and args.save and i % 10 == 0:
        with open(args.save, "w") as file:
            file.write(str(i))
        send("checkpoint", path=os.path.abspath(args.save), env_step=8 * i * world, train_iter=i, reason="latest")
    if i % 10 == 0:
        print(f"iteration {i}", flush=True)
send("finished", reason=finished)
