#!/usr/bin/env python3
"""A rank dies and the run does not (`distributed.on_rank_loss = "shrink"`): seconds until the next iteration, steps lost, totals, weights.

    cargo build --release --bin rankdeck-trainer
    python3 benches/rank_loss.py [--kills 20] [--cuts 3] [--ranks 3] [--config configs/cartpole_ppo.toml] [--trainer PATH] [--json FILE]

Starts the ranks of one run directly, as agents do, with the event socket of each read here. Ranks are spread over two hosts: network
namespaces with a cable between them (needs root and `ip`); `--hosts 1` uses this machine's loopback. Again and again, a random rank (rank 0
among them) is killed by SIGKILL, and started again to join. `--cuts` pulls the cable instead, so that the hosts lose each other.

For each loss: seconds from the kill to the report of the new group and to the end of its first iteration, steps discarded; then for the rank that
joins: seconds from the start of its process to the end of the first iteration with it. A loss fails if totals are not the number of iterations
times the steps of one, if the weights of the ranks differ in any report, or if a rank ends that was not killed.
"""
import argparse
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUND_S = 60
LOST_AFTER_S = 5.0
SPACES = ("rank_loss0", "rank_loss1")
ADDRESSES = ("10.77.31.1", "10.77.31.2")


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Network:
    """One or two hosts."""

    def __init__(self, hosts):
        self.hosts = hosts
        if hosts == 1:
            return
        self.close()
        for space, address in zip(SPACES, ADDRESSES):
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "link", "add", "cable", "netns", SPACES[0], "type", "veth", "peer", "name", "cable", "netns", SPACES[1])
        for space, address in zip(SPACES, ADDRESSES):
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "cable")
            run("ip", "-n", space, "link", "set", "cable", "up")

    def prefix(self, host):
        return [] if self.hosts == 1 else ["ip", "netns", "exec", SPACES[host]]

    def address(self):
        return "127.0.0.1" if self.hosts == 1 else ADDRESSES[0]

    def cut(self, whole):
        """Loses all packets on the cable without an error, or carries them again: they go to an address that no card has."""
        for space, other in zip(SPACES, reversed(ADDRESSES)):
            entry = ("del", other) if whole else ("replace", other, "lladdr", "02:00:00:00:00:01", "nud", "permanent")
            run("ip", "-n", space, "neighbor", *entry, "dev", "cable")

    def close(self):
        if self.hosts == 2:
            for space in SPACES:
                run("ip", "netns", "del", space, check=False)


