"""Whether it works: the machine, CUDA, NCCL, equality with the CPU, hangs."""

import glob
import json
import os
import signal
import socket
import struct
import time

from machine import stage


@stage(5)
def environment(machine, found):
    """Driver, GPUs, libraries, limits."""
    fields = "index,name,uuid,pci.bus_id,memory.total,driver_version,compute_mode,mig.mode.current,persistence_mode"
    for name, command in {
        "smi": "nvidia-smi",
        "gpus": f"nvidia-smi --query-gpu={fields} --format=csv",
        "topology": "nvidia-smi topo -m",
        "libraries": "ldconfig -p | grep -E 'libcuda.so|nvidia-ml|libnccl'; echo LD_LIBRARY_PATH=$LD_LIBRARY_PATH",
        "system": "ldd --version | head -1; nproc; free -g | head -2; uname -r; id -u; ulimit -l; df -h /dev/shm | tail -1",
        "linked": f"ldd {machine.trainer} | grep -E 'not found|torch|c10'",
    }.items():
        found[name] = machine.output(command)["out"]
    found["torch"] = machine.torch


@stage(30)
def load(machine, found):
    """CUDA loads, and one rank trains on it."""
    found["check_gpu"] = machine.output([str(machine.trainer), "--check-gpu"], machine.rank_env, 60)
    if found["check_gpu"]["code"] != 0:
        debug = dict(machine.rank_env, LD_DEBUG="libs")
        found["libraries_tried"] = machine.output([str(machine.trainer), "--check-gpu"], debug, 60)["out"]
    found["trained"] = machine.train(machine.cartpole("load", 2048), limit=90)
    found["on_gpu"] = "on cuda:0" in found["trained"]["out"]
    found["preflight"] = machine.output([str(machine.console), "check", str(machine.cartpole("load", 2048)), "--hosts", str(machine.hosts(1))], limit=60)


@stage(60)
def nccl(machine, found):
    """1, 2 and 4 ranks on one GPU agree, every collective compared."""
    for ranks in (1, 2, 4):
        debug = dict(machine.env, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(machine.work / f"debug{ranks}.%p"))
        run = machine.start(machine.cartpole(f"nccl{ranks}", 512 * machine.share(8), "nccl", 40, check="true"), ranks, debug)
        begun = time.monotonic()
        run.wait(lambda: run.of("run_finished"), 50 * machine.patience())
        found[f"{ranks} ranks"] = dict(run.summary(), seconds=round(time.monotonic() - begun, 1))
        run.stop()
        machine.save()
    logs = sorted(glob.glob(str(machine.work / "debug2.*")))[:2]
    found["debug"] = "".join(open(log, errors="replace").read()[-2500:] for log in logs)


def weights(path):
    """The arrays of a safetensors file, as tuples of floats."""
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    arrays = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            arrays[name] = struct.unpack(f"<{(end - start) // 4}f", data[8 + length + start:8 + length + end])
    return arrays


def largest_difference(one, other):
    return max((abs(a - b) for name in one for a, b in zip(one[name], other[name])), default=0.0)


@stage(40)
def equality(machine, found):
    """The same seed on CPU and GPU, one rank and two, and once more: the largest difference of a weight."""
    cpu = dict(machine.rank_env, CUDA_VISIBLE_DEVICES="")
    for iterations in (1, 4, 16):
        got = {}
        for name, ranks, backend, env in (
            ("cpu1", 1, "tcp", cpu), ("gpu1", 1, "auto", None), ("cpu2", 2, "tcp", cpu), ("gpu2", 2, "nccl", None), ("again", 1, "auto", None),
        ):
            run = machine.train(machine.cartpole("equality", iterations * 512, backend, kernel="libtorch"), ranks, env)
            path = os.path.join(run["folder"], "checkpoints/latest.safetensors")
            if run["code"] == 0 and os.path.exists(path):
                got[name] = weights(path)
            else:
                found[f"{name} after {iterations}"] = run
        pairs = [("cpu1", "gpu1"), ("cpu2", "gpu2"), ("gpu1", "gpu2"), ("gpu1", "again")]
        found[f"{iterations} iterations"] = {
            f"{a}-{b}": largest_difference(got[a], got[b]) for a, b in pairs if a in got and b in got
        }
        machine.save()


def ras(address):
    """What NCCL's RAS says, in both formats, and how long it takes."""
    replies = {}
    for name, question in (("json", b"SET FORMAT json\nTIMEOUT 1\nSTATUS\n"), ("text", b"VERBOSE STATUS\n")):
        begun, answer = time.monotonic(), b""
        try:
            with socket.create_connection(address, 3) as connection:
                connection.settimeout(14)
                connection.sendall(question)
                while chunk := connection.recv(65536):
                    answer += chunk
            replies[name] = answer.decode(errors="replace")[-6000:]
        except OSError as error:
            replies[name] = f"{error}"
        replies[f"{name}_s"] = round(time.monotonic() - begun, 2)
    return replies


def ras_address(pid):
    try:
        environ = open(f"/proc/{pid}/environ").read().split("\0")
        host, port = next(entry for entry in environ if entry.startswith("NCCL_RAS_ADDR=")).split("=")[1].rsplit(":", 1)
        return host, int(port)
    except (OSError, StopIteration):
        return None


@stage(75)
def hang(machine, found):
    """A rank is frozen, then killed, inside training: what is reported, when, and what is left on the GPU."""
    for what, number in (("frozen", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        run = machine.start(machine.cartpole(what, 4_000_000, "nccl", 25), 2)
        entry = found[what] = {"trained": run.wait(lambda: len(run.of("progress")) > 6, 40)}
        if entry["trained"] and 1 in run.pids:
            address = ras_address(run.pids.get(0))
            entry["ras_healthy"] = ras(address) if address else None
            os.kill(run.pids[1], number)
            since = time.monotonic()
            run.wait(lambda: any(line["rank"] == 1 for line in run.of("verdict")), 12)
            if what == "frozen" and address:
                entry["ras_stuck"] = ras(address)
            run.wait(lambda: run.of("run_finished"), 45 * machine.options.quick)
            entry["verdicts"] = run.verdicts(since)
            entry["end_after_s"] = round(time.monotonic() - since, 1)
        entry["summary"] = run.summary()
        run.stop()
        entry["left_on_gpu"] = machine.output("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")["out"]
        machine.save()
