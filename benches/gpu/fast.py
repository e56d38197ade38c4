"""Speed, compared with PyTorch."""

import glob
import json
import os
import struct
import sys
import time

from machine import KIT, stage


def rate(machine, experiment, ranks, seconds):
    """Environment steps per second of a run."""
    run = machine.start(experiment, ranks)
    # The first ones are slower. In a rehearsal it is enough that there are some.
    warm = 6 if machine.options.quick >= 1 else 1
    run.wait(lambda: run.of("progress") and run.of("progress")[-1]["train_iter"] >= warm, 60 * machine.patience())
    time.sleep(max(0, min(seconds * machine.options.quick, machine.left() - 15)))
    run.wait(lambda: run.steps_per_second(warm // 2) is not None, 30 * machine.patience())
    progress = run.of("progress")
    entry = {
        "steps_per_s": run.steps_per_second(warm // 2),
        "per_rank": progress[-1]["per_rank"] if progress else None,
        "shown": [[(rank["gpu_percent"], rank["gpu_memory"]) for rank in line["per_rank"]] for line in progress[-12:]],
        "summary": run.summary(),
    }
    run.stop()
    return entry


def last_object(done):
    """The last JSON object that a program printed, or its whole output."""
    lines = [line for line in done["out"].splitlines() if line[:1] in ("{", "[")]
    for line in reversed(lines if done["code"] == 0 else []):
        try:
            return json.loads(line)
        except ValueError:
            pass  # A warning of torch's begins with a bracket, too.
    return done


def counted(path):
    """What cudacount.c wrote of a process: (calls, milliseconds) by name; none where it has launched nothing."""
    rows = {name.rstrip(b"\0").decode(): (calls, round(spent / 1e6, 1)) for name, calls, spent in struct.iter_unpack("<24sqq", open(path, "rb").read())}
    return [rows] if rows["launch"][0] else []


GRAPHS = "cuda_graphs = true"


@stage(190)
def pong(machine, found):
    """Steps per second on pixels, compared with CleanRL's update on the same emulator."""
    # In a rehearsal, which has few environments, some rows are the same.
    rows = {}
    for name, envs, threads, ranks, seconds, policy, collect in (
        ("8 envs, call by call", 8, 0, 1, 12, "", ""),
        ("8 envs", 8, 0, 1, 16, GRAPHS, ""),
        ("8 envs, in halves", 8, 0, 1, 12, GRAPHS, "double_buffer = true"),
        ("8 envs, 1 thread", 8, 1, 1, 8, GRAPHS, ""),
        ("64 envs", 64, 0, 1, 16, GRAPHS, ""),
        ("64 envs, in halves", 64, 0, 1, 12, GRAPHS, "double_buffer = true"),
        ("8 envs, 2 ranks on one GPU", 8, 0, 2, 10, GRAPHS, ""),
    ):
        row = (machine.envs(envs), threads, ranks, policy, collect)
        if row not in rows:
            experiment = machine.pong(f"pong{len(found)}", 10 ** 8, envs, threads, policy, collect)
            rows[row] = rate(machine, experiment, ranks, seconds)
        found[name] = rows[row]
        machine.save()
    for mode, threads, envs, ranks in (("eager", 8, 8, 1), ("graph", 8, 8, 1), ("graph", 14, 64, 1), ("eager", 8, 4, 2)):
        row = (mode, min(threads, os.cpu_count()), machine.envs(envs), ranks)
        if row not in rows:
            seconds = str(14 * machine.options.quick)
            command = [sys.executable, str(KIT / "baseline.py"), mode, seconds, *map(str, row[1:3])]
            each = [last_object(done) for done in machine.ranks(command, ranks, 60)]
            sums = {"steps_per_s": sum(one.get("steps_per_s", 0) for one in each), "ranks": each}
            rows[row] = each[0] if ranks == 1 else sums
        name = f"CleanRL {mode}, {envs * ranks} envs" + (f", DDP over {ranks} ranks" if ranks > 1 else "")
        found[name] = rows[row]
        machine.save()


@stage(40)
def all_reduce(machine, found):
    """One all-reduce of two ranks on one GPU: rankdeck's and torch.distributed's; one rank is NCCL's own cost."""
    largest = str(32 << 20 if machine.options.quick >= 1 else 1 << 20)
    for ranks in (1, 2):
        group = [] if ranks == 1 else ["--spawn", str(ranks)]
        # A single rank of the trainer exchanges nothing.
        if ranks > 1:
            done = machine.output([str(machine.trainer), "--all-reduce", largest, "--backend", "nccl", *group], machine.rank_env, 60)
            lines = [line for line in done["out"].splitlines() if line.startswith("{")]
            found[f"rankdeck, {ranks} ranks"] = [json.loads(line) for line in lines] if done["code"] == 0 else done
            machine.save()
        each = machine.ranks([sys.executable, str(KIT / "torch_reduce.py"), largest], ranks, 60)
        found[f"torch.distributed, {ranks} ranks"] = last_object(each[0])
        machine.save()
    ours, theirs = found["rankdeck, 2 ranks"], found["torch.distributed, 2 ranks"]
    if isinstance(ours, list) and isinstance(theirs, list):
        times = {line["bytes"]: line for line in theirs}
        found["rankdeck's time in torch.distributed's"] = {
            line["bytes"]: round(line["queued_us"] / times[line["bytes"]]["queued_us"], 3) for line in ours if line["bytes"] in times
        }


@stage(60)
def rates(machine, found):
    """Environment steps per second of SAC and DQN, each with one update per as many steps as in CleanRL."""
    for name, experiment in (
        ("SAC, call by call", machine.sac("sac", "")),
        ("SAC", machine.sac("sac-graphs", GRAPHS)),
        ("DQN, Pong, call by call", machine.dqn("dqn", "")),
        ("DQN, Pong", machine.dqn("dqn-graphs", GRAPHS)),
    ):
        found[name] = rate(machine, experiment, 1, 8)
        machine.save()


@stage(40)
def small(machine, found):
    """A small network on the GPU and on the CPU."""
    cpu = dict(machine.rank_env, CUDA_VISIBLE_DEVICES="")
    steps = machine.share(300) * 512
    for name, backend, env, policy in (("gpu", "auto", None, ""), ("gpu, graphs", "auto", None, GRAPHS), ("cpu", "tcp", cpu, "")):
        run = machine.train(machine.cartpole("small", steps, backend, policy=policy), env=env)
        found[name] = {"code": run["code"], "seconds": run["seconds"], "tail": run["out"][-160:]}
        machine.save()


@stage(70)
def precision(machine, found):
    """What colours last, bf16 and cuDNN's own choice of algorithms are worth."""
    any_order = "deterministic = false"
    for name, policy in (
        ("as it is", ""),
        ("colours last", "channels_last = true"),
        ("bf16", 'precision = "bf16"'),
        ("colours last, bf16", 'channels_last = true\nprecision = "bf16"'),
        ("any order of sums", any_order),
        ("cuDNN's benchmark", any_order + "\ncudnn_benchmark = true"),
    ):
        experiment = machine.pong(f"precision{len(found)}", 10 ** 8, 64, 0, f"{GRAPHS}\n{policy}")
        found[name] = rate(machine, experiment, 1, 8)
        machine.save()


@stage(25)
def profile(machine, found):
    """Calls of the CUDA runtime, counted and timed; what an all-reduce costs the host."""
    for name, experiment in (
        ("pong", machine.pong("counted", 1024 * machine.share(24))),
        ("pong, graphs", machine.pong("counted", 1024 * machine.share(24), policy=GRAPHS)),
        ("cartpole", machine.cartpole("counted", 512 * machine.share(60))),
    ):
        count = machine.work / f"count-{len(found)}"
        env = dict(machine.rank_env, LD_PRELOAD=str(KIT / "cudacount.so"), CUDACOUNT=str(count))
        run = machine.train(experiment, env=env)
        counts = [rows for path in glob.glob(f"{count}.*") for rows in counted(path)]
        found[name] = {"seconds": run["seconds"], "code": run["code"], "counts": counts, "tail": run["out"][-300:]}
        machine.save()
    found["ncclAllReduce"] = last_object(machine.output([sys.executable, str(KIT / "nccl_call.py")], limit=60))
