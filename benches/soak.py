#!/usr/bin/env python3
"""A healthy soak: every algorithm, a Python worker, Atari and scripts as people write them, in slices, and not one red verdict.

    cargo build --release --workspace
    RANKDECK_TEST_PYTHON=PYTHON python3 benches/soak.py [--hours 2] [--slice 300] [--only NAME,...] [--beside 1] [--json FILE]
                                                [--keep FOLDER]

With `--beside N`, N runs are active at the same time, and `--hours` is wall time: eight sleepy runs for an hour are eight hours of run time,
`--hours 1 --beside 8 --only sleepy`. The sleepy scripts evaluate in a simulator elsewhere, save, compile, download, prepare data or sleep for
a minute, on one rank while the others wait or on all, next to a tracker's process, a TensorBoard writer's thread and workers of data loaders.
Each slice is a run of its own over two local hosts. Each must end with a verified stop and no process left. Ambers are listed with their
reasons, and with their first sentence. With --keep, the folders of runs with a red verdict stay there. The interpreter needs PyTorch, Gymnasium and ale-py.
"""
import argparse, collections, concurrent.futures, itertools, json, os, pathlib, re, shutil, signal, sys, tempfile, threading, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import programs  # noqa: E402
from lab.run import Run  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENDLESS = ["run.total_steps=1000000000000", "eval.stop_value=1e9"]
PYTHON = f"env.python={json.dumps(programs.python())}"
# name: (shipped experiment, ranks on each host, settings)
PROGRAMS = {
    "ppo": ("cartpole_ppo", (2, 2), [*ENDLESS, "checkpoint.every=200"]),
    "ppg": ("cartpole_ppg", (2, 2), [*ENDLESS, "checkpoint.every=200"]),
    "a2c": ("pendulum_a2c", (2, 2), [*ENDLESS, "checkpoint.every=500"]),
    "dqn": ("cartpole_dqn", (1, 1), [*ENDLESS, "checkpoint.every=2000"]),
    "sac": ("pendulum_sac", (1, 1), [*ENDLESS, "checkpoint.every=1000"]),
    "worker": ("cartpole_ppo", (2, 2), [*ENDLESS, 'env.worker="python"', PYTHON]),
    "atari": ("pong_ppo", (1, 1), [*ENDLESS, PYTHON, "eval.every=20", "eval.episodes=1", "checkpoint.every=10"]),
    "script": (None, (2, 1), []),
}
MINUTE = {"LAB_SECONDS": "60"}
ALL = "evaluates,saves,compiles,downloads,prepares,sleeps,prints"
# name: (program of the laboratory, ranks on each host, environment); most of their time they wait.
SLEEPY = {
    "evaluates": ("cleanrl", (2, 1), {"LAB_FAULT": "evaluates@0:20+60", "LAB_BESIDE": "tracker", **MINUTE}),
    "saves": ("cleanrl", (2, 1), {"LAB_FAULT": "saves,prints@0:20+60", "LAB_BESIDE": "writer", **MINUTE}),
    "compiles": ("cleanrl", (2, 1), {"LAB_FAULT": "downloads,compiles@1:20+300", **MINUTE}),
    "in turn": ("cleanrl", (2, 1), {"LAB_FAULT": ALL + "@0:20+100", "LAB_BESIDE": "tracker", **MINUTE}),
    "all sleep": ("cleanrl", (2, 1), {"LAB_FAULT": "sleeps@all:20+60", "LAB_BESIDE": "writer", **MINUTE}),
    "loader": ("loader", (2, 1), {"LAB_FAULT": "sleeps,downloads@1:20+400", "LAB_BESIDE": "tracker", **MINUTE}),
    "sb3": ("sb3", (2, 1), {"LAB_FAULT": "evaluates,saves@0:10+30", "LAB_BESIDE": "tracker", **MINUTE}),
    "lightning": ("lightning", (1, 1), {"LAB_FAULT": "saves,sleeps@0:20+300", "LAB_BESIDE": "writer", **MINUTE}),
    "alone": ("cleanrl", (1,), {"LAB_FAULT": "downloads,evaluates@0:20+100", **MINUTE}),
    "no hook": ("cleanrl-plain", (2, 1), {"LAB_FAULT": "evaluates,saves@0:20+60", **MINUTE}),
}


def place(folder, name, number):
    """The folder of one run."""
    return folder / f"{name.replace(' ', '-')}-{number}"


def special(folder, names):
    """Sockets and pipes among them, which cannot be copied."""
    return [name for name in names if not (path := pathlib.Path(folder, name)).is_symlink() and not path.is_file() and not path.is_dir()]


