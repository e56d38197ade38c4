"""What people see: the console in a terminal, the GPU's figures, a script of their own."""

import fcntl
import glob
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time

from machine import KIT, LEASE, end, interrupt, stage

SMI = "utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm"


def mean(values):
    values = [value for value in values if value is not None]
    return round(sum(values) / len(values), 1) if values else None


def number(text):
    try:
        return float(text)
    except ValueError:
        return None  # [N/A]


@stage(25)
def nvml(machine, found):
    """What rankdeck shows of a busy GPU, and nvidia-smi at the same time."""
    run, smi = machine.start(machine.pong("nvml", 10 ** 8), 2), None
    warm = 4 if machine.options.quick >= 1 else 1
    run.wait(lambda: len(run.of("progress")) > warm, 60)
    if shutil.which("nvidia-smi"):
        smi = machine.begin(
            ["nvidia-smi", "-i", "0", f"--query-gpu={SMI}", "--format=csv,noheader,nounits", "-lms", "500"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=machine.env,
        )
    since = len(run.of("progress"))
    expected = max(3, int(10 * machine.options.quick))
    run.wait(lambda: len(run.of("progress")) >= since + expected, 30)
    shown = [rank for line in run.of("progress")[since:] for rank in line["per_rank"]]
    gpus = [rank["gpu"] for rank in shown if rank["gpu"]]
    found["rankdeck"] = {
        "gpu_percent of a rank": mean(rank["gpu_percent"] for rank in shown),
        "gpu_memory of a rank, MiB": mean((rank["gpu_memory"] or 0) / 2 ** 20 for rank in shown),
        "power_w": mean(gpu["power_w"] for gpu in gpus),
        "temperature_c": mean(gpu["temperature_c"] for gpu in gpus),
        "sm_clock_mhz": mean(gpu["sm_clock_mhz"] for gpu in gpus),
        "latest": gpus[-1] if gpus else None,
    }
    found["apps"] = machine.output("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits")["out"]
    found["pids"] = dict(run.pids)
    if smi:
        end(smi)
        rows = [[number(field.strip()) for field in line.split(",")] for line in smi.communicate()[0].splitlines() if line.strip()]
        machine.forget(smi)
        found["nvidia-smi"] = {name: mean(row[at] for row in rows if len(row) > at) for at, name in enumerate(SMI.split(","))}
    found["summary"] = run.summary()
    run.stop()


@stage(90)
def script(machine, found):
    """A script of torchrun's over NCCL, as it is: what the hook shows of it, and who is named when a rank leaves a collective out."""
    def start(name, *words):
        path = machine.work / f"{name}.toml"
        command = [sys.executable, str(KIT / "torch_script.py"), *map(str, words)]
        path.write_text(f'[run]\nname = "{name}"\n{LEASE}command = {command!r}\n')
        return machine.start(path, 2)

    run = start("script", max(40, int(400 * machine.options.quick)))
    run.wait(lambda: run.of("run_finished"), 40 * machine.patience())
    found["runs"] = dict(run.summary(), lines=[line["line"] for line in run.of("log")][-4:])
    run.stop()
    machine.save()
    run = start("stuck", 10 ** 6, 1, 20)
    begun = time.monotonic()
    run.wait(lambda: run.of("verdict"), 75 * machine.options.quick)
    run.wait(lambda: any(line["rank"] == 1 for line in run.of("verdict")), 10 * machine.options.quick)
    found["a rank leaves one out"] = {"verdicts": run.verdicts(begun), "summary": run.summary()}
    run.stop()


@stage(30)
def screens(machine, found):
    """The console in a terminal of 140 columns and 40 rows, with four ranks (a rehearsal: two); the bytes and
    their times are kept."""
    hosts = str(machine.hosts(4 if machine.options.quick >= 1 else 2))
    terminal, side = pty.openpty()
    # Before the program asks.
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    env = dict(machine.env, TERM="xterm-256color", COLORTERM="truecolor")
    env.pop("NO_COLOR")
    command = [str(machine.console), "run", str(machine.cartpole("screens", 4_000_000, "nccl")), "--hosts", hosts, "--exit"]
    console = machine.begin(
        command, interrupt, stdin=side, stdout=side, stderr=side, env=env, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(side)
    times = []
    with open(machine.options.out / "screens.typescript", "wb") as record:

        def show(seconds, enough=None):
            """Records for a time, or until a number of bytes have come; false when the console has ended."""
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
        alive = show(60, enough=4000) and show(4 * max(machine.options.quick, 0.1))
        for key in (b"2", b"5", b"1", b"\r", b"\x1b"):
            if alive:
                os.write(terminal, key)
                alive = show(3 * max(machine.options.quick, 0.1))
        # Leave, and of what may happen to the run: stop it.
        for key in (b"q", b"s"):
            if alive:
                os.write(terminal, key)
                alive = show(2 * max(machine.options.quick, 0.3) if key == b"q" else 30)
    (machine.options.out / "screens.timing").write_text("".join(f"{at} {count}\n" for at, count in times))
    found["bytes"] = sum(count for _, count in times)
    # One that has ended keeps its exit code.
    console.kill()
    found["exit code"] = console.wait()
    machine.forget(console)
    os.close(terminal)
    for run in glob.glob(str(machine.work / "work/runs/screens-*")):
        stopped = machine.output([str(machine.console), "stop", os.path.basename(run), "--hosts", hosts], limit=30)
        found[f"stop of {os.path.basename(run)}"] = stopped["code"]
