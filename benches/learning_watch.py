"""What the watch of learning says of runs that do not learn, and that it says nothing of those that do.

    python3 benches/learning_watch.py [--binary target/release/rankdeck] [--faults] [--only PART] [--steps N] [--seconds 600]

Runs that are broken on purpose, then every shipped configuration that needs neither an emulator nor Python. A row per run: the
configuration, the first alarm with its steps, the other alarms, and the false ones: all alarms of a shipped
configuration. Of the runs that are steep, some collapse and some do not: their own entropies show which must be reported.
`--steps` bounds the shipped ones (default: as shipped), `--seconds` bounds each run.
"""
import argparse, csv, json, pathlib, shutil, signal, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARTPOLE = ["configs/cartpole_ppo.toml", "--set", "eval.stop_value=501", "--set", "learn.anneal_lr=false"]
# Reports through the library, as any script does: the trainer itself refuses such a reward before
# it learns from it.
NAN = """
import rankdeck, time
for step in range(1, 600):
    rankdeck.report(env_step=step * 8, returns=[float("nan") if step > 40 else 1.0], loss=0.5)
    time.sleep(0.02)
"""
SHIPPED = ["cartpole_ppo", "cartpole_ppo_alf", "cartpole_ppg", "cartpole_dqn", "cartpole_dqn_dizoo", "pendulum_ppo", "pendulum_a2c", "pendulum_sac"]


def cases(args, folder):
    """Name, words of `rankdeck run`, and whether nothing is wrong with it; None: its metrics say."""
    bounded = ["--set", "run.total_steps=300_000"]
    yield "learning_rate=1e9", [*CARTPOLE, *bounded, "--set", "learn.learning_rate=1e9"], False
    yield "learning_rate=1e-1", [*CARTPOLE, *bounded, "--set", "learn.learning_rate=1e-1"], False
    command = json.dumps([sys.executable, "-c", NAN])
    (folder / "nan.toml").write_text(f"[run]\nname = 'nan'\n[launch]\ncommand = {command}\n")
    yield "reward of NaN", ["nan.toml"], False
    steep = ["learn.ent_coef=0", "learn.learning_rate=3e-2", "learn.max_grad_norm=100"]
    for seed in range(1, 5):
        keys = [*steep, f"run.seed={seed}"]
        yield f"steep, seed {seed}", [*CARTPOLE, *bounded, *(word for key in keys for word in ("--set", key))], None
    steps = ["--set", f"run.total_steps={args.steps}"] if args.steps else []
    for name in SHIPPED:
        yield f"{name} as shipped", [f"configs/{name}.toml", *steps], True


def has_collapsed(folder):
    """Does the newest run end with a policy that tries nothing?"""
    metrics = max(folder.glob("runs/*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    with metrics.open() as file:
        entropies = [float(row["losses/entropy"]) for row in csv.DictReader(file) if row["losses/entropy"]]
    return max(entropies[-20:]) < 1e-4


def run(args, folder, words):
    """The alarms about learning as (code, step), how the run ended, and its steps."""
    command = [str(pathlib.Path(args.binary).resolve()), "run", *words, "--headless", "--json"]
    console = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    until = time.time() + args.seconds
    alarms, step, ended, asked = [], 0, None, False
    for line in console.stdout:
        event = json.loads(line)
        step = event.get("env_step", step) if event["kind"] in ("progress", "metrics") else step
        if event["kind"] == "verdict" and event["verdict"] == "learning" and event["severity"] != "cleared":
            if event["reason_code"] not in [code for code, _, _ in alarms]:
                alarms.append((event["reason_code"], step, event["severity"]))
        if event["kind"] == "run_finished":
            ended = event["outcome"]
        if time.time() > until and not asked:
            asked = True
            console.send_signal(signal.SIGINT)
    console.wait()
    return alarms, ended, step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target/release/rankdeck"))
    parser.add_argument("--only", default="", help="only runs whose name has this")
    parser.add_argument("--faults", action="store_true", help="only the runs that are broken on purpose")
    parser.add_argument("--steps", type=int, help="environment steps of each shipped configuration; default: as shipped")
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    false = missed = 0
    with tempfile.TemporaryDirectory(prefix="rankdeck-", ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        shutil.copy(ROOT / "hosts.toml", folder)
        shutil.copytree(ROOT / "configs", folder / "configs")
        print(f"{'configuration':32} {'alarm':18} {'at step':>10}  {'false alarms':12}  ended, other alarms")
        for name, words, well in cases(args, folder):
            if args.only not in name or (args.faults and well):
                continue
            alarms, ended, step = run(args, folder, words)
            if well is None:
                well = not has_collapsed(folder)
            code, at, severity = alarms[0] if alarms else ("none", step, "")
            false += len(alarms) if well else 0
            missed += not well and not alarms
            others = ", ".join(f"{code} at {at:,}" for code, at, _ in alarms[1:])
            print(f"{name:32} {f'{code} {severity}':18} {at:>10,}  {len(alarms) if well else '-':<12}  {ended}{'; ' + others if others else ''}", flush=True)
    # An agent may have written its last words meanwhile.
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{false} false alarms, {missed} faults without an alarm")
    sys.exit(bool(false or missed))


if __name__ == "__main__":
    main()
