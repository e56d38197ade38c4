#!/usr/bin/env python3
"""What the watch costs: the trainer with and without it, and the agent that looks at eight ranks ten times a second.

    cargo build --release --workspace --features rankdeck-trainer/inject
    python3 benches/overhead.py trainer [--slices 300] [--ranks 1] [--hosts] [--pace 1]
    python3 benches/overhead.py whole [--pairs 9] [--steps 2000000] [--ranks 2]
    python3 benches/overhead.py hook [--pairs 9] [--steps 3000]        # RANKDECK_TEST_PYTHON has PyTorch
    python3 benches/overhead.py agent [--seconds 60] [--rate 10]

`trainer`: ranks of CartPole PPO in one run under a console, in slices of about a second; in every other one, by lot within each pair, agents and console
are stopped (SIGSTOP). CPU time and wall time per environment step are compared between the same processes seconds apart, so differences between runs
cancel out. The report also has the time that the ranks' main threads were ready to run but had no core (`schedstat`): on full cores, this is the
only cost of detection, and it varies far less than wall time. The ranks' own work for detection continues in both: publications of the status page are counted (`cargo bench --bench page` measures the cost of
one), and the thread that sends events is measured. `--pace` adds milliseconds to every step of the environments, as an emulator
or a learner on a GPU would: the ranks then leave cores free.
`whole`: ranks of CartPole PPO, once under console and agents (status page, samples, fingerprints of calls) and once started by hand with the
same environment and no observer. Runs come in pairs, in turn, and the first of a pair changes. What is compared is user and system time of the
rank's process from its start to its end per environment step, which other work on the machine disturbs less than wall time. The median over the
pairs of the ratio is the overhead, with its quartiles and the mean with twice its standard error. One rank exchanges nothing, so that its runs differ less.
`hook`: the same with a torchrun-style script, with `watch.python_hook` on and off, both under the console.
`agent`: CPU time of the agent of one host with eight ranks, between two moments of a running job.
"""
import argparse, json, math, mmap, os, pathlib, random, re, signal, socket, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import programs  # noqa: E402
from lab.run import Run  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Runs a program and says what it used; counts its environment workers, too.
METER = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); used = resource.getrusage(resource.RUSAGE_CHILDREN); "
         "print(f'METER {used.ru_utime + used.ru_stime:.4f}', flush=True); sys.exit(code)")
PPO = """[run]
name = "overhead"
seed = 1
total_steps = {steps}
{launch}
[env]
id = "CartPole-v1"
num_envs = 16
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
"""
RANKS = 2
# Words of the status page (src/proto/status_page).
SEQLOCK, TRAIN_ITER, ENV_STEP = 8, 9 + 4, 9 + 5


def metered(text):
    return [float(found) for found in re.findall(r"METER ([0-9.]+)", text)]


def under_console(folder, text, console):
    """CPU seconds of all ranks of a run under console and agents."""
    run = Run([console], folder, text, programs.hosts((1,) * RANKS))
    run.wait(lambda event: event["kind"] == "run_finished", 1800)
    end = run.finish()
    if not end or end["outcome"] != "succeeded":
        raise SystemExit(f"the run did not succeed: {end}")
    logs = "\n".join(log.read_text(errors="replace") for log in pathlib.Path(folder).glob("n*/runs/*/node*/gen0/rank*.log"))
    return sum(metered(logs))


def by_hand(folder, config, trainer):
    """CPU seconds of the same ranks unobserved: no status page, no event socket, no agent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(config)
    ranks = []
    for rank in range(RANKS):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE="1", NODE_RANK=str(rank),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen(
            [sys.executable, "-c", METER, trainer, "--config", str(folder / "experiment.toml"), "--run-dir", str(folder)],
            # A session of its own, as agents give: the kernel shares cores out by session.
            env=environment, stdout=open(folder / f"rank{rank}.log", "w"), stderr=subprocess.STDOUT, start_new_session=True))
    if any(rank.wait(timeout=1800) for rank in ranks):
        raise SystemExit("a rank failed without the watch")
    return sum(sum(metered(log.read_text(errors="replace"))) for log in folder.glob("rank*.log"))


def compare(pairs, one, other, names, steps):
    """Runs pairs in turn; prints each, and the median of the ratios."""
    ratios = []
    for pair in range(pairs):
        with tempfile.TemporaryDirectory(prefix="rdover") as folder:
            folder = pathlib.Path(folder)
            order = [("with", one), ("without", other)]
            used = {name: function(folder / name) for name, function in (order if pair % 2 == 0 else order[::-1])}
        ratios.append(used["with"] / used["without"])
        print(f"pair {pair + 1}: {names[0]} {used['with']:.2f} CPU-s ({steps / used['with']:.0f} steps per CPU-s), {names[1]} {used['without']:.2f} "
              f"({steps / used['without']:.0f}): {100 * (ratios[-1] - 1):+.2f}% (load {os.getloadavg()[0]:.1f})", flush=True)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    error = 2 * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    print(f"overhead: mean {100 * (statistics.mean(ratios) - 1):+.2f} +- {100 * error:.2f}%; median {100 * (statistics.median(ratios) - 1):+.2f}%, quartiles {100 * (quartiles[0] - 1):+.2f}% to "
          f"{100 * (quartiles[2] - 1):+.2f}%, of {len(ratios)} pairs")


def clock_of(pid):
    """The clock of a process's CPU time, as the kernel numbers them."""
    return (~pid << 3) | 2


