"""Leftovers of five kinds next to five innocents on fake GPUs, and what `rankdeck gpus` does with them.

The first process of a pid namespace of its own: what loses its parent is its child, and all end with it.
Arguments: folder of the fake GPUs, rankdeck, hosts file, working directory. Prints one JSON object.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time

FOLDER, RANKDECK, HOSTS, WORKDIR = sys.argv[1:5]
PATH = os.environ["PATH"]
SLEEP = ["/bin/sleep", "1000"]
SQUEUE = """#!/bin/sh
for job; do :; done
if [ "$job" = 42 ]; then echo RUNNING; else echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi
"""


def stat(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None


def start(pid):
    return int(stat(pid)[19])


def lives(pid):
    fields = stat(pid)
    return fields is not None and fields[0] not in "ZX"


def until(what):
    deadline = time.monotonic() + 30
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def sleeps(pid):
    with open(f"/proc/{pid}/comm", encoding="latin-1") as file:
        return file.read() == "sleep\n"


def orphan(env):
    """A process without parent, session and terminal."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.write(writer, str(os.fork() or os.execve(SLEEP[0], SLEEP, env)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    pid = int(os.read(reader, 20))
    os.close(reader)
    os.close(writer)
    until(lambda: sleeps(pid))
    return pid


def child_of(command, env):
    """The process that sleeps below a command that stays."""
    parent = subprocess.Popen(command, env=env, start_new_session=True)

    def found():
        with open(f"/proc/{parent.pid}/task/{parent.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split() if sleeps(pid)]

    return until(found)[0]


def tag(run, agent="4194000-1"):
    return {
        "RANKDECK_RUN": run,
        "RANKDECK_RUN_DIR": f"{WORKDIR}/runs/{run}",
        "RANKDECK_NODE": "0",
        "RANKDECK_RANK": "0",
        "RANKDECK_AGENT": agent,
    }


def words(env):
    return [f"{name}={value}" for name, value in env.items()]


def journal(run, pids):
    """The manifest of an agent that was killed."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    ranks = [{"rank": rank, "pid": pid, "start": start(pid)} for rank, pid in enumerate(pids)]
    # The same pid as a rank of the run, of another process by now.
    ranks.append({"rank": 9, "pid": os.getpid(), "start": 1})
    folder = f"{WORKDIR}/runs/{run}/node0"
    os.makedirs(folder, mode=0o700)
    with open(f"{folder}/manifest.json", "w", encoding="utf-8") as file:
        json.dump({"run": run, "hostname": platform.node(), "boot_id": boot, "ranks": ranks}, file)


def holders():
    found = {}
    found["worker"] = [orphan(tag("dead-1")) for _ in range(4)]
    found["noted"] = [orphan({}) for _ in range(2)]
    journal("noted-1", found["noted"])
    found["cleared"] = [orphan({}) for _ in range(2)]
    inside = ["unshare", "--pid", "--fork", "env", "-i", *words(tag("dead-2")), *SLEEP]
    found["container"] = [child_of(inside, {"PATH": PATH}) for _ in range(4)]
    found["cancelled"] = [orphan({"SLURM_JOB_ID": "77"}) for _ in range(4)]
    found["stopped"] = [orphan(tag("dead-3")) for _ in range(4)]
    for pid in found["stopped"]:
        os.kill(pid, signal.SIGSTOP)
    found["shell"] = [child_of(["sh", "-c", "sleep 1000 & wait"], {"PATH": PATH})]
    # A terminal's server has no parent, either.
    server = orphan({})
    found["pane"] = [child_of(["sh", "-c", f"kill -0 {server}; sleep 1000 & wait"], {"PATH": PATH})]
    found["job"] = [orphan({"SLURM_JOB_ID": "42"})]
    kernel = "import subprocess; subprocess.run(['sleep', '1000'])"
    found["jupyter"] = [child_of([sys.executable, "-c", kernel], {"PATH": PATH})]
    agent = orphan({})
    found["attended"] = [orphan(tag("live-1", f"{agent}-{start(agent)}"))]
    return found


def gpus(*arguments):
    command = [RANKDECK, "gpus", "--json", "--hosts", HOSTS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {"code": done.returncode, "lines": lines, "errors": done.stderr}


def main():
    os.makedirs(f"{FOLDER}/bin")
    with open(f"{FOLDER}/bin/squeue", "w", encoding="utf-8") as file:
        file.write(SQUEUE)
    os.chmod(f"{FOLDER}/bin/squeue", 0o755)
    os.environ["PATH"] = f"{FOLDER}/bin:{PATH}"
    found = holders()
    for index, pid in enumerate(pid for pids in found.values() for pid in pids):
        os.makedirs(f"{FOLDER}/gpus/{index % 4}", exist_ok=True)
        with open(f"{FOLDER}/gpus/{index % 4}/{pid}", "w", encoding="ascii") as file:
            file.write("1048576")

    def left():
        return {kind: sum(lives(pid) for pid in pids) for kind, pids in found.items()}

    result = {"pids": found, "listed": gpus(), "asked": gpus("--free"), "unasked": left()}
    result["freed"], result["left"] = gpus("--free", "--yes"), left()
    unproven, innocent = str(found["cleared"][0]), str(found["pane"][0])
    result["named"] = gpus("--pid", unproven, "--yes")
    result["refused"] = gpus("--pid", innocent, "--yes")
    result["end"] = left()
    print(json.dumps(result))


main()
