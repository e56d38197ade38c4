#!/usr/bin/env python3
"""A sweep of 3 x 5 over two SSH hosts of the test bed, one cell of which is killed and resumed.

    make build
    python3 benches/sweep_two_hosts.py [--steps 300000] [--binary target/release/rankdeck]

Three learning rates and five seeds of CartPole PPO, one cell per host at a time. The rank of the first cell that has made steps
gets SIGKILL: the sweep must end with 14 cells that succeeded and one that failed, and `rankdeck queue SWEEP --resume --failed`
must bring it to 15, in the same run. The table is rankdeck's own. Needs what the test bed needs, and libtorch (LIBTORCH).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BED = ROOT / "tests/testbed/testbed"
RATES = "learn.learning_rate=1e-3,2.5e-4,5e-5"


class Bed:
    def __init__(self, folder, binary, libtorch):
        self.folder, self.binary = pathlib.Path(folder), str(binary)
        self.env = {**os.environ, "TESTBED_DIR": str(self.folder), "TESTBED_OWNER": str(os.getpid()), "TESTBED_BIND": str(libtorch.parent),
                    "TESTBED_WORK_SIZE": "256m", "RANKDECK_SSH_CONFIG": str(self.folder / "config")}
        subprocess.run([BED, "up", "2"], env=self.env, check=True, stdout=subprocess.DEVNULL)
        hosts = f'[defaults]\nworkdir = "work"\nnproc = 1\nlibtorch = "/mnt/bound/{libtorch.name}"\n'
        hosts += "".join(f'[[host]]\nname = "node{node}"\naddress = "10.77.0.{10 + node}"\n' for node in (0, 1))
        (self.folder / "hosts.toml").write_text(hosts)
        config = (self.folder / "client/config").read_text()
        (self.folder / "config").write_text(config.replace("Host node*", "Host node* 10.77.0.*").replace("BatchMode yes", "BatchMode no"))

    def rankdeck(self, *words):
        return subprocess.Popen([BED, "exec", "console", self.binary, *words, "--hosts", str(self.folder / "hosts.toml")], cwd=self.folder,
                                env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def on(self, node, line):
        subprocess.run([BED, "exec", node, "sh", "-c", line], env=self.env, check=True)

    def sweep(self):
        found = list(self.folder.glob("runs/sweep-*/sweep.json"))
        return json.loads(found[0].read_text()) if found else None

    def close(self):
        subprocess.run([BED, "down"], env=self.env, stdout=subprocess.DEVNULL)


def victim(bed):
    """The run of a cell that makes steps, and its host."""
    while True:
        sweep = bed.sweep()
        for cell in sweep["cells"] if sweep else []:
            if cell["state"] == "running" and cell["run"] and cell["env_step"] > 0:
                return cell["run"], sweep["slots"][cell["slot"]]["hosts"][0]
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300000)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    parser.add_argument("--libtorch", type=pathlib.Path, default=os.environ.get("LIBTORCH", ROOT / ".libtorch/torch"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rdsweep") as folder:
        bed = Bed(folder, args.binary.resolve(), args.libtorch.resolve())
        try:
            begun = time.monotonic()
            sweep = bed.rankdeck("run", str(ROOT / "configs/cartpole_ppo.toml"), "--hosts-per-run", "1", "--sweep", RATES, "--seeds", "1..5",
                                 "--set", f"run.total_steps={args.steps}", "--set", "~eval.stop_value", "--set", "checkpoint.every=20")
            run, host = victim(bed)
            bed.on(host, f"pkill -KILL -f 'rankdeck-traine[r].*{run}'")
            print(f"killed the rank of {run} on {host}", flush=True)
            table, code = sweep.communicate()[0], sweep.returncode
            print(f"{table}exit code {code} after {time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}\n", flush=True)
            begun = time.monotonic()
            again = bed.rankdeck("queue", bed.sweep()["name"], "--resume", "--failed")
            table, last = again.communicate()[0], again.returncode
            print(f"{table}exit code {last} after {time.monotonic() - begun:.0f} s")
            states = [cell["state"] for cell in bed.sweep()["cells"]]
            resumed = any(cell["run"] == run for cell in bed.sweep()["cells"])
            sys.exit(not (code == 1 and last == 0 and states == ["succeeded"] * 15 and resumed))
        finally:
            bed.close()


if __name__ == "__main__":
    main()