class Rank:
    """A process, and what it has reported: (time, event) in order."""

    def __init__(self, world, rank, join=None):
        self.world, self.rank, self.events = world, rank, []
        self.started = time.monotonic()
        self.socket = world.folder / f"events{rank}.{time.monotonic_ns()}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket))
        listener.listen(4)
        threading.Thread(target=self.read, args=(listener,), daemon=True).start()
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(rank), MASTER_ADDR=world.network.address(),
                           MASTER_PORT=str(world.port), RANKDECK_EVENTS=str(self.socket), RANKDECK_SECRET=world.secret, OMP_NUM_THREADS="1",
                           RANKDECK_RUN_DIR=str(world.folder / f"host{world.host(rank)}"), CUDA_VISIBLE_DEVICES="", **(join or {}))
        self.log = open(world.folder / f"rank{rank}.log", "ab")
        self.process = subprocess.Popen([*world.network.prefix(world.host(rank)), world.trainer, "--config", str(world.config)], env=environment,
                                        stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        world.started.append(self)

    def read(self, listener):
        while True:
            connection, _ = listener.accept()
            for line in connection.makefile(encoding="utf-8"):
                with self.world.changed:
                    self.events.append((time.monotonic(), json.loads(line)))
                    self.world.changed.notify_all()

    def kill(self):
        # `ip netns exec` replaces itself by the trainer.
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def first(self, since, kind, fits=lambda event: True):
        """(time, event) of the first such event that arrived after `since`."""
        return next(((at, event) for at, event in list(self.events) if at > since and event["kind"] == kind and fits(event)), None)


class World:
    def __init__(self, arguments, folder):
        self.folder, self.size, self.trainer = folder, arguments.ranks, arguments.trainer
        self.network = Network(arguments.hosts)
        self.secret, self.changed = secrets.token_hex(32), threading.Condition()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        text = re.sub(r"(?m)^\[(eval|checkpoint|distributed|watch)\]\n(?:(?!\[).*\n?)*", "", pathlib.Path(arguments.config).read_text())
        text = re.sub(r"(?m)^total_steps *=.*$", "total_steps = 1_000_000_000_000", text)
        text = re.sub(r"(?m)^num_envs *=.*$", f"num_envs = {arguments.envs}", text)
        self.config = folder / "experiment.toml"
        self.config.write_text(text + f"""
[eval]
every = 0
[checkpoint]
every = 0
[distributed]
backend = "tcp"
on_rank_loss = "shrink"
[watch]
lost_after_s = {LOST_AFTER_S}
""")
        steps = re.search(r"(?m)^num_steps *= *(\d+)", text)
        self.batch = arguments.envs * (int(steps[1]) if steps else 128)
        self.started = []
        self.ranks = {rank: Rank(self, rank) for rank in range(self.size)}

    def host(self, rank):
        """The last third of the ranks is on the second host."""
        return 0 if self.network.hosts == 1 else int(rank >= self.size - self.size // 3)

    def reporter(self, ranks=None):
        return self.ranks[min(ranks or self.ranks)]

    def wait(self, what, found, bound=BOUND_S):
        deadline = time.monotonic() + bound
        with self.changed:
            while not (value := found()):
                if time.monotonic() > deadline or any(rank.process.poll() is not None for rank in self.ranks.values()):
                    raise SystemExit(f"rank_loss: no {what}; logs in {self.folder}")
                self.changed.wait(0.05)
        return value

    def iterated(self, ranks, since):
        """The end of the first iteration of a group of these ranks, and the report of the group."""
        reporter = self.reporter(ranks)
        change = lambda: reporter.first(since, "membership", lambda event: event["ranks"] == sorted(ranks))
        formed, event = self.wait(f"group of ranks {sorted(ranks)}", change)
        ended, totals = self.wait("iteration of the group", lambda: reporter.first(formed, "totals"))
        problems = []
        if event["steps"] != event["iteration"] * self.batch or totals["env_step"] != totals["train_iter"] * self.batch:
            problems.append(f"totals {totals['env_step']} after iteration {totals['train_iter']}")
        prints = self.wait("fingerprints", lambda: reporter.first(formed, "fingerprint"))[1]
        if not prints["equal"] or len(prints["values"]) != len(ranks):
            problems.append(f"weights {prints['values']}")
        return formed, ended, event, problems

    def join(self, rank, event):
        joiner = Rank(self, rank, dict(RANKDECK_JOIN=str(event["epoch"]), RANKDECK_STORE=event["store"]))
        before = set(self.ranks)
        self.ranks[rank] = joiner
        _, ended, event, problems = self.iterated(before | {rank}, joiner.started)
        return dict(joined=rank, until_iteration_s=ended - joiner.started, regroup_s=event["seconds"], steps_lost=event["steps_lost"],
                    problems=problems), event

    def unequal(self):
        return sum(not event["equal"] for rank in self.ranks.values() for _, event in rank.events if event["kind"] == "fingerprint")

    def close(self):
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGTERM)
        codes = [rank.process.wait(30) for rank in self.ranks.values()]
        self.network.close()
        return codes


def shown(result):
    what = next(f"{name} {result[name]}" for name in ("killed", "cut", "joined") if name in result)
    times = ", ".join(f"{name[:-2].replace('_', ' ')} {result[name]:.3f} s" for name in ("until_group_s", "until_iteration_s", "regroup_s") if name in result)
    return f"{what}: {times}, {result['steps_lost']} steps discarded" + "".join(f"; WRONG: {problem}" for problem in result["problems"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=0, help="cables pulled between the hosts, after the kills")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--envs", type=int, default=12, help="environments over all ranks; divisible by the ranks and by one less")
    parser.add_argument("--hosts", type=int, default=2, choices=(1, 2))
    parser.add_argument("--config", default=str(ROOT / "configs/cartpole_ppo.toml"))
    parser.add_argument("--trainer", default=str(ROOT / "target/release/rankdeck-trainer"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    choice = random.Random(arguments.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rank_loss"))
    world, results = World(arguments, folder), []
    try:
        everyone = set(range(arguments.ranks))
        world.wait("progress", lambda: world.reporter().first(0, "totals", lambda event: event["train_iter"] > 20))
        for number in range(arguments.kills):
            time.sleep(choice.uniform(0.2, 1.0))
            # Rank 0 is one in three at least.
            victim = 0 if number % 3 == 0 else choice.randrange(arguments.ranks)
            lost = world.ranks.pop(victim)
            at = time.monotonic()
            lost.kill()
            formed, ended, event, problems = world.iterated(everyone - {victim}, at)
            results.append(dict(killed=victim, until_group_s=formed - at, until_iteration_s=ended - at, regroup_s=event["seconds"],
                                steps_lost=event["steps_lost"], problems=problems))
            print(shown(results[-1]), flush=True)
            time.sleep(choice.uniform(0.1, 0.5))
            result, _ = world.join(victim, event)
            results.append(result)
            print(shown(result), flush=True)
        for _ in range(arguments.cuts if arguments.hosts == 2 else 0):
            away = {rank for rank in everyone if world.host(rank) == 1}
            lost = [world.ranks.pop(rank) for rank in away]
            at = time.monotonic()
            world.network.cut(False)
            formed, ended, event, problems = world.iterated(everyone - away, at)
            codes = [rank.process.wait(BOUND_S) for rank in lost]
            if codes != [75] * len(codes):
                problems.append(f"ranks on the other side ended with {codes}")
            results.append(dict(cut=sorted(away), until_group_s=formed - at, until_iteration_s=ended - at, regroup_s=event["seconds"],
                                steps_lost=event["steps_lost"], problems=problems))
            print(shown(results[-1]), flush=True)
            world.network.cut(True)
            for rank in sorted(away):
                result, event = world.join(rank, event)
                results.append(result)
                print(shown(result), flush=True)
        unequal = world.unequal()
        codes = world.close()
    finally:
        # A rank that was cut off belongs to no group, and may still run.
        for rank in world.started:
            rank.process.kill()
        world.network.close()
    for name, kind in (("kill", "killed"), ("cut", "cut"), ("join", "joined")):
        some = [result for result in results if kind in result]
        if some:
            seconds = [result["until_iteration_s"] for result in some]
            steps = [result["steps_lost"] for result in some]
            print(f"{len(some)} {name}s: seconds until the next iteration: median {statistics.median(seconds):.3f}, most {max(seconds):.3f}"
                  f"; steps discarded: median {statistics.median(steps):.0f}, most {max(steps)}")
    wrong = sum(bool(result["problems"]) for result in results)
    print(f"{wrong} of {len(results)} changes wrong, {unequal} reports of unequal weights, exit codes at the stop {codes}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if wrong or unequal or any(codes):
        print(f"logs in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
