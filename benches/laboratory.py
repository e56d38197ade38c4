#!/usr/bin/env python3
"""The fault laboratory: real runs of real ranks, one fault each at a random step, and what the watch said about it.

    cargo build --features trainer,inject
    python3 benches/laboratory.py [--rounds 1] [--only NAME,...] [--seed 0] [--json FILE]

Two local hosts of two ranks over Gloo. Latency is from the moment at which the victim says that it strikes to the first red verdict on stdout.
A case of the second table must stay without any red verdict. The last lines are the report: recall, guilty rank, reason, latencies, false alarms;
and the cases of research that this laboratory cannot make.
"""
import argparse, json, os, pathlib, random, re, select, signal, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name: (case of the matrix, fault, accepted reason codes, bound in seconds)
MUST_ALARM = {
    "kill": ("P1/P2", "kill", {"killed"}, 2),
    "segv": ("P3", "segv", {"crashed"}, 2),
    "abort": ("P3", "abort", {"crashed"}, 2),
    "raise": ("P4", "raise", {"failed"}, 2),
    "exit": ("P4", "exit", {"failed"}, 2),
    "stop": ("P7", "stop", {"stopped"}, 2),
    "lock": ("P12", "lock", {"lock"}, 7),
    "sleep-env": ("P13", "sleep-env", {"sleeping", "env_worker_deadlocked"}, 7),
    "spin": ("P14", "spin", {"spinning"}, 7),
    "mismatch-op": ("P16", "mismatch-op", {"op_mismatch"}, 2),
    "mismatch-count": ("P17", "mismatch-count", {"size_mismatch"}, 2),
    "mismatch-dtype": ("P17", "mismatch-dtype", {"size_mismatch"}, 2),
    "skip": ("P18", "skip", {"skipped_call", "silent_shift"}, 7),
    "leave": ("P19", "leave", {"left_early"}, 2),
    "extra-barrier": ("P20", "extra-barrier", {"extra_call"}, 7),
    "disk-full": ("P6", "disk-full", {"disk_full"}, 2),
}
# name: (case, faults, seconds to watch)
MUST_NOT_ALARM = {
    "healthy": ("N17", "", 20),
    "long-eval": ("N1", "long-eval=1@0:5", 40),
    "slow-start": ("N3", "slow-start=15@1:0", 30),
    "slow-checkpoint": ("N4", "slow-checkpoint=1@0:0", 40),
    "lognormal-env": ("N5", "lognormal-env=1@all:0", 40),
    "pause": ("N6", "pause=4@2:40", 25),
}
CANNOT = {
    "P5": "needs a memory cgroup of its own: tests of the agent read oom counters",
    "P8": "needs the cgroup freezer; parsing is tested",
    "P9": "needs fsfreeze on a loop device; D state is tested by vfork",
    "P10, P11, P26, P27": "the network: tests/faults.rs on the test bed",
    "P15": "Python's interpreter lock: tests of the agent with real Python",
    "P21": "no-sync drifts without a stall: named as drift by the fingerprints (tests/e2e.rs)",
    "P22, P23": "stragglers: judged over 50 steps, not by latency",
    "P24, P25": "rendezvous and teardown: tests/e2e.rs and traces",
    "P28, P29": "traces in src/core/watch/tests",
    "P31, P32": "scripted RAS server and fake NVML in unit tests",
    "N2, N7-N16": "traces in src/core/watch/tests",
}


