//! Checks of hosts with one fault each.

use super::*;
use crate::cli::support::preflight::CheckStatus;
use rankdeck_proto::examination::{
    ConnectResult, GpuFinding, GpuHealth, GpuProcess, Interface, ListenResult, ProcessLimits, ProgramFinding,
    Route,
};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::host::{GpuSelection, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;

pub(crate) fn draft(hosts: usize) -> PlanDraft {
    let experiment =
        toml::from_str("[run]\nname = \"t\"\n[launch]\ncommand = [\"python3\", \"train.py\"]").unwrap();
    let host = |node: usize| Host {
        name: format!("h{node}"),
        address: format!("h{node}"),
        workdir: "w".into(),
        transport: Transport::Ssh,
        ..Host::default()
    };
    PlanDraft {
        run: RunId("t-1".into()),
        experiment,
        program: None,
        asked: Default::default(),
        hosts: (0..hosts).map(host).collect(),
        excluded: Default::default(),
        resume: None,
        drill: false,
    }
}

pub(crate) fn subject(draft: &PlanDraft) -> PreflightInput<'_> {
    PreflightInput { draft, code: None, can_upload: false, places: Vec::new() }
}

/// A host that passes every check.
pub(crate) fn good() -> HostAnswer {
    let findings = HostFindings {
        arrived: 100.1,
        answered: 100.2,
        probe: Probe { hostname: "h".into(), cpu_count: 4, ..Probe::default() },
        user: "u".into(),
        disk: Disk {
            path: "/w".into(),
            free: 1 << 40,
            total: 1 << 41,
            free_files: 1 << 20,
            error: None,
            distrust: None,
        },
        shm: Disk { free: 1 << 30, ..Disk::default() },
        limits: ProcessLimits::default(),
        interfaces: ["lo", "eth0"].map(|name| Interface { name: name.into(), addresses: vec![] }).to_vec(),
        route: Some(Route {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            interface: Some("eth0".into()),
            error: None,
        }),
        program: Some(ProgramFinding {
            path: Some("/usr/bin/python3".into()),
            script_exists: true,
            script: Some("/w/train.py".into()),
            ..ProgramFinding::default()
        }),
        ..HostFindings::default()
    };
    HostAnswer { findings, asked: 100.0, answered: 100.3, shell: 0.1 }
}

fn judge_with(
    draft: &PlanDraft,
    node: usize,
    change: impl Fn(&mut HostAnswer),
) -> Vec<(&'static str, CheckResult)> {
    let mut examined = good();
    change(&mut examined);
    CHECKS.into_iter().zip(column(&subject(draft), node, &Ok(examined))).collect()
}

/// The one check that does not pass.
fn only(
    draft: &PlanDraft,
    node: usize,
    change: impl Fn(&mut HostAnswer),
) -> (&'static str, CheckStatus, String, String) {
    let bad: Vec<_> = judge_with(draft, node, change)
        .into_iter()
        .filter(|(_, cell)| cell.status > CheckStatus::Passed)
        .collect();
    let [(name, cell)] = bad.as_slice() else { panic!("{bad:?}") };
    assert!(cell.status == CheckStatus::Passed || !cell.hint.is_empty(), "CHECK-2: {cell:?}");
    (name, cell.status, cell.text.clone(), cell.key.clone())
}

#[test]
fn good_host_passes_every_check() {
    let cells = judge_with(&draft(2), 1, |_| {});
    assert!(cells.iter().all(|(_, cell)| cell.status == CheckStatus::Passed), "{cells:?}");
    assert_eq!(cells.len(), CHECKS.len());
}

/// The host has one GPU with 100 bytes of memory, `used` of them in use.
fn with_gpu(examined: &mut HostAnswer, used: u64, processes: Vec<GpuProcess>) {
    examined.findings.probe.gpu_count = 1;
    examined.findings.gpus = vec![GpuFinding {
        index: 0,
        name: "g".into(),
        uuid: String::new(),
        memory_used: used,
        memory_total: 100,
        processes,
        health: GpuHealth::default(),
        lost: false,
    }];
}

fn python() -> GpuProcess {
    GpuProcess { pid: 7, bytes: 1, command: "python".into(), run: None }
}

