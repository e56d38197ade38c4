"""The matrix: what is broken, how, and what the watch must say.

`P` cases must end in a verdict about the right rank with one of the right reasons; `N` cases must stay without any red verdict. Names of cases
follow the research note on hangs, section 5.
"""
import dataclasses, typing

from . import outside

HARD, MISMATCH, SILENT, SLOW, STALL = "hard", "mismatch", "silent", "slow", "stall"
# Seconds from the strike to the first red verdict that the project promises (medians).
BOUNDS = {HARD: 2.0, MISMATCH: 2.0, SILENT: 7.0, STALL: 45.0}
RANKS = 4


@dataclasses.dataclass
class Case:
    """One way to break a run."""
    name: str
    matrix: str
    reasons: frozenset
    # hard, mismatch, silent; `stall`: nothing moves in the whole run. `slow` is about iterations and counts
    # in no time.
    group: str = HARD
    # Inside the trainer: `kill@{rank}:{step}`; inside the script: LAB_FAULT.
    fault: str = ""
    # From outside: a function of `outside`, or the name of one of `bed.Bed`.
    outside: typing.Callable | str | None = None
    # ppo, worker (a Python environment worker), ppg, script (with the hook), plain (script without the hook).
    program: str = "ppo"
    # `rank`: the one that was struck; `none`: no rank; `any`: any rank, or none.
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
    """One way to be slow or odd that is not a fault."""
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
TRIES = dict(SCRIPT, patience=55.0)
REPLICAS = dict(program="replicas", **THREE, patience=40.0)
PLAIN = dict(program="plain", **THREE, patience=40.0)
# Scripts as people write them, alone on one host or on two hosts.
PEOPLE = dict(**THREE, patience=60.0)
# Lightning takes as many ranks on every host.
PAIR = dict(nproc=(1, 1), patience=60.0)
# Alone, a stall is certain only after `init_budget_s` while the run is young.
ALONE = dict(nproc=(1,), patience=150.0)
TRACKER, WRITER, WORKERS = {"LAB_BESIDE": "tracker"}, {"LAB_BESIDE": "writer"}, {"LAB_BESIDE": "workers"}


def _healthy(name, program, faults, **more):
    return Quiet(name, "people", **{"seconds": 50, "program": program, "faults": faults, "nproc": (2, 1), **more})


def _of_others(program, hosts):
    """Faults of a third-party script."""
    more = dict(program=program, matrix="others", **hosts)
    def case(name, reasons, **own):
        return Case(f"{program}-{name}", reasons=frozenset(reasons.split()), **{**more, **own})
    silent = dict(group=SILENT, words=("happenings.py:",))
    return [
        case("kill", "killed", outside=outside.kill),
        case("stop", "stopped", outside=outside.stop),
        case("raises", "failed", fault="raises@{rank}:{step}", words=("KeyError", "happenings.py:")),
        case("noisy", "failed", fault="noisy@{rank}:{step}", environment=TRACKER, words=("KeyError",)),
        case("leaves", "left_early", fault="leaves@{rank}:{step}"),
        case("deadlock", "lock", fault="lock@{rank}:{step}", environment=WRITER, **silent),
        case("polls", "polling", fault="polled@{rank}:{step}", environment=TRACKER, severity="amber", **{**silent, "group": SLOW, "patience": 55.0}),
        case("simulator", "waits_for_peer", fault="server@{rank}:{step}", severity="amber", environment=TRACKER, **silent),
        case("fifo", "fifo", fault="fifo@{rank}:{step}", environment=WRITER, **silent),
        case("child", "child_process", fault="child@{rank}:{step}", group=SILENT, words=("sleep 1000",)),
        case("regex", "gil_held", fault="regex@{rank}:{step}", severity="amber", environment=TRACKER, **silent),
    ]


def _well(program, hosts):
    """Long phases of a healthy third-party script."""
    return [_healthy(f"{program}-{name}", program, f"{name}@{who}:20", **{**hosts, "seconds": 50})
            for name, who in (("evaluates", 0), ("saves", 0), ("downloads", "{rank}"), ("compiles", "{rank}"))]


