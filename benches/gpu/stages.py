"""The stages, most valuable first: (name, seconds, function). Each fills a dictionary as it goes."""

import fcntl
import glob
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

from machine import KIT

STAGES = []


def stage(seconds):
    def keep(function):
        STAGES.append((function.__name__, seconds, function))
        return function
    return keep


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
        found[name] = machine.said(command)["out"]
    found["torch"] = machine.torch


@stage(30)
def load(machine, found):
    """CUDA loads, and one rank trains on it."""
    found["check_gpu"] = machine.said([str(machine.trainer), "--check-gpu"], machine.rank_env, 60)
    if found["check_gpu"]["code"] != 0:
        debug = dict(machine.rank_env, LD_DEBUG="libs")
        found["libraries_tried"] = machine.said([str(machine.trainer), "--check-gpu"], debug, 60)["out"]
    found["trained"] = machine.train(machine.cartpole("load", 2048), limit=90)
    found["on_gpu"] = "on cuda:0" in found["trained"]["out"]
    found["preflight"] = machine.said([str(machine.console), "check", str(machine.cartpole("load", 2048)), "--hosts", str(machine.hosts(1))], limit=60)


@stage(60)
def nccl(machine, found):
    """1, 2 and 4 ranks on one GPU agree, every collective compared."""
    for ranks in (1, 2, 4):
        debug = dict(machine.env, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(machine.work / f"debug{ranks}.%p"))
        run = machine.start(machine.cartpole(f"nccl{ranks}", 4096, "nccl", 40, check="true"), ranks, debug)
        begun = time.monotonic()
        run.wait(lambda: run.of("run_finished"), 50)
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
    """The same seed on CPU and GPU, one rank and two: the largest difference of a weight."""
    cpu = dict(machine.rank_env, CUDA_VISIBLE_DEVICES="")
    for iterations in (1, 4, 16):
        got = {}
        for name, ranks, backend, env in (
            ("cpu1", 1, "gloo", cpu), ("gpu1", 1, "auto", None), ("cpu2", 2, "gloo", cpu), ("gpu2", 2, "nccl", None),
        ):
            run = machine.train(machine.cartpole("equality", iterations * 512, backend, kernel="libtorch"), ranks, env)
            path = os.path.join(run["folder"], "checkpoints/latest.safetensors")
            if run["code"] == 0 and os.path.exists(path):
                got[name] = weights(path)
            else:
                found[f"{name} after {iterations}"] = run
        pairs = [("cpu1", "gpu1"), ("cpu2", "gpu2"), ("gpu1", "gpu2")]
        found[f"{iterations} iterations"] = {
            f"{a}-{b}": largest_difference(got[a], got[b]) for a, b in pairs if a in got and b in got
        }
        machine.save()


def ras(address):
    """What NCCL's RAS says, in both formats, and how long it takes."""
    told = {}
    for name, question in (("json", b"SET FORMAT json\nTIMEOUT 1\nSTATUS\n"), ("text", b"VERBOSE STATUS\n")):
        begun, answer = time.monotonic(), b""
        try:
            with socket.create_connection(address, 3) as connection:
                connection.settimeout(14)
                connection.sendall(question)
                while chunk := connection.recv(65536):
                    answer += chunk
            told[name] = answer.decode(errors="replace")[-6000:]
        except OSError as error:
            told[name] = f"{error}"
        told[f"{name}_s"] = round(time.monotonic() - begun, 2)
    return told


def ras_address(pid):
    try:
        environ = open(f"/proc/{pid}/environ").read().split("\0")
        host, port = next(entry for entry in environ if entry.startswith("NCCL_RAS_ADDR=")).split("=")[1].rsplit(":", 1)
        return host, int(port)
    except (OSError, StopIteration):
        return None


@stage(75)
def hang(machine, found):
    """A rank is frozen, then killed, inside training: what is said, when, and what is left on the GPU."""
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
        entry["left_on_gpu"] = machine.said("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")["out"]
        machine.save()


def rate(machine, name, experiment, ranks, seconds):
    """Steps per second, with what NVML and nvidia-smi show meanwhile."""
    run, smi = machine.start(experiment, ranks), None
    if shutil.which("nvidia-smi"):
        fields = "utilization.gpu,memory.used,power.draw,clocks.sm"
        smi = subprocess.Popen(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", "500"], stdout=subprocess.PIPE, text=True
        )
    run.wait(lambda: run.of("progress") and run.of("progress")[-1]["train_iter"] >= 6, 60 * machine.options.quick)
    time.sleep(max(0, min(seconds * machine.options.quick, machine.left() - 15)))
    progress = run.of("progress")
    entry = {
        "steps_per_s": run.steps_per_second(),
        "per_rank": progress[-1]["per_rank"] if progress else None,
        "shown": [[(rank["gpu_percent"], rank["gpu_memory"]) for rank in line["per_rank"]] for line in progress[-12:]],
        "apps": machine.said("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits")["out"],
        "summary": run.summary(),
    }
    if smi:
        smi.terminate()
        entry["smi"] = smi.communicate()[0].split("\n")[-30:]
    run.stop()
    return entry


