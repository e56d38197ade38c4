"""The matrix: what is broken, how, and what the watch must say.

`P` cases must end in a verdict about the right rank with one of the right reasons; `N` cases must stay without any red verdict. Names of cases
follow the research note on hangs, section 5.
"""
import dataclasses, typing

from . import outside

HARD, MISMATCH, SILENT, SLOW = "hard", "mismatch", "silent", "slow"
# Seconds from the strike to the first red verdict that the project promises (medians).
BOUNDS = {HARD: 2.0, MISMATCH: 2.0, SILENT: 7.0}
RANKS = 4


@dataclasses.dataclass
class Case:
    """One way to break a run."""
    name: str
    matrix: str
    reasons: frozenset
    # hard, mismatch, silent; `slow` is about iterations and counts in no time.
    group: str = HARD
    # Inside the trainer: `kill@{rank}:{step}`; inside the script: LAB_FAULT.
    fault: str = ""
    # From outside: a function of `outside`, or the name of one of `bed.Bed`.
    outside: typing.Callable | str | None = None
    # ppo, worker (a Python environment worker), ppg, script (with the hook), plain (script without the hook).
    program: str = "ppo"
    # `rank`: the one that was struck; `none`: nobody may be blamed; `any`: whoever, or nobody.
    guilty: str = "rank"
    severity: str = "red"
    # Only these ranks are struck.
    victims: tuple = ()
    # Ranks on each host.
    nproc: tuple = (2, 2)
    # Seconds until it counts as missed.
    patience: float = 25.0
    # total_steps, timeout_s, eval_every, checkpoint_every.
    settings: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    # On the bed of hosts with a network between them.
    network: bool = False
    # Words that the verdict or its card must hold.
    words: tuple = ()


@dataclasses.dataclass
class Quiet:
    """One way to be slow or odd that is no fault."""
    name: str
    matrix: str
    seconds: float = 20.0
    faults: str = ""
    outside: typing.Callable | str | None = None
    program: str = "ppo"
    nproc: tuple = (2, 2)
    # total_steps, timeout_s, eval_every, checkpoint_every.
    settings: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    network: bool = False
    # It must end by itself, with this outcome.
    ends: str = ""


def _case(name, matrix, reasons, **more):
    return Case(name, matrix, frozenset(reasons.split()), **more)


THREE = dict(nproc=(2, 1))
SCRIPT = dict(program="script", **THREE, patience=40.0)
PLAIN = dict(program="plain", **THREE, patience=40.0)