def slice_of(name, seconds, number, folder, console, over):
    """One run, for this time or until `over`; returns what happened."""
    config, nproc, sets = PROGRAMS.get(name) or (None, SLEEPY[name][1], [])
    if name in SLEEPY:
        text = programs.experiment("soak-sleepy", SLEEPY[name][0], sum(nproc), {}, SLEEPY[name][2])
    elif config is None:
        text = programs.experiment("soak-script", "script", sum(nproc), {}, {})
    else:
        text = (ROOT / "configs" / f"{config}.toml").read_text()
    run = Run([console], place(folder, name, number), text, programs.hosts(nproc), more=[word for value in sets for word in ("--set", value)])
    begun = time.time()
    try:
        run.pass_time(seconds, over)
        early = run.end()
    finally:
        # A machine that is busy with other things takes long to stop anything.
        end = run.finish(90)
    progress = [event for _, event in run.lines if event["kind"] == "progress"]
    logs = [int(found[1]) for _, event in run.lines if event["kind"] == "log" and (found := re.match(r"iteration (\d+)", event["line"]))]
    verdicts = [(round(at - begun, 1), event["severity"], event["rank"], event["reason_code"], event["reason"]) for at, event in run.verdicts()]
    left = run.leftovers()
    return dict(
        name=name, minutes=(time.time() - begun) / 60, iterations=progress[-1]["train_iter"] if progress else max(logs, default=0),
        env_steps=progress[-1]["env_step"] if progress else None, evaluations=sum(event["kind"] == "eval" for _, event in run.lines),
        checkpoints=sum(event["kind"] == "checkpoint" for _, event in run.lines), verdicts=verdicts, inconsistent=sum(not event["consistent"] for event in progress),
        ended_early=early and [early["outcome"], early["reason"]], proved=bool(end and end["proved"] and not end["survivors"]), left=left, load=os.getloadavg()[0])


def print_result(result, json_file):
    """A run that has ended, in lines."""
    if json_file:
        with open(json_file, "a") as file:
            file.write(json.dumps(result) + "\n")
    reds = [verdict for verdict in result["verdicts"] if verdict[1] == "red"]
    ambers = [verdict for verdict in result["verdicts"] if verdict[1] == "amber"]
    print(f"{time.strftime('%H:%M:%S')} {result['name']:9} {result['minutes']:5.1f} min, {result['iterations']} iterations, {len(reds)} red, {len(ambers)} amber, "
          f"{'verified' if result['proved'] and not result['left'] else 'NOT VERIFIED'}, load {result['load']:.1f}", flush=True)
    for verdict in reds + ambers[:5]:
        print(f"    after {verdict[0]} s: {verdict[1]} rank {verdict[2]} {verdict[3]}: {verdict[4]}", flush=True)
    if result["ended_early"]:
        print(f"    ENDED: {result['ended_early']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--slice", type=float, default=300.0, help="seconds")
    parser.add_argument("--only", default="", help="names, or `sleepy` for all of those")
    parser.add_argument("--beside", type=int, default=1, help="runs at the same time")
    parser.add_argument("--json")
    parser.add_argument("--keep")
    parser.add_argument("--console", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    chosen = args.only.split(",")
    names = [name for name in [*PROGRAMS, *SLEEPY] if not args.only or name in chosen or (name in SLEEPY and "sleepy" in chosen)]
    lacking = {name: why for name in names if name in SLEEPY and (why := programs.missing(SLEEPY[name][0]))}
    for name, why in lacking.items():
        print(f"not made: {name}: {why}", flush=True)
    names = [name for name in names if name not in lacking]
    begun, slices = time.time(), []
    over, numbers, lock = threading.Event(), itertools.count(), threading.Lock()
    until = begun + args.hours * 3600
    # The runs that go on are stopped and counted.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())

    def slot(folder):
        """One run after the other, until the time is over."""
        while time.time() < until and not over.is_set():
            with lock:
                number = next(numbers)
            name = names[number % len(names)]
            result = slice_of(name, min(args.slice, max(30.0, until - time.time())), number, pathlib.Path(folder), args.console, over)
            if args.keep and any(verdict[1] == "red" for verdict in result["verdicts"]):
                kept = place(pathlib.Path(folder), name, number)
                shutil.copytree(kept, pathlib.Path(args.keep) / f"{kept.name}-{int(time.time())}", symlinks=True, ignore=special)
            with lock:
                slices.append(result)
                print_result(result, args.json)

    with tempfile.TemporaryDirectory(prefix="rdsoak") as folder, concurrent.futures.ThreadPoolExecutor(args.beside) as pool:
        for done in concurrent.futures.as_completed([pool.submit(slot, folder) for _ in range(args.beside)]):
            done.result()
    hours = sum(result["minutes"] for result in slices) / 60
    print(f"\nreport: {(time.time() - begun) / 3600:.2f} h, {hours:.2f} h of run time")
    good = True
    for name in names:
        of = [result for result in slices if result["name"] == name]
        reds = [verdict for result in of for verdict in result["verdicts"] if verdict[1] == "red"]
        ambers = collections.Counter(verdict[3] for result in of for verdict in result["verdicts"] if verdict[1] == "amber")
        proved = sum(result["proved"] and not result["left"] for result in of)
        early = [result["ended_early"] for result in of if result["ended_early"]]
        good &= not reds and proved == len(of) and not early
        print(f"  {name:9} {sum(result['minutes'] for result in of):6.1f} min in {len(of)} runs, {sum(result['iterations'] for result in of)} iterations, "
              f"{sum(result['evaluations'] for result in of)} evaluations, {sum(result['checkpoints'] for result in of)} checkpoints; red {len(reds)}, "
              f"amber {dict(ambers) or 0}, end verified {proved}/{len(of)}" + (f"; ENDED EARLY {early}" if early else ""))
    loads = [result["load"] for result in slices]
    print(f"  load of the machine {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} cores")
    print(f"  {'zero red' if good else 'NOT CLEAN'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