@stage(130)
def pong(machine, found):
    """Steps per second on pixels, beside CleanRL's update on the same emulator."""
    for name, envs, threads, ranks, seconds in (
        ("8 envs", 8, 0, 1, 16), ("8 envs, 1 thread", 8, 1, 1, 12), ("64 envs", 64, 0, 1, 16), ("8 envs, 2 ranks on one GPU", 8, 0, 2, 10),
    ):
        found[name] = rate(machine, name, machine.pong(f"pong{len(found)}", 10 ** 8, envs, threads), ranks, seconds)
        machine.save()
    for mode, threads, envs in (("eager", 8, 8), ("graph", 8, 8), ("graph", 14, 64)):
        command = [sys.executable, str(KIT / "baseline.py"), mode, str(14 * machine.options.quick), str(threads), str(envs)]
        found[f"CleanRL {mode}, {envs} envs"] = machine.said(command, limit=60)
        machine.save()


@stage(25)
def profile(machine, found):
    """Calls of the CUDA runtime, counted and timed; what an all-reduce costs the host."""
    for name, experiment in (("pong", machine.pong("counted", 1024 * 24)), ("cartpole", machine.cartpole("counted", 512 * 60))):
        env = dict(machine.rank_env, LD_PRELOAD=str(KIT / "cudacount.so"), CUDACOUNT=str(machine.work / f"count-{name}"))
        run = machine.train(experiment, env=env)
        counts = [open(path).read() for path in glob.glob(str(machine.work / f"count-{name}.*"))]
        found[name] = {"seconds": run["seconds"], "code": run["code"], "counts": counts, "tail": run["out"][-300:]}
        machine.save()
    found["ncclAllReduce"] = machine.said([sys.executable, str(KIT / "nccl_call.py")], limit=60)


@stage(40)
def small(machine, found):
    """A small network on the GPU and on the CPU."""
    cpu = dict(machine.rank_env, CUDA_VISIBLE_DEVICES="")
    for name, backend, env in (("gpu", "auto", None), ("cpu", "gloo", cpu)):
        run = machine.train(machine.cartpole("small", 512 * 300, backend), env=env)
        found[name] = {"code": run["code"], "seconds": run["seconds"], "tail": run["out"][-160:]}
        machine.save()


@stage(30)
def screens(machine, found):
    """The console in a terminal of 140 columns and 40 rows, with four ranks; the bytes and their times are kept."""
    pid, terminal = pty.fork()
    if pid == 0:
        # Before the program asks.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        env = dict(machine.env, TERM="xterm-256color", COLORTERM="truecolor")
        env.pop("NO_COLOR")
        os.chdir(machine.work)
        command = [str(machine.console), "run", str(machine.cartpole("screens", 4_000_000, "nccl")), "--hosts", str(machine.hosts(4))]
        os.execve(command[0], command, env)
    times = []
    with open(machine.options.out / "screens.typescript", "wb") as record:

        def show(seconds, enough=None):
            """Records for so long, or until so many bytes have come; false when the console has ended."""
            begun, count = time.monotonic(), 0
            while time.monotonic() - begun < min(seconds, max(machine.left(), 1)) and (enough is None or count < enough):
                if select.select([terminal], [], [], 0.1)[0]:
                    try:
                        data = os.read(terminal, 65536)
                    except OSError:
                        return False
                    times.append((round(time.monotonic() - machine.begun, 3), len(data)))
                    record.write(data)
                    count += len(data)
            return True

        # The preflight takes its time; a pane that is drawn is a kilobyte and more, and then it lives for a
        # while.
        alive = show(60, enough=4000) and show(4)
        for key in (b"2", b"5", b"1", b"\r", b"\x1b"):
            if alive:
                os.write(terminal, key)
                alive = show(3 * max(machine.options.quick, 0.3))
        for key in (b"q", b"y"):
            if alive:
                os.write(terminal, key)
                alive = show(2 if key == b"q" else 30)
    (machine.options.out / "screens.timing").write_text("".join(f"{at} {count}\n" for at, count in times))
    found["bytes"] = sum(count for _, count in times)
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(pid, 0)
    for run in glob.glob(str(machine.work / "work/runs/screens-*")):
        stopped = machine.said([str(machine.console), "stop", os.path.basename(run), "--hosts", str(machine.hosts(4))], limit=30)
        found[f"stop of {os.path.basename(run)}"] = stopped["code"]
