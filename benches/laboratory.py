#!/usr/bin/env python3
"""The fault laboratory: real runs of real ranks, one fault each at a random rank and step, and the verdicts about it.

    cargo build --release --workspace --features rankdeck-trainer/inject
    LIBTORCH=FOLDER RANKDECK_TEST_PYTHON=PYTHON python3 benches/laboratory.py [--rounds 1] [--only NAME,...] [--skip NAME,...]
                                                        [--seed 0] [--jobs 1] [--json FILE] [--keep FOLDER]

Ranks on the CPUs of two local hosts, a torchrun-style script with and without the hook, and two hosts with a network between them. The time of a
verdict counts from the moment at which the victim says that it strikes, or at which this program strikes, to its line on stdout. `N` cases
must stay without any red verdict. Results are appended to FILE (one JSON object per line) as they come; the report at the end is made of
everything in it, so that more rounds can be added later. With --keep, the folders of wrong runs stay there.
"""
import argparse, concurrent.futures, contextlib, itertools, json, os, pathlib, random, shutil, signal, statistics, sys, tempfile, threading, time, traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import bed, cases, outside, programs  # noqa: E402
from lab.run import Run  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
# After the first verdict a close look may refine its reason, and victims may follow.
AFTER = 2.5
# Iterations among which a fault strikes.
STEPS = (10, 45)