# CleanRL's takes LOCAL_RANK for its rank: one host. Lightning takes as many ranks on every host.
OTHERS = {"sb3": dict(nproc=(2, 1), patience=60.0), "lightning": dict(nproc=(1, 1), patience=60.0), "other": dict(nproc=(2,), patience=60.0)}

MUST_ALARM = [
    *(case for program, hosts in OTHERS.items() for case in _of_others(program, hosts)),
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
    # A script that computes looks like one that spins: amber within seconds, red after
    # `watch.rank0_budget_s`.
    _case("script-spin", "P30, P14", "spinning", group=SILENT, severity="amber", fault="spin@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-gil", "P30, P15", "gil_held", group=SILENT, fault="gil@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-op", "P30, P16", "op_mismatch", group=MISMATCH, fault="op@{rank}:{step}", **SCRIPT),
    _case("script-count", "P30, P17", "size_mismatch", group=MISMATCH, fault="count@{rank}:{step}", **SCRIPT),
    _case("script-leave", "P30, P19", "left_early", fault="leave@{rank}:{step}", **SCRIPT),
    _case("script-worker", "P30, P13", "env_worker_deadlocked pipe", group=SILENT, outside=outside.stop_worker, **SCRIPT),
    _case("script-order", "P29", "order_deadlock", group=SILENT, fault="order@{rank}:{step}", guilty="none", program="script", patience=40.0),
    _case("script-init-kill", "start", "killed", fault="init-kill@{rank}:0", **SCRIPT),
    _case("script-init-raise", "start", "failed", fault="init-raise@{rank}:0", words=("ValueError",), **SCRIPT),
    _case("script-init-exit", "start", "failed", fault="init-exit@{rank}:0", **SCRIPT),
    _case("script-join-port", "start", "rendezvous_mismatch", group=MISMATCH, fault="join-port@{rank}:0", words=("port",), **SCRIPT),
    _case("script-join-world", "start", "rendezvous_mismatch", group=MISMATCH, fault="join-world@{rank}:0", words=("world size",), **SCRIPT),
    _case("script-recv", "P30, P12", "lock", group=SILENT, fault="recv@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-irecv", "P30, P12", "lock", group=SILENT, fault="irecv@{rank}:{step}", words=("script.py:",), **SCRIPT),
    _case("script-fifo-read", "blocked", "fifo", group=SILENT, fault="fifo-read@{rank}:{step}", words=("faults.py:", "/orders"), **SCRIPT),
    _case("script-fifo-write", "blocked", "fifo", group=SILENT, fault="fifo-write@{rank}:{step}", words=("faults.py:", "/orders"), **SCRIPT),
    _case("script-flock", "blocked", "file_lock", group=SILENT, fault="flock@{rank}:{step}", words=("index.lock", "pid"), **SCRIPT),
    _case("script-lockf", "blocked", "file_lock", group=SILENT, fault="lockf@{rank}:{step}", words=("index.lock", "pid"), **SCRIPT),
    # Each try may read the file: amber after half a minute, red after `watch.rank0_budget_s`.
    _case("script-tried", "blocked", "file_lock", group=SLOW, severity="amber", fault="tried@{rank}:{step}", words=("index.lock", "pid", "faults.py:"), **TRIES),
    _case("script-database", "blocked", "file_lock", group=SLOW, severity="amber", fault="database@{rank}:{step}", words=("study.db", "pid", "faults.py:"), **TRIES),
    _case("script-accept", "blocked", "waits_for_peer", group=SILENT, severity="amber", fault="accept@{rank}:{step}", words=("127.0.0.1:", "faults.py:"), **SCRIPT),
    _case("script-accept-path", "blocked", "waits_for_peer", group=SILENT, severity="amber", fault="accept-path@{rank}:{step}", words=("/orders", "faults.py:"), **SCRIPT),
    _case("script-child-server", "blocked", "waits_for_peer", group=SILENT, severity="amber", fault="child-server@{rank}:{step}", words=("/simulator", "pid", "faults.py:"), **SCRIPT),
    _case("script-server", "blocked", "waits_for_peer", group=SILENT, severity="amber", fault="server@{rank}:{step}", words=("127.0.0.1:", "faults.py:"), **SCRIPT),
    _case("script-server-poll", "blocked", "waits_for_peer", group=SILENT, severity="amber", fault="server-poll@{rank}:{step}", words=("127.0.0.1:",), **SCRIPT),
    _case("script-name-server", "blocked", "name_lookup", group=SILENT, fault="name-server@{rank}:{step}", words=("127.0.0.1:53",), **SCRIPT),
    _case("script-child", "blocked", "child_process", group=SILENT, fault="child@{rank}:{step}", words=("sleep 1000",), **SCRIPT),
    _case("script-child-output", "blocked", "pipe child_process", group=SILENT, fault="child-output@{rank}:{step}", words=("sleep 1000",), **SCRIPT),
    _case("script-stopped-reader", "blocked", "pipe", group=SILENT, fault="stopped-reader@{rank}:{step}", words=("stopped",), **SCRIPT),
    _case("script-loader", "blocked", "data_loader", group=SILENT, fault="loader@{rank}:{step}", words=("faults.py:",), **SCRIPT),
    _case("script-regex", "lock in C", "gil_held", group=SILENT, severity="amber", fault="regex@{rank}:{step}", words=("faults.py:",), **SCRIPT),
    _case("script-power", "lock in C", "gil_held", group=SILENT, severity="amber", fault="power@{rank}:{step}", words=("faults.py:",), **SCRIPT),
    _case("script-noise-raise", "ends", "failed", fault="noise-raise@{rank}:{step}", words=("KeyError", "faults.py:"), **SCRIPT),
    _case("script-noise-segv", "ends", "crashed", fault="noise-segv@{rank}:{step}", **SCRIPT),
    _case("script-noise-exit", "ends", "failed", fault="noise-exit@{rank}:{step}", **SCRIPT),
    _case("script-reset", "ends", "failed", fault="reset@{rank}:{step}", words=("ConnectionResetError",), **SCRIPT),
    _case("script-full-disk", "ends", "disk_full", fault="full-disk@{rank}:{step}", **SCRIPT),
    _case("script-port", "ends", "port_taken", fault="port@{rank}:{step}", **SCRIPT),
    _case("script-out-of-memory", "ends", "out_of_memory", fault="out-of-memory@{rank}:{step}", **SCRIPT),
    _case("plain-noise-raise", "ends, without hook", "failed", fault="noise-raise@{rank}:{step}", words=("KeyError",), **PLAIN),
    _case("replicas-never-sync", "drift", "weights_differ", group=MISMATCH, fault="never-sync@0:{step}", guilty="none", severity="amber", **REPLICAS),
    _case("replicas-no-sync", "drift", "weights_differ", group=MISMATCH, fault="no-sync@{rank}:{step}", guilty="none", severity="amber", **REPLICAS),
    _case("replicas-own-gradient", "drift", "weights_differ", group=MISMATCH, fault="own-gradient@{rank}:{step}", **REPLICAS),
    _case("replicas-skip-step", "drift", "weights_differ", group=MISMATCH, fault="skip-step@{rank}:{step}", **REPLICAS),
    _case("replicas-idle", "drift", "optimizer_idle", group=SLOW, severity="amber", fault="idle@{rank}:{step}", **REPLICAS),
    _case("replicas-nan", "drift", "weights_not_finite", group=MISMATCH, fault="nan@{rank}:{step}", guilty="any", **REPLICAS),
    _case("plain-kill", "P30 without hook, P1", "killed", outside=outside.kill, **PLAIN),
    _case("plain-stop", "P30 without hook, P7", "stopped", outside=outside.stop, **PLAIN),
    _case("plain-raise", "P30 without hook, P4", "failed", fault="raise@{rank}:{step}", **PLAIN),
    _case("tracker-lock", "people", "lock", group=SILENT, fault="lock@{rank}:{step}", program="cleanrl", environment=TRACKER, words=("happenings.py:",), **PEOPLE),
    _case("writer-lock", "people", "lock", group=SILENT, fault="lock@{rank}:{step}", program="cleanrl", environment=WRITER, words=("happenings.py:",), **PEOPLE),
    _case("tracker-polled", "people", "polling", group=SLOW, severity="amber", fault="polled@{rank}:{step}", program="cleanrl", environment=TRACKER, words=("happenings.py:",), **{**PEOPLE, "patience": 55.0}),
    _case("tracker-server", "people", "waits_for_peer", group=SILENT, severity="amber", fault="server@{rank}:{step}", program="cleanrl", environment=TRACKER, words=("happenings.py:",), **PEOPLE),
    _case("people-worker-dies", "deeper", "worker_died", group=SILENT, fault="worker_dies@{rank}:{step}", program="cleanrl", environment=WORKERS, words=("happenings.py:", "SIGKILL"), **PEOPLE),
    _case("people-collector", "deeper", "waits_for_peer", group=SILENT, severity="amber", fault="collects@{rank}:{step}", program="cleanrl", words=("thread collector",), **PEOPLE),
    _case("people-coroutine", "deeper", "pipe", group=SILENT, fault="judges@{rank}:{step}", program="cleanrl", words=("in verdict",), **PEOPLE),
    _case("spawned-lock", "deeper", "lock", group=SILENT, fault="lock@1:{step}", program="spawned", guilty="any", words=("inside rank 0's process", "happenings.py:"), **ALONE),
    _case("people-worker-reaped", "deeper", "worker_died", group=SILENT, fault="worker_reaped@{rank}:{step}", program="cleanrl", environment=WORKERS, words=("happenings.py:",), **PEOPLE),
    _case("people-dials", "deeper", "polling", group=SLOW, severity="amber", fault="dials@{rank}:{step}", program="cleanrl", words=("where nothing listens", "happenings.py:"), **{**PEOPLE, "patience": 55.0}),
    _case("people-awaits-file", "deeper", "polling", group=SLOW, severity="amber", fault="awaits_file@{rank}:{step}", program="cleanrl", words=("/nowhere/ready.flag", "happenings.py:"), **{**PEOPLE, "patience": 55.0}),
    _case("replicas-own-scale", "drift", "normalizers_differ", group=SLOW, severity="amber", fault="own-scale@0:{step}", guilty="none", **REPLICAS),
    _case("sb3-lock", "people", "lock", group=SILENT, fault="lock@{rank}:{step}", program="sb3", environment=TRACKER, words=("happenings.py:",), **PEOPLE),
    _case("lightning-lock", "people", "lock", group=SILENT, fault="lock@{rank}:{step}", program="lightning", environment=WRITER, words=("happenings.py:",), **PAIR),
    _case("loader-lock", "people", "data_loader env_worker_deadlocked lock unknown", group=SILENT, fault="lock@{rank}:{step}", program="loader", **PEOPLE),
    _case("wrapped-lock", "people", "lock", group=SILENT, fault="lock@{rank}:{step}", program="cleanrl-wrapped", environment=WRITER, words=("happenings.py:",), **PEOPLE),
    _case("wrapped-stop", "people", "stopped", outside=outside.stop_program, program="cleanrl-wrapped", **PEOPLE),
    _case("all-lock", "people", "standstill", group=STALL, fault="lock@all:{step}", program="cleanrl", guilty="none", words=("happenings.py:",), nproc=(2, 1), patience=90.0),
    _case("all-flock", "people", "standstill", group=STALL, fault="flock@all:{step}", program="cleanrl", guilty="none", outside=outside.held_lock, environment={"LAB_LOCK": str(outside.LOCKED)}, words=("happenings.py:",), nproc=(2, 1), patience=90.0),
    _case("all-server", "people", "standstill", group=STALL, fault="server@all:{step}", program="cleanrl", guilty="none", words=("happenings.py:",), nproc=(2, 1), patience=90.0),
    _case("alone-lock", "people", "standstill", group=STALL, fault="lock@{rank}:{step}", program="cleanrl", environment={**TRACKER, "LAB_PAST": "40"}, words=("happenings.py:",), **ALONE),
    # Without the hook nothing shows that the loop has begun: the run needs a past.
    _case("plain-lock", "people", "standstill", group=STALL, fault="lock@{rank}:{step}", program="cleanrl-plain", environment={**TRACKER, "LAB_PAST": "40"}, words=("happenings.py:",), nproc=(2, 1), patience=90.0),
    _case("remains", "people", "teardown_stall", group=STALL, fault="remains@{rank}:{step}", program="cleanrl", environment={"LAB_STEPS": "60"}, nproc=(2, 1), patience=60.0),
    _case("network-drop", "P10", "network_loss", group=SILENT, outside="drop_both", guilty="none", network=True, patience=40.0),
    _case("one-way", "P11", "one_way_loss", group=SILENT, outside="drop_one_way", guilty="none", network=True, patience=40.0),
    _case("firewall", "P11", "one_way_loss network_loss", group=SILENT, outside="drop_output", guilty="none", network=True, patience=40.0),
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
    *(case for program, hosts in OTHERS.items() for case in _well(program, {"nproc": hosts["nproc"]})
      if case.name not in ("sb3-evaluates", "lightning-saves")),
    _healthy("people-evaluates", "cleanrl", "evaluates@0:20", environment=TRACKER),
    _healthy("people-prints", "cleanrl", "prints@0:20", environment=WRITER),
    _healthy("people-answers", "cleanrl", "answers@0:20"),
    _healthy("people-datagrams", "cleanrl", "datagrams@{rank}:20"),
    _healthy("people-uploads", "cleanrl", "uploads@0:20", environment=TRACKER),
    _healthy("people-appears", "cleanrl", "appears@{rank}:20"),
    _healthy("wrapped-answers", "cleanrl-wrapped", "answers@0:20"),
    _healthy("wrapped-datagrams", "cleanrl-wrapped", "datagrams@0:20"),
    _healthy("people-saves", "cleanrl", "saves@0:20"),
    _healthy("people-compiles", "cleanrl", "compiles@{rank}:20"),
    _healthy("people-downloads", "cleanrl", "downloads@{rank}:20"),
    _healthy("people-prepares", "cleanrl", "prepares@{rank}:20"),
    _healthy("people-sleeps", "cleanrl", "sleeps@0:20"),
    _healthy("people-starts", "cleanrl", "computes@{rank}:1"),
    _healthy("people-beside", "cleanrl", "", environment=TRACKER, seconds=25),
    _healthy("all-sleep", "cleanrl", "sleeps@all:20"),
    _healthy("alone-downloads", "cleanrl", "downloads@0:20", nproc=(1,)),
    _healthy("sb3-evaluates", "sb3", "evaluates@0:20", environment=TRACKER),
    _healthy("lightning-saves", "lightning", "saves@0:20", nproc=(1, 1)),
    _healthy("loader-prepares", "loader", "computes@{rank}:20"),
    _healthy("plain-evaluates", "cleanrl-plain", "evaluates@0:20"),
    Quiet("restart", "N12", 6, outside=outside.restart),
    Quiet("script-groups", "N14", 20, program="script", nproc=(2, 1), environment={"LAB_MODE": "groups"}),
    Quiet("replicas", "drift", 20, program="replicas", nproc=(2, 1)),
    Quiet("replicas-own-noise", "drift", 20, program="replicas", nproc=(2, 1), environment={"LAB_MODE": "own-noise"}),
    Quiet("replicas-scaler", "drift", 20, program="replicas", nproc=(2, 1), environment={"LAB_MODE": "scaler"}),
    Quiet("replicas-scale", "drift", 20, program="replicas", nproc=(2, 1), environment={"LAB_MODE": "scale"}),
    Quiet("replicas-batch-norm", "drift", 20, program="replicas", nproc=(2, 1), environment={"LAB_MODE": "batch-norm"}),
    Quiet("script-fast", "N15", 20, program="script", nproc=(2, 1), environment={"LAB_MODE": "fast"}),
]

CANNOT = {
    "P15 in the built-in trainer": "it has no interpreter lock; the script has it",
    "P24, a taken port": "refused by the preflight before anything starts: tests/hosts/faults.rs",
    "P30 without hook, P15, P16": "not detected in seconds: who waits for whom is unknown (docs/architecture.md)",
    "P31, P32": "scripted RAS server and fake NVML: unit tests",
    "N13": "a jump of the wall clock of one host: clocks are the machine's; trace in src/core/watch/tests",
    "N16": "suspending the whole machine: trace in src/core/watch/tests",
    "N17, 24 h": "benches/soak.py runs as long as requested",
}