def experiment(folder, name):
    text = f"""[run]
name = "{name}"
seed = 1
total_steps = 500_000_000
[env]
id = "CartPole-v1"
num_envs = 4
[collect]
num_steps = 16
[learn]
algorithm = "ppo"
[distributed]
timeout_s = 600
[eval]
every = 20
episodes = 20
[checkpoint]
every = 10
"""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def run(console, folder, name, faults, seconds, until_red):
    """Gives back (strike time, red verdicts with the time they were read, the end)."""
    hosts = folder / "hosts.toml"
    hosts.write_text("".join(
        f'[[host]]\nname = "node{i}"\ntransport = "local"\nnproc = 2\nworkdir = "n{i}"\n' for i in range(2)))
    environment = dict(os.environ, TRAINER_INJECT=faults)
    process = subprocess.Popen(
        [console, "run", str(experiment(folder, name)), "--hosts", str(hosts), "--headless", "--json"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    strike, reds, end, asked = None, [], None, False
    deadline = time.time() + seconds + 60
    stop_at = time.time() + seconds
    buffer = b""
    os.set_blocking(process.stdout.fileno(), False)
    while time.time() < deadline:
        select.select([process.stdout], [], [], 0.05)
        chunk = process.stdout.read()
        if chunk == b"" and process.poll() is not None:
            break
        buffer += chunk or b""
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            found = said["kind"] == "log" and re.search(r"inject: (\S+) strikes .* at ([0-9.]+)", said.get("line", ""))
            if found:
                strike = strike or float(found[2])
            if said["kind"] == "verdict" and said["severity"] == "red":
                reds.append((time.time(), said))
                # The reason may be refined once by a close look.
                if until_red:
                    stop_at = min(stop_at, time.time() + 3)
            if said["kind"] == "run_finished":
                end = said
        if not asked and time.time() > stop_at:
            process.send_signal(signal.SIGINT)
            asked = True
            stop_at = time.time() + 15
        elif asked and time.time() > stop_at:
            process.send_signal(signal.SIGINT)
            stop_at = time.time() + 15
    if process.poll() is None:
        process.kill()
    process.wait()
    # A rank that dies at once may be named before its last line is read: the log file has the strike.
    for log in folder.glob(f"n*/runs/{name}-*/node*/gen0/rank*.log"):
        for found in re.finditer(r"inject: (\S+) strikes .* at ([0-9.]+)", log.read_text(errors="replace")):
            strike = strike or float(found[2])
    return strike, reds, end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--console", default=str(ROOT / "target/debug/rankdeck"))
    args = parser.parse_args()
    chance = random.Random(args.seed)
    only = set(filter(None, args.only.split(",")))
    results, alarms = [], []
    with tempfile.TemporaryDirectory(prefix="rdlab") as folder:
        folder = pathlib.Path(folder)
        for round_ in range(args.rounds):
            for name, (case, fault, reasons, bound) in MUST_ALARM.items():
                if only and name not in only:
                    continue
                rank, step = chance.randrange(4), chance.randrange(15, 60)
                rank = 0 if name == "disk-full" else rank
                strike, reds, end = run(args.console, folder, f"{name}-{round_}", f"{fault}@{rank}:{step}", 30, True)
                own = [(at, said) for at, said in reds if said["rank"] == rank]
                first = reds[0] if reds else None
                guilty = bool(first) and first[1]["rank"] == rank
                codes = {said.get("reason_code") for _, said in own}
                latency = first[0] - strike if first and strike else None
                result = dict(case=case, name=name, rank=rank, step=step, struck=strike is not None, alarmed=bool(first),
                              guilty=guilty, reason=bool(codes & reasons), codes=sorted(filter(None, codes)),
                              latency=latency, bound=bound, outcome=end and end.get("outcome"),
                              others=sorted({(said["rank"], said.get("reason_code")) for _, said in reds if said["rank"] != rank}, key=str))
                results.append(result)
                print(f"{case:6} {name:15} rank {rank} step {step:3}: "
                      f"{'right' if guilty else 'WRONG RANK' if first else 'NO ALARM'}, "
                      f"{'reason right' if result['reason'] else 'REASON ' + str(result['codes'])}, "
                      f"{'-' if latency is None else f'{latency:.2f} s'}"
                      + (f"; also {result['others']}" if result["others"] else ""), flush=True)
            for name, (case, faults, seconds) in MUST_NOT_ALARM.items():
                if only and name not in only:
                    continue
                _, reds, end = run(args.console, folder, f"{name}-{round_}", faults, seconds, False)
                alarms.append(dict(case=case, name=name, reds=[said["reason"] for _, said in reds], outcome=end and end.get("outcome")))
                print(f"{case:6} {name:15} {'quiet' if not reds else 'FALSE ALARM: ' + alarms[-1]['reds'][0]}"
                      f" (ended {alarms[-1]['outcome']})", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(dict(must_alarm=results, must_not_alarm=alarms), indent=1))
    print("\nreport")
    n = len(results)
    if n:
        red = sum(r["alarmed"] for r in results)
        print(f"  recall            {red}/{n}")
        print(f"  guilty rank       {sum(r['guilty'] for r in results)}/{n}")
        print(f"  reason            {sum(r['reason'] for r in results)}/{n}")
        for bound in sorted({r["bound"] for r in results}):
            times = sorted(r["latency"] for r in results if r["bound"] == bound and r["latency"] is not None)
            if times:
                p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
                print(f"  time to verdict   bound {bound} s: median {statistics.median(times):.2f} s, p95 {p95:.2f} s, worst {times[-1]:.2f} s of {len(times)}")
    if alarms:
        quiet = sum(not a["reds"] for a in alarms)
        print(f"  no false alarm    {quiet}/{len(alarms)}")
    for case, why in CANNOT.items():
        print(f"  not here          {case}: {why}")
    return 0 if all(r["guilty"] and r["reason"] for r in results) and not any(a["reds"] for a in alarms) else 1


if __name__ == "__main__":
    sys.exit(main())