class Watched:
    """One rank's process and status page."""

    def __init__(self, pid, page):
        self.clock, self.page, self.waited = clock_of(pid), page, pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat")
        self.events = [task / "schedstat" for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == "events"]

    def word(self, index):
        return int.from_bytes(self.page[8 * index:8 * index + 8], "little")

    def look(self):
        """CPU seconds, publications, CPU seconds of the thread that sends events, seconds ready without a core."""
        sent = sum(int(file.read_text().split()[0]) for file in self.events) / 1e9
        return time.clock_gettime(self.clock), self.word(SEQLOCK) // 2, sent, int(self.waited.read_text().split()[1]) / 1e9


def boundary(ranks):
    """Waits until rank 0 has finished an iteration, so that a slice is whole iterations; asleep in between, for the ranks may need every core."""
    iteration = ranks[0].word(TRAIN_ITER)
    while ranks[0].word(TRAIN_ITER) == iteration:
        time.sleep(3e-4)
    looks = [rank.look() for rank in ranks]
    return ranks[0].word(ENV_STEP), time.perf_counter(), *(sum(column) for column in zip(*looks))


def trainer(args):
    """One run; slices with and without the watch."""
    text = PPO.format(steps=10 ** 12, launch="")
    lot = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="rdover") as folder:
        paced = dict(TRAINER_INJECT=f"pace={args.pace}@all:0") if args.pace else {}
        run = Run([args.console], pathlib.Path(folder) / "run", text, programs.hosts((1,) * RANKS if args.hosts else (RANKS,)), paced)
        watch = []
        try:
            if not run.wait_iteration(50, 120):
                raise SystemExit("no iteration came")
            name = next(event["run"] for _, event in run.lines if event.get("run"))
            watch = [run.process.pid] + [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and _is_agent(entry, name)]
            pids = run.pids()
            # A page has no name once its agent has it open.
            held = [file for pid in watch for file in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
            pages = {int(found[1]): file for file in held if (found := re.search(r"/rank(\d+)\.page( \(deleted\))?$", os.readlink(file)))}
            ranks = []
            for rank, file in sorted(pages.items()):
                with open(file, "rb") as page:
                    ranks.append(Watched(pids[rank], mmap.mmap(page.fileno(), 0, prot=mmap.PROT_READ)))
            pairs, both = [], {True: [0.0] * 6, False: [0.0] * 6}
            for pair in range(args.slices // 2):
                first, figures = lot.random() < 0.5, {}
                for looking in (first, not first):
                    for pid in watch:
                        os.kill(pid, signal.SIGCONT if looking else signal.SIGSTOP)
                    run.read(0)
                    # What an agent or console has to catch up with after a stop belongs to neither.
                    time.sleep(lot.uniform(0.15, 0.65))
                    begun = boundary(ranks)
                    time.sleep(args.slice)
                    passed = [after - before for before, after in zip(begun, boundary(ranks))]
                    both[looking] = [sum(both) for both in zip(both[looking], passed)]
                    figures[looking] = (passed[2] / passed[0], passed[1] / passed[0], passed[5] / passed[1])
                pairs.append([math.log(with_it / without) for with_it, without in list(zip(figures[True], figures[False]))[:2]] + [figures[True][2] - figures[False][2]])
                if pair % 25 == 24:
                    print(f"{pair + 1} pairs of slices (load {os.getloadavg()[0]:.1f})", flush=True)
        finally:
            for pid in watch:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            run.finish()
            # An agent outlives its console by a moment, and writes into the folder that is about to go.
            deadline = time.time() + 20
            while any(os.path.exists(f"/proc/{pid}") for pid in watch[1:]) and time.time() < deadline:
                time.sleep(0.05)
    # Means of logarithms: the mean of ratios of two noisy figures is above 1 where nothing differs, by the
    # square of their relative deviation.
    for what, ratios in zip(("CPU time per step", "wall time per step", "share of wall time that ranks, summed, were ready without a core,"), zip(*pairs)):
        error = 2 * statistics.stdev(ratios) / len(ratios) ** 0.5
        quartiles = statistics.quantiles(ratios, n=4)
        print(f"{what} with detection and without: mean {100 * statistics.mean(ratios):+.2f} +- {100 * error:.2f}%, median {100 * statistics.median(ratios):+.2f}%, "
              f"quartiles {100 * quartiles[0]:+.2f} to {100 * quartiles[2]:+.2f}%, {len(ratios)} pairs of slices, {RANKS} ranks")
    steps, wall, used, published, sent, _ = both[True]
    print(f"each rank: {steps / wall / RANKS:.0f} steps per second, {published / wall / RANKS:.0f} publications of the page per second; "
          f"thread that sends events {100 * sent / used:.3f}% of the CPU time")


def whole(args):
    program = str(pathlib.Path(args.console).with_name("rankdeck-trainer"))
    command = json.dumps([sys.executable, "-c", METER, program, "--config", "{config}"])
    with tempfile.TemporaryDirectory(prefix="rdconf") as kept:
        config = pathlib.Path(kept) / "experiment.toml"
        config.write_text(PPO.format(steps=args.steps, launch=""))
        launch = f"[launch]\ncommand = {command.replace('{config}', str(config))}"
        # Your own program needs no [env] and [learn].
        text = f'[run]\nname = "overhead"\n{launch}\n'
        compare(args.pairs, lambda folder: under_console(folder, text, args.console), lambda folder: by_hand(folder, config.read_text(), program),
                ("watched", "alone"), args.steps)


def hook(args):
    def script(folder, hooked):
        command = json.dumps([sys.executable, "-c", METER, programs.python(), "-u", str(programs.HERE / "script.py")])
        text = (f'[run]\nname = "overhead"\n[launch]\ncommand = {command}\n[launch.env]\nLAB_MODE = "fast"\nLAB_STEPS = "{args.steps}"\n'
                f"[watch]\npython_hook = {str(hooked).lower()}\n")
        return under_console(folder, text, args.console)
    compare(args.pairs, lambda folder: script(folder, True), lambda folder: script(folder, False), ("hooked", "plain"), args.steps)


def on_core(folder):
    """CPU seconds of one thread, finer than the hundredths of its `stat`."""
    return int((folder / "schedstat").read_text().split()[0]) / 1e9


def agent(args):
    """Ranks that mostly sleep, so that there is a machine left to measure on."""
    text = programs.experiment("overhead-agent", "ppo", 8, dict(eval_every=0, checkpoint_every=0), {})
    environment = dict(RANKDECK_AGENT_TIMING=f"sample={1 / args.rate}", TRAINER_INJECT="lognormal-env=20@all:0")
    with tempfile.TemporaryDirectory(prefix="rdover") as folder:
        run = Run([args.console], pathlib.Path(folder) / "run", text, programs.hosts((8,)), environment)
        try:
            if not run.wait_iteration(3, 120):
                raise SystemExit("no iteration came")
            name = next(event["run"] for _, event in run.lines if event.get("run"))
            found = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and _is_agent(entry, name)]
            if not found:
                raise SystemExit("the agent was not found")
            clock, folder = clock_of(found[0]), pathlib.Path(f"/proc/{found[0]}/task")
            threads = {task: (task / "comm").read_text().strip() for task in folder.iterdir()}
            before, since = time.clock_gettime(clock), time.time()
            own = {task: on_core(task) for task in threads}
            run.pass_time(args.seconds)
            used, passed = time.clock_gettime(clock) - before, time.time() - since
            print(f"agent, 8 ranks, {args.rate:g} samples per second: {used:.2f} CPU-s in {passed:.1f} s: {100 * used / passed:.2f}% of a core (load {os.getloadavg()[0]:.1f})")
            for task, comm in threads.items():
                try:
                    share = on_core(task) - own[task]
                except OSError:
                    continue
                if share > passed / 1e4:
                    print(f"  thread {comm}: {100 * share / passed:.2f}%")
        finally:
            run.finish()


def _is_agent(entry, name):
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"serve" in words and name.encode() in words


def main():
    global RANKS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["trainer", "whole", "hook", "agent"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--slices", type=int, default=300)
    parser.add_argument("--slice", type=float, default=0.7)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--hosts", action="store_true", help="trainer: a host, and so an agent, for each rank, all on this machine")
    parser.add_argument("--pace", type=int, default=0, help="trainer: milliseconds, needs a trainer with `inject`")
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--console", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    args.console = os.path.abspath(args.console)
    RANKS = args.ranks
    args.steps = args.steps or (3000 if args.what == "hook" else 2_000_000)
    dict(trainer=trainer, whole=whole, hook=hook, agent=agent)[args.what](args)


if __name__ == "__main__":
    main()