MUST_ALARM = [
    _case("kill", "P2", "killed", fault="kill@{rank}:{step}"),
    _case("kill-outside", "P2", "killed", outside=outside.kill),
    _case("kill-with-worker", "P1", "killed", outside=outside.kill, program="worker"),
    _case("segv", "P3", "crashed", fault="segv@{rank}:{step}"),
    _case("abort", "P3", "crashed", fault="abort@{rank}:{step}"),
    _case("raise", "P4", "failed", fault="raise@{rank}:{step}"),
    _case("exit", "P4", "failed", fault="exit@{rank}:{step}"),
    _case("memory", "P5", "out_of_memory", fault="oom=4000@{rank}:60", outside=outside.memory_limit),
    _case("disk-full", "P6", "disk_full", fault="disk-full@{rank}:{step}", victims=(0,)),
    _case("stop", "P7", "stopped", fault="stop@{rank}:{step}"),
    _case("stop-outside", "P7", "stopped", outside=outside.stop),
    _case("freezer-v1", "P8", "cgroup_frozen", outside=outside.freezer_v1),
    _case("freezer-v2", "P8", "cgroup_frozen", outside=outside.freezer_v2),
    _case("frozen-disk", "P9", "storage", group=SILENT, outside=outside.frozen_disk, victims=(0,), settings=dict(checkpoint_every=40, eval_every=0)),
    _case("lock", "P12", "lock", group=SILENT, fault="lock@{rank}:{step}", words=("injection.rs:",)),
    _case("lock-aux", "P12", "lock", group=SILENT, fault="lock-aux@{rank}:{step}", program="ppg", nproc=(1, 1), words=("injection.rs:", "ppg.rs:")),
    _case("sleep-env", "P13", "sleeping env_worker_deadlocked", group=SILENT, fault="sleep-env@{rank}:{step}"),
    _case("stop-worker", "P13", "env_worker_deadlocked", group=SILENT, outside=outside.stop_worker, program="worker"),
    _case("kill-worker", "P13", "env_worker_died failed", outside=outside.kill_worker, program="worker"),
    _case("spin", "P14", "spinning", group=SILENT, fault="spin@{rank}:{step}", words=("injection.rs:",)),
    _case("mismatch-op", "P16", "op_mismatch", group=MISMATCH, fault="mismatch-op@{rank}:{step}"),
    _case("mismatch-count", "P17", "size_mismatch", group=MISMATCH, fault="mismatch-count@{rank}:{step}"),
    _case("mismatch-dtype", "P17", "size_mismatch", group=MISMATCH, fault="mismatch-dtype@{rank}:{step}"),
    _case("mismatch-root", "P17", "size_mismatch", group=MISMATCH, fault="mismatch-root@{rank}:{step}"),
    _case("skip", "P18", "skipped_call silent_shift", group=MISMATCH, fault="skip@{rank}:{step}"),
    _case("leave", "P19", "left_early", fault="leave@{rank}:{step}"),
    _case("extra-barrier", "P20", "extra_call", group=MISMATCH, fault="extra-barrier@{rank}:{step}"),
    _case("no-sync", "P21", "weights_differ no_collectives", group=MISMATCH, fault="no-sync@all:{step}", guilty="none"),
    _case("throttled", "P22", "throttled", group=SLOW, outside=outside.quota, severity="amber", patience=90.0),
    _case("slow", "P23", "slow_compute", group=SLOW, fault="slow=30@{rank}:{step}", severity="amber", patience=60.0),
    _case("missing-rank", "P24", "rendezvous_incomplete", group=SILENT, victims=(3,), patience=30.0),
    _case("teardown", "P25", "teardown_stall", group=SILENT, fault="teardown@{rank}:0", settings=dict(total_steps=4000, eval_every=0)),
    _case("double", "P28", "stopped", fault="stop@{rank}:{step}", settings=dict(timeout_s=8, eval_every=0)),
    _case("script-kill", "P30, P1", "killed", outside=outside.kill, **SCRIPT),
    _case("script-stop", "P30, P7", "stopped", outside=outside.stop, **SCRIPT),
    _case("script-raise", "P30, P4", "failed", fault="raise@{rank}:{step}", **SCRIPT),
    _case("script-lock", "P30, P12", "lock", group=SILENT, fault="lock@{rank}:{step}", words=("script.py:",), **SCRIPT),
    # Nothing tells a script that computes from one that spins: amber within seconds, red after `watch.rank0_budget_s`.
    _case("script-spin", "P30, P14", "spinning", group=SILENT, severity="amber", fault="spin@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-gil", "P30, P15", "gil_held", group=SILENT, fault="gil@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-op", "P30, P16", "op_mismatch", group=MISMATCH, fault="op@{rank}:{step}", **SCRIPT),
    _case("script-count", "P30, P17", "size_mismatch", group=MISMATCH, fault="count@{rank}:{step}", **SCRIPT),
    _case("script-leave", "P30, P19", "left_early", fault="leave@{rank}:{step}", **SCRIPT),
    _case("script-worker", "P30, P13", "env_worker_deadlocked", group=SILENT, outside=outside.stop_worker, **SCRIPT),
    _case("script-order", "P29", "order_deadlock", group=SILENT, fault="order@{rank}:{step}", guilty="none", program="script", patience=40.0),
    _case("plain-kill", "P30 without hook, P1", "killed", outside=outside.kill, **PLAIN),
    _case("plain-stop", "P30 without hook, P7", "stopped", outside=outside.stop, **PLAIN),
    _case("plain-raise", "P30 without hook, P4", "failed", fault="raise@{rank}:{step}", **PLAIN),
    _case("network-drop", "P10", "network_loss", group=SILENT, outside="drop_both", guilty="none", network=True, patience=40.0),
    _case("one-way", "P11", "one_way_loss", group=SILENT, outside="drop_one_way", guilty="none", network=True, patience=40.0),
    _case("link-down", "P11", "link_down host_silent network_loss", group=SILENT, outside="link_down", guilty="none", network=True, patience=40.0),
    _case("frozen-host", "P26", "host_silent agent_silent", group=SILENT, outside="freeze", guilty="none", network=True, patience=40.0),
]

MUST_NOT_ALARM = [
    Quiet("healthy", "N17"),
    Quiet("long-eval", "N1", 40, "long-eval=1@0:5"),
    Quiet("busy-eval", "N2", 85, program="script", nproc=(2, 1), environment={"LAB_MODE": "evaluate"}),
    Quiet("slow-start", "N3", 45, "slow-start=30@{rank}:0"),
    Quiet("slow-checkpoint", "N4", 40, "slow-checkpoint=1@0:0", settings=dict(checkpoint_every=10)),
    Quiet("lognormal-env", "N5", 40, "lognormal-env=1@all:0"),
    Quiet("pause", "N6", 25, "pause=4@{rank}:{step}"),
    Quiet("busy-machine", "N7", 2, outside=outside.busy_machine),
    Quiet("short-stop", "N8", 2, outside=outside.short_stops),
    Quiet("short-loss", "N9", 12, outside="short_loss", network=True),
    Quiet("lost-session", "N10", 12, outside="lost_session", network=True),
    Quiet("console-lost", "P27", 12, outside="sshd_gone", network=True),
    Quiet("finish", "N11", 90, settings=dict(total_steps=6000), ends="succeeded"),
    Quiet("script-finish", "N11", 60, program="script", nproc=(2, 1), environment={"LAB_MODE": "finish", "LAB_STEPS": "150"}, ends="succeeded"),
    Quiet("restart", "N12", 6, outside=outside.restart),
    Quiet("script-groups", "N14", 20, program="script", nproc=(2, 1), environment={"LAB_MODE": "groups"}),
    Quiet("script-fast", "N15", 20, program="script", nproc=(2, 1), environment={"LAB_MODE": "fast"}),
]

CANNOT = {
    "P15 in the built-in trainer": "it has no interpreter lock; the script has it",
    "P24, a taken port": "refused by the preflight before anything starts: tests/hosts/faults.rs",
    "P30 without hook, P12, P15, P16": "not told: nothing shows who waits for whom (docs/ARCHITECTURE.md)",
    "P31, P32": "scripted RAS server and fake NVML: unit tests",
    "N13": "a jump of the wall clock of one host: clocks are the machine's; trace in src/core/watch/tests",
    "N16": "suspending the whole machine: trace in src/core/watch/tests",
    "N17, 24 h": "benches/soak.py runs as long as it is told",
}