class Laboratory:
    def __init__(self, args, folder):
        self.args, self.folder, self.bed = args, folder, None
        self.bed_lock, self.out_lock, self.why = threading.Lock(), threading.Lock(), None
        self.broken = set()

    def made(self, folder, case, number, environment):
        """Starts the run of a case, and gives it back with the words of its console."""
        program = "ppo" if case.network else case.program
        ranks = sum(case.nproc)
        if why := programs.missing(program):
            raise outside.Missing(why)
        text = programs.experiment(f"{case.name}-{number}", program, ranks, case.settings, {**case.environment, **environment})
        if case.network:
            if self.bed is None:
                if self.why is None:
                    try:
                        self.bed = bed.Bed(self.folder / "bed")
                    except outside.Missing as missing:
                        self.why = missing
                if self.bed is None:
                    raise self.why
            self.bed.clear()
            return Run(self.bed.console(self.args.console), folder, text, self.bed.hosts(case.nproc), self.bed.variables())
        prelude = "[ $RANK != 3 ] || sleep 1000" if case.name == "missing-rank" else ""
        return Run([self.args.console], folder, text, programs.hosts(case.nproc, prelude))

    def strike(self, run, case, rank, step, chance, undo):
        """From outside; `None` when the program strikes by itself."""
        if case.outside is None:
            return None
        # A memory limit must stand before the program takes more.
        if case.outside not in (outside.memory_limit, outside.frozen_disk, outside.held_lock):
            if not run.wait_iteration(step):
                raise outside.Missing(f"iteration {step} never came")
            run.pass_time(chance.random() * 0.5)
        if isinstance(case.outside, str):
            return getattr(self.bed, case.outside)(run, undo)
        return case.outside(run, rank, chance, undo)

    def alarm(self, case, number, chance):
        rank = chance.choice(case.victims or range(sum(case.nproc)))
        step = chance.randrange(*STEPS)
        fault = case.fault.format(rank=rank, step=step)
        environment = {"LAB_FAULT": fault} if programs.script(case.program) else {"TRAINER_INJECT": fault} if fault else {}
        folder = self.folder / f"{case.name}-{number}"
        own = [rank] if case.guilty == "rank" else [None]
        with contextlib.ExitStack() as undo:
            run = self.made(folder, case, number, environment)
            stopped = undo.enter_context(contextlib.ExitStack())
            undo.callback(run.finish)
            at = self.strike(run, case, rank, step, chance, stopped)
            if case.name == "missing-rank":
                event = run.wait(lambda event: event["kind"] == "rank" and event.get("pid"), 30)
                at = event and event[0]
            self.see(run, case, own, at)
            end_before = run.end()
            stopped.close()
            cleared = None
            if case.outside is outside.stop and end_before is None:
                # Once it is continued, it is over, and the run proceeds.
                seen = len(run.lines)
                cleared = run.wait(lambda event: event["kind"] == "verdict" and event["severity"] == "cleared" and event["rank"] == rank, 20) is not None
                run.pass_time(3)
                cleared = cleared and run.end() is None and any(event["kind"] == "progress" or event["kind"] == "log" for _, event in run.lines[seen:])
            end = run.finish()
            at = at or run.strike()
        reds = sorted((verdict for verdict in run.verdicts() if self.alarms(case, verdict[1])), key=lambda verdict: verdict[0])
        first = reds[0] if reds else None
        right = bool(first) and (case.guilty == "any" or first[1]["rank"] in own)
        mine = [event for _, event in reds if case.guilty == "any" or event["rank"] in own]
        code = mine[-1].get("reason_code") if mine else None
        missing = [word for word in case.words if not mine or word not in json.dumps(mine[-1])]
        result = dict(
            kind="must", name=case.name, case=case.matrix, group=case.group, rank=rank, step=step, struck=at is not None, alarmed=bool(first), guilty=right,
            code=code, reason=code in case.reasons and not missing, missing=missing, cleared=cleared,
            latency=first[0] - at if first and at else None, named=next((when - at for when, event in reds if event["rank"] in own), None) if at else None,
            others=sorted({(event["rank"], event.get("reason_code")) for _, event in reds if event not in mine}, key=str), sentence=first and first[1]["reason"],
            proved=bool(end and end["proved"]), left=run.leftovers() if not case.network else [], load=os.getloadavg()[0])
        self.print_result(result, folder, right and result["reason"] and not result["others"])

    def alarms(self, case, event):
        """A red verdict; where the case is about something milder, that too, by its reason."""
        return event["severity"] == "red" or event["severity"] == case.severity and event["reason_code"] in case.reasons

    def see(self, run, case, own, at):
        """Waits for the first verdict, and a little longer."""
        def fits(event):
            return event["kind"] == "run_finished" or event["kind"] == "verdict" and self.alarms(case, event)
        # Patience begins with the strike.
        if at is None:
            if case.fault and "all:" not in case.fault:
                run.wait(lambda event: event["kind"] == "run_finished" or fits(event) or event["kind"] == "log" and "inject: " in event.get("line", ""), 90)
            else:
                run.wait(lambda event: event["kind"] in ("progress", "run_finished"), 90)
        found = run.wait(fits, case.patience)
        if found and found[1]["kind"] == "verdict":
            run.pass_time(AFTER if case.settings.get("timeout_s", 600) > 60 else 12)

    def quiet(self, case, number, chance):
        rank, step = chance.randrange(sum(case.nproc)), chance.randrange(*STEPS)
        faults = case.faults.format(rank=rank, step=step)
        environment = {"LAB_FAULT": faults} if programs.script(case.program) else {"TRAINER_INJECT": faults} if faults else {}
        folder = self.folder / f"{case.name}-{number}"
        with contextlib.ExitStack() as undo:
            run = self.made(folder, case, number, environment)
            stopped = undo.enter_context(contextlib.ExitStack())
            undo.callback(run.finish)
            if case.outside is not None:
                if not run.wait_iteration(step):
                    raise outside.Missing(f"iteration {step} never came")
                getattr(self.bed, case.outside)(run, stopped) if isinstance(case.outside, str) else case.outside(run, rank, chance, stopped)
            elif not run.wait_iteration(1):
                raise outside.Missing("no iteration came")
            if case.ends:
                run.wait(lambda event: event["kind"] == "run_finished", case.seconds)
            else:
                run.pass_time(case.seconds)
            stopped.close()
            early = run.end()
            end = run.finish()
        reds = [event for _, event in run.verdicts("red")]
        ambers = sorted({event["reason_code"] for _, event in run.verdicts("amber")})
        bad = "" if (not early and not case.ends) or (early and early["outcome"] == case.ends) else f"ended {early and early['outcome']}: {early and early['reason']}"
        result = dict(kind="must not", name=case.name, case=case.matrix, reds=[[event["rank"], event["reason_code"], event["reason"]] for event in reds],
                      ambers=ambers, bad=bad, proved=bool(end and end["proved"]), left=run.leftovers() if not case.network else [], load=os.getloadavg()[0])
        self.print_result(result, folder, not reds and not bad)

    def print_result(self, result, folder, right):
        result["time"] = time.time()
        with self.out_lock:
            if self.args.json:
                with open(self.args.json, "a") as file:
                    file.write(json.dumps(result) + "\n")
            if result["kind"] == "must":
                rank = "right" if result["guilty"] else "WRONG RANK" if result["alarmed"] else "NO ALARM" if result["struck"] else "DID NOT STRIKE"
                latency = "-" if result["latency"] is None else f"{result['latency']:.2f} s"
                text = f"rank {result['rank']} step {result['step']:3}: {rank}, {'' if result['reason'] else 'REASON '}{result['code']}, {latency}"
                text += f"; MISSING {result['missing']}" if result["missing"] else ""
                text += f"; ALSO {result['others']}" if result["others"] else ""
                text += "; NOT CLEARED" if result["cleared"] is False else ""
            else:
                text = f"FALSE ALARM: {result['reds'][0]}" if result["reds"] else result["bad"] or "quiet"
                text += f"; amber {', '.join(result['ambers'])}" if result["ambers"] else ""
            text += "" if result["proved"] and not result["left"] else f"; NOT VERIFIED {result['left']}"
            print(f"{time.strftime('%H:%M:%S')} {result['case']:24} {result['name']:16} {text} (load {result['load']:.1f})", flush=True)
        if right or not self.args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            shutil.copytree(folder, pathlib.Path(self.args.keep) / f"{folder.name}-{int(time.time())}", dirs_exist_ok=True, ignore_dangling_symlinks=True)

    def one(self, case, number, chance):
        if case.name in self.broken:
            return
        lock = self.bed_lock if case.network else contextlib.nullcontext()
        try:
            with lock:
                (self.alarm if isinstance(case, cases.Case) else self.quiet)(case, number, chance)
        except Exception as missing:  # one broken case must not end the others
            if not isinstance(missing, outside.Missing):
                traceback.print_exc()
            with self.out_lock:
                print(f"{time.strftime('%H:%M:%S')} {case.matrix:24} {case.name:16} NOT MADE: {missing}", flush=True)
                if self.args.json:
                    with open(self.args.json, "a") as file:
                        file.write(json.dumps(dict(kind="not made", name=case.name, case=case.matrix, why=str(missing))) + "\n")
            if case.network and self.bed is None:
                self.broken.add(case.name)