#[test]
fn gpu_problems_are_reported_together() {
    use CheckStatus::{Failed, Warning};
    let mut gpus = draft(2);
    gpus.hosts[1].gpus = Some(GpuSelection::Count(1));
    let of = |change: &dyn Fn(&mut HostAnswer)| {
        let (name, status, text, key) = only(&gpus, 1, change);
        assert_eq!(name, "gpus", "{text}");
        (status, text, key)
    };
    let refused = of(&|e| {
        with_gpu(e, 50, vec![python()]);
        e.findings.gpu_check = Some(Err(HintedError::new("no kernel", "another libtorch")));
    });
    let words = "the trainer cannot use the GPUs: no kernel; GPU 0 is in use: process 7 (python) uses 1B";
    assert_eq!(refused, (Failed, words.to_owned(), "host.1.libtorch".to_owned()));
    let none = GpuHealth::default();
    for (health, status, words) in [
        (GpuHealth { uncorrected: 2, ..none }, Warning, "GPU 0: 2 memory errors uncorrected"),
        (GpuHealth { reset_pending: true, ..none }, Warning, "GPU 0"),
        (GpuHealth { remap_failed: true, ..none }, Failed, "GPU 0"),
    ] {
        let found = of(&|e| {
            with_gpu(e, 0, vec![]);
            e.findings.gpus[0].health = health;
        });
        assert!(found.0 == status && found.1.contains(words) && found.2 == "host.1.gpus", "{found:?}");
    }
}

#[test]
fn check_2_every_check_finds_its_fault_and_key() {
    let two = draft(2);
    let mut gpus = draft(2);
    gpus.hosts[1].gpus = Some(GpuSelection::Count(1));
    let case =
        |name: &str, status, word: &str, key: &str, draft: &PlanDraft, change: &dyn Fn(&mut HostAnswer)| {
            let found = only(draft, 1, change);
            assert_eq!((found.0, found.1, found.3.as_str()), (name, status, key), "{found:?}");
            assert!(found.2.contains(word), "{found:?}");
        };
    use CheckStatus::{Failed, Warning};
    case("reach", Warning, "2.5 s", "", &two, &|e| e.shell = 2.5);
    case("ranks", Warning, "1 ranks on 0 cores", "host.1.nproc", &two, &|e| e.findings.probe.cpu_count = 0);
    case("ranks", Failed, "", "run.name", &two, &|e| e.findings.run_exists = true);
    let mut target = draft(2);
    target.experiment.run.total_steps = 9;
    case("program", Warning, "run.total_steps", "run.total_steps", &target, &|_| {});
    target.experiment.launch.command.push("--steps={run.total_steps}".into());
    assert!(judge_with(&target, 1, |_| {}).iter().all(|(_, cell)| cell.status == CheckStatus::Passed));
    let mut saved = draft(2);
    saved.experiment.checkpoint.every = 5;
    case("program", Warning, "[checkpoint]", "checkpoint", &saved, &|_| {});
    case("gpus", Failed, "GPU 0", "host.1.gpus", &gpus, &|_| {});
    case("gpus", Warning, "process 7 (python)", "host.1.gpus", &gpus, &|e| with_gpu(e, 50, vec![python()]));
    case("gpus", Failed, "95", "host.1.gpus", &gpus, &|e| with_gpu(e, 95, vec![]));
    case("leftovers", Warning, "[5]", "", &two, &|e| {
        let entry = crate::cli::support::run_index::sample_entry();
        e.findings.runs = vec![rankdeck_proto::run_entry::RunEntry {
            state: HostRunState::Orphaned,
            pids: vec![5],
            ..entry
        }];
    });
    case("interface", Warning, "docker0", "host.1.interface", &two, &|e| {
        e.findings.route.as_mut().unwrap().interface = Some("docker0".into());
    });
    case("port", Failed, "h0", "launch.master_addr", &two, &|e| {
        e.findings.reached = vec![ConnectResult {
            address: "10.0.0.1:1".into(),
            error: Some("refused".into()),
            ..Default::default()
        }];
    });
    case("names", Failed, "no such name", "host.0.address", &two, &|e| {
        let route = e.findings.route.as_mut().unwrap();
        (route.error, route.addresses) = (Some("no such name".into()), Vec::new());
    });
    case("program", Failed, "not found", "launch.command", &two, &|e| {
        e.findings.program.as_mut().unwrap().error =
            Some(HintedError::new("`python3` is not found", "a path"));
    });
    case("program", Failed, "/w/train.py", "launch.command", &two, &|e| {
        e.findings.program.as_mut().unwrap().script_exists = false;
    });
    case("limits", Warning, "64 open files", "host.1.prelude", &two, &|e| {
        e.findings.limits.open_files = Some(64)
    });
    case("disk", Failed, "read-only", "host.1.workdir", &two, &|e| {
        e.findings.disk.error = Some("read-only".into())
    });
    case("disk", Failed, "mode 0777", "host.1.workdir", &two, &|e| {
        e.findings.disk.distrust = Some(HintedError::new("others can write /w (mode 0777)", "chmod"))
    });
    case("disk", Failed, "inodes free", "host.1.workdir", &two, &|e| e.findings.disk.free = 1);
    case("disk", Warning, "free at /w", "host.1.workdir", &two, &|e| e.findings.disk.free = SMALL_DISK - 1);
    case("session", Warning, "log", "", &two, &|e| e.findings.session.killed_at_logout = true);
    case("session", Failed, "pidfd", "", &two, &|e| e.findings.session.error = Some("pidfd_open: no".into()));
    case("clock", Warning, "59.9 s ahead", "", &two, &|e| {
        e.findings.arrived += 60.0;
        e.findings.answered += 60.0;
    });
    case("clock", Warning, "59.9 s behind", "", &two, &|e| {
        e.findings.arrived -= 60.0;
        e.findings.answered -= 60.0;
    });
}