def share(right, all_):
    return f"{right}/{all_} = {100 * right / all_:.1f}%" if all_ else "-"


def report(results):
    must = [r for r in results if r["kind"] == "must" and r["struck"]]
    quiet = [r for r in results if r["kind"] == "must not"]
    print("\nreport")
    if must:
        red = sum(r["alarmed"] for r in must)
        wrong = sum(not r["guilty"] for r in must if r["alarmed"]) + sum(len(r["others"]) for r in must) + sum(len(r["reds"]) for r in quiet)
        print(f"  recall                 {share(red, len(must))}")
        print(f"  precision              {share(red - sum(not r['guilty'] for r in must if r['alarmed']), red + wrong - sum(not r['guilty'] for r in must if r['alarmed']))} of all reds, second ones and false alarms included")
        print(f"  guilty rank            {share(sum(r['guilty'] for r in must), len(must))}")
        print(f"  reason                 {share(sum(r['reason'] for r in must), len(must))}")
        print(f"  end verified           {share(sum(r['proved'] and not r['left'] for r in must + quiet), len(must) + len(quiet))}")
        for group, bound in cases.BOUNDS.items():
            times = sorted(r["latency"] for r in must if r["group"] == group and r["latency"] is not None)
            if times:
                p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
                print(f"  time to verdict        {group:9} bound {bound:g} s: median {statistics.median(times):.2f} s, p95 {p95:.2f} s, worst {times[-1]:.2f} s of {len(times)}")
        print("  by case                                     right rank   reason       median     p95")
        for name in dict.fromkeys(r["name"] for r in must):
            of = [r for r in must if r["name"] == name]
            times = sorted(r["latency"] for r in of if r["latency"] is not None)
            figures = f"{statistics.median(times):6.2f} s {times[min(len(times) - 1, int(0.95 * len(times)))]:6.2f} s" if times else "-"
            print(f"    {of[0]['case']:24} {name:18} {sum(r['guilty'] for r in of):3}/{len(of):<8} {sum(r['reason'] for r in of):3}/{len(of):<7} {figures}")
    if quiet:
        print(f"  no false alarm         {share(sum(not r['reds'] for r in quiet), len(quiet))}")
        for name in dict.fromkeys(r["name"] for r in quiet):
            of = [r for r in quiet if r["name"] == name]
            ambers = sorted({code for r in of for code in r["ambers"]})
            print(f"    {of[0]['case']:24} {name:18} {sum(not r['reds'] and not r['bad'] for r in of):3}/{len(of):<4}" + (f" amber {', '.join(ambers)}" if ambers else ""))
    loads = [r["load"] for r in must + quiet]
    if loads:
        print(f"  load of the machine    {min(loads):.1f} to {max(loads):.1f}, median {statistics.median(loads):.1f}, {os.cpu_count()} cores")
    for r in {r["name"]: r for r in results if r["kind"] == "not made"}.values():
        print(f"  not made               {r['case']} {r['name']}: {r['why']}")
    for case, why in cases.CANNOT.items():
        print(f"  not here               {case}: {why}")
    return 0 if all(r["guilty"] and r["reason"] for r in must) and not any(r["reds"] or r["bad"] for r in quiet) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="names, or parts that end in *")
    parser.add_argument("--skip", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--keep")
    parser.add_argument("--report", action="store_true", help="only make the report of --json FILE")
    parser.add_argument("--console", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    args.console = os.path.abspath(args.console)
    needed = [name for name in ("LIBTORCH", "RANKDECK_TEST_PYTHON") if not os.environ.get(name)]
    if needed and not args.report:
        parser.error(f"{' and '.join(needed)} must be set: the built-in trainer and the scripts would never come")

    def among(name, listed):
        words = [word for word in listed.split(",") if word]
        return any(name == word or word.endswith("*") and name.startswith(word[:-1]) for word in words)

    selected = [case for case in itertools.chain(cases.MUST_ALARM, cases.MUST_NOT_ALARM)
              if (not args.only or among(case.name, args.only)) and not among(case.name, args.skip)]
    network = sorted({case.name for case in selected if case.network})
    if network and not args.report and (why := bed.missing()):
        print(f"will NOT be made: {', '.join(network)}: {why}", flush=True)
    chance = random.Random(args.seed)
    made = tempfile.NamedTemporaryFile(suffix=".jsonl") if not args.json else None
    args.json = args.json or made.name
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not args.report:
        with tempfile.TemporaryDirectory(prefix="rdlab") as folder:
            laboratory = Laboratory(args, pathlib.Path(folder))
            try:
                with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                    waits = [pool.submit(laboratory.one, case, f"{round_}", random.Random(chance.getrandbits(64)))
                             for round_ in range(args.rounds) for case in selected]
                    try:
                        for wait in waits:
                            wait.result()
                    except BaseException:
                        for wait in waits:
                            wait.cancel()
                        raise
            finally:
                if laboratory.bed:
                    laboratory.bed.close()
    return report([json.loads(line) for line in pathlib.Path(args.json).read_text().splitlines()])


if __name__ == "__main__":
    sys.exit(main())