/// Each cause has a hint of its own.
#[test]
fn check_2_hints_differ_by_cause() {
    let two = draft(2);
    let hint = |draft: &PlanDraft, check: &str, change: &dyn Fn(&mut HostAnswer)| {
        let cells = judge_with(draft, 1, change);
        let cell = cells.into_iter().find(|(name, _)| *name == check).unwrap().1;
        assert!(cell.status > CheckStatus::Passed && !cell.hint.is_empty(), "{check}: {cell:?}");
        cell.hint
    };
    let differ = |hints: &[String]| {
        let distinct: std::collections::BTreeSet<&String> = hints.iter().collect();
        assert_eq!(distinct.len(), hints.len(), "{hints:?}");
    };
    let disk = |why: &str| hint(&two, "disk", &|e| e.findings.disk.error = Some(why.into()));
    differ(
        &[
            "Permission denied",
            "No space left on device",
            "Read-only file system",
            "Not a directory",
            "no response",
        ]
        .map(disk),
    );
    let port = |why: &str| {
        hint(&two, "port", &|e| {
            let (address, error) = ("10.0.0.1:1".into(), Some(why.into()));
            e.findings.reached = vec![ConnectResult { address, error, ..Default::default() }];
        })
    };
    differ(
        &[
            "cannot resolve it on this host: Name or service not known",
            "another program listens there",
            "Connection refused (os error 111)",
            "No route to host (os error 113)",
            "no response (check the firewall)",
        ]
        .map(port),
    );
    let route = |resolved: bool| {
        hint(&two, "names", &|e| {
            let route = e.findings.route.as_mut().unwrap();
            route.error = Some("x".into());
            route.addresses.truncate(usize::from(resolved));
        })
    };
    differ(&[route(true), route(false)]);
    let mut gpus = draft(2);
    gpus.hosts[1].gpus = Some(GpuSelection::Count(2));
    let gpu = |driver: Option<&str>, visible: Option<&str>, count: u32| {
        hint(&gpus, "gpus", &|e| {
            e.findings.driver = driver.map(str::to_owned);
            e.findings.visible_gpus = visible.map(str::to_owned);
            e.findings.probe.gpu_count = count;
        })
    };
    differ(&[
        gpu(None, None, 0),
        gpu(Some("550"), None, 0),
        gpu(Some("550"), None, 1),
        gpu(Some("550"), Some("0"), 1),
    ]);
    let setup = |why: &str| hint(&two, "program", &|e| e.findings.setup = Some(why.into()));
    differ(&["no response within 20 s", "activate: not found"].map(setup));
    let mut slurm = draft(2);
    slurm.hosts[1].transport = Transport::Slurm;
    let ranks = |draft: &PlanDraft| hint(draft, "ranks", &|e| e.findings.probe.cpu_count = 0);
    differ(&[ranks(&two), ranks(&slurm)]);
}

#[test]
fn slow_network_is_not_clock_skew() {
    let cells = judge_with(&draft(2), 1, |e| {
        (e.asked, e.answered) = (95.0, 107.0);
    });
    assert!(cells.iter().all(|(_, cell)| cell.status == CheckStatus::Passed), "{cells:?}");
}

#[test]
fn store_port_must_be_free_on_first_host() {
    let mut draft = draft(2);
    draft.experiment.launch.master_port = 4711;
    let taken = |e: &mut HostAnswer| {
        e.findings.listened = Some(ListenResult { port: 0, error: Some("in use".into()), heard: 0 });
    };
    assert_eq!(only(&draft, 0, taken).3, "launch.master_port");
    assert_eq!(only(&draft, 1, taken).1, CheckStatus::Warning, "elsewhere it was only for the test");
}

#[test]
fn configured_interface_must_exist_and_have_a_route() {
    let mut draft = draft(2);
    for (name, status) in
        [("eth7", CheckStatus::Failed), ("lo", CheckStatus::Failed), ("eth1", CheckStatus::Warning)]
    {
        draft.hosts[1].interface = Some(name.into());
        let found = only(&draft, 1, |e| {
            e.findings.interfaces.push(Interface { name: "eth1".into(), addresses: vec![] });
        });
        assert_eq!(
            (found.0, found.1, found.3.as_str()),
            ("interface", status, "host.1.interface"),
            "{found:?}"
        );
    }
}

#[test]
fn trainer_needs_binary_and_matching_libtorch() {
    let mut draft = draft(1);
    draft.experiment.launch.command.clear();
    let builtin =
        |e: &mut HostAnswer, libtorch: Result<String, rankdeck_types::error::HintedError>, version: &str| {
            e.findings.program = None;
            e.findings.probe.trainer = Some("/t".into());
            e.findings.libtorch = Some(libtorch);
            e.findings.libtorch_version = Some(version.into());
        };
    let none = rankdeck_types::error::HintedError::new("no libtorch found", "push");
    assert_eq!(only(&draft, 0, |e| builtin(e, Err(none.clone()), "")).0, "versions");
    assert!(only(&draft, 0, |e| builtin(e, Ok("/l".into()), "2.9.1")).2.contains("2.9.1"));
    let missing = only(&draft, 0, |e| {
        builtin(e, Ok("/l".into()), "2.11.0+cpu");
        e.findings.probe.trainer = None;
    });
    assert_eq!(missing.0, "program");
    let examined = {
        let mut e = good();
        builtin(&mut e, Ok("/l".into()), "2.11.0");
        e.findings.probe.trainer = None;
        e
    };
    let uploaded = column(&PreflightInput { can_upload: true, ..subject(&draft) }, 0, &Ok(examined));
    assert!(uploaded.iter().all(|cell| cell.status == CheckStatus::Passed));
}

#[test]
fn environment_with_missing_packages_is_in_the_hint() {
    let draft = draft(1);
    let hint = |venv: Option<&str>| {
        let mut examined = good();
        examined.findings.program.as_mut().unwrap().python = Some(rankdeck_proto::examination::Python {
            missing: vec!["lib".into()],
            venv: venv.map(str::to_owned),
            ..Default::default()
        });
        let cells = column(&subject(&draft), 0, &Ok(examined));
        cells.into_iter().find(|cell| cell.status == CheckStatus::Warning).unwrap().hint
    };
    assert!(hint(Some("/w/.venv")).contains("`--venv /w/.venv`"));
    assert!(!hint(None).contains("--venv"));
}

#[test]
fn uploaded_code_must_contain_the_script() {
    let draft = draft(1);
    let judge = |has_script| {
        let code = PushedCode {
            hash: "ab".repeat(32),
            has_script,
            imports: Vec::new(),
            beside: Vec::new(),
            left_out: None,
        };
        let mut examined = good();
        examined.findings.program.as_mut().unwrap().script_exists = false;
        let cells = column(&PreflightInput { code: Some(&code), ..subject(&draft) }, 0, &Ok(examined));
        cells.iter().map(|cell| cell.status).max().unwrap()
    };
    assert_eq!((judge(true), judge(false)), (CheckStatus::Passed, CheckStatus::Failed));
}

#[test]
fn unexpanded_shell_syntax_is_reported() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (line, word) in [
        ("python x.py ~/data", "~/data"),
        ("python x.py --data=~/data", "--data=~/data"),
        ("python x.py $HOME/data", "$HOME/data"),
        ("./x --out=${SCRATCH}/a", "--out=${SCRATCH}/a"),
    ] {
        assert_eq!(unexpanded(&words(line)), Some(word), "{line}");
    }
    for line in [
        "python -c $HOME",
        "sh -c x $HOME",
        "bash -lc ~/x",
        "python x.py a~b ^a$ ${now:%Y} ${seed}",
        "$HOME/x",
    ] {
        assert_eq!(unexpanded(&words(line)), None, "{line}");
    }
}
