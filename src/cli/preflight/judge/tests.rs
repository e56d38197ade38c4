//! What the judge says about hosts that are not as they should be.

use super::*;
use crate::cli::preflight::{Grade, PushedCode};
use rankdeck_proto::examination::{
    ConnectResult, GpuFinding, GpuHealth, GpuProcess, Interface, Limits, ListenResult, Program, Route,
};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Gpus, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::probe::Probe;

pub fn draft(hosts: usize) -> PlanDraft {
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
        hosts: (0..hosts).map(host).collect(),
        excluded: Default::default(),
        resume: None,
    }
}

pub fn subject(draft: &PlanDraft) -> Subject<'_> {
    Subject { draft, code: None, can_upload: false, places: Vec::new() }
}

/// A host on which everything is as it should be.
pub fn good() -> HostAnswer {
    let findings = Findings {
        heard: 100.1,
        answered: 100.2,
        probe: Probe { hostname: "h".into(), cpu_count: 4, ..Probe::default() },
        user: "u".into(),
        disk: Disk { path: "/w".into(), free: 1 << 40, total: 1 << 41, free_files: 1 << 20, error: None },
        shm: Disk { free: 1 << 30, ..Disk::default() },
        limits: Limits::default(),
        interfaces: ["lo", "eth0"].map(|name| Interface { name: name.into(), addresses: vec![] }).to_vec(),
        route: Some(Route {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            interface: Some("eth0".into()),
            error: None,
        }),
        program: Some(Program {
            path: Some("/usr/bin/python3".into()),
            script_exists: true,
            script: Some("/w/train.py".into()),
            ..Program::default()
        }),
        ..Findings::default()
    };
    HostAnswer { findings, asked: 100.0, answered: 100.3, shell: 0.1 }
}

fn judge_with(draft: &PlanDraft, node: usize, change: impl Fn(&mut HostAnswer)) -> Vec<(&'static str, Cell)> {
    let mut examined = good();
    change(&mut examined);
    CHECKS.into_iter().zip(column(&subject(draft), node, &Ok(examined))).collect()
}

/// The one check that is not passed.
fn only(
    draft: &PlanDraft,
    node: usize,
    change: impl Fn(&mut HostAnswer),
) -> (&'static str, Grade, String, String) {
    let bad: Vec<_> =
        judge_with(draft, node, change).into_iter().filter(|(_, cell)| cell.grade > Grade::Passed).collect();
    let [(name, cell)] = bad.as_slice() else { panic!("{bad:?}") };
    assert!(cell.grade == Grade::Passed || !cell.hint.is_empty(), "CHECK-2: {cell:?}");
    (name, cell.grade, cell.text.clone(), cell.key.clone())
}

#[test]
fn a_good_host_passes_every_check() {
    let cells = judge_with(&draft(2), 1, |_| {});
    assert!(cells.iter().all(|(_, cell)| cell.grade == Grade::Passed), "{cells:?}");
    assert_eq!(cells.len(), CHECKS.len());
}

/// The host has one GPU, of whose 100 bytes `used` are taken.
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
fn a_gpu_that_is_ill_or_refused_is_told_with_all_that_is_known() {
    use Grade::{Failed, Warning};
    let mut gpus = draft(2);
    gpus.hosts[1].gpus = Some(Gpus::Count(1));
    let of = |change: &dyn Fn(&mut HostAnswer)| {
        let (name, grade, text, key) = only(&gpus, 1, change);
        assert_eq!(name, "gpus", "{text}");
        (grade, text, key)
    };
    let refused = of(&|e| {
        with_gpu(e, 50, vec![python()]);
        e.findings.gpu_check = Some(Err(HintedError::new("no kernel", "another libtorch")));
    });
    let words = "the trainer cannot use them: no kernel; GPU 0 is in use: process 7 (python) holds 1B";
    assert_eq!(refused, (Failed, words.to_owned(), "host.1.libtorch".to_owned()));
    let none = GpuHealth::default();
    for (health, grade, words) in [
        (GpuHealth { uncorrected: 2, ..none }, Warning, "GPU 0: 2 memory errors not corrected"),
        (GpuHealth { reset_pending: true, ..none }, Warning, "replaced at the next reset only"),
        (GpuHealth { remap_failed: true, ..none }, Failed, "no spare rows"),
    ] {
        let found = of(&|e| {
            with_gpu(e, 0, vec![]);
            e.findings.gpus[0].health = health;
        });
        assert!(found.0 == grade && found.1.contains(words) && found.2 == "host.1.gpus", "{found:?}");
    }
}

#[test]
fn every_check_sees_its_fault_and_names_the_key() {
    let two = draft(2);
    let mut gpus = draft(2);
    gpus.hosts[1].gpus = Some(Gpus::Count(1));
    let case =
        |name: &str, grade, word: &str, key: &str, draft: &PlanDraft, change: &dyn Fn(&mut HostAnswer)| {
            let found = only(draft, 1, change);
            assert_eq!((found.0, found.1, found.3.as_str()), (name, grade, key), "{found:?}");
            assert!(found.2.contains(word), "{found:?}");
        };
    use Grade::{Failed, Warning};
    case("reach", Warning, "begins 2.5 s late", "", &two, &|e| e.shell = 2.5);
    case("ranks", Warning, "1 ranks on 0 cores", "host.1.nproc", &two, &|e| e.findings.probe.cpu_count = 0);
    case("ranks", Failed, "already", "run.name", &two, &|e| e.findings.run_exists = true);
    case("gpus", Failed, "GPU 0 is wanted", "host.1.gpus", &gpus, &|_| {});
    case("gpus", Warning, "process 7 (python)", "host.1.gpus", &gpus, &|e| with_gpu(e, 50, vec![python()]));
    case("gpus", Failed, "cannot be seen", "host.1.gpus", &gpus, &|e| with_gpu(e, 95, vec![]));
    case("leftovers", Warning, "pids [5]", "", &two, &|e| {
        let entry = crate::cli::roster::sample_entry();
        e.findings.runs =
            vec![rankdeck_proto::run_entry::RunEntry { state: RunState::Orphaned, pids: vec![5], ..entry }];
    });
    case("interface", Warning, "docker0", "host.1.interface", &two, &|e| {
        e.findings.route.as_mut().unwrap().interface = Some("docker0".into());
    });
    case("port", Failed, "cannot reach h0", "launch.master_addr", &two, &|e| {
        e.findings.reached =
            vec![ConnectResult { node: 0, address: "10.0.0.1:1".into(), error: Some("refused".into()) }];
    });
    case("names", Failed, "no such name", "host.0.address", &two, &|e| {
        e.findings.route.as_mut().unwrap().error = Some("no such name".into());
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
    case("disk", Failed, "files free", "host.1.workdir", &two, &|e| e.findings.disk.free = 1);
    case("disk", Warning, "free at /w", "host.1.workdir", &two, &|e| e.findings.disk.free = SMALL_DISK - 1);
    case("session", Warning, "log", "", &two, &|e| e.findings.session.killed_at_logout = true);
    case("session", Failed, "pidfd", "", &two, &|e| e.findings.session.error = Some("pidfd_open: no".into()));
    case("clock", Warning, "59.9 s ahead", "", &two, &|e| {
        e.findings.heard += 60.0;
        e.findings.answered += 60.0;
    });
    case("clock", Warning, "59.9 s behind", "", &two, &|e| {
        e.findings.heard -= 60.0;
        e.findings.answered -= 60.0;
    });
}

#[test]
fn a_slow_way_is_no_skew() {
    let cells = judge_with(&draft(2), 1, |e| {
        (e.asked, e.answered) = (95.0, 107.0);
    });
    assert!(cells.iter().all(|(_, cell)| cell.grade == Grade::Passed), "{cells:?}");
}

#[test]
fn the_store_s_port_must_be_free_on_the_first_host() {
    let mut draft = draft(2);
    draft.experiment.launch.master_port = 4711;
    let taken = |e: &mut HostAnswer| {
        e.findings.listened = Some(ListenResult { port: 0, error: Some("in use".into()), heard: 0 });
    };
    assert_eq!(only(&draft, 0, taken).3, "launch.master_port");
    assert_eq!(only(&draft, 1, taken).1, Grade::Warning, "elsewhere it was only for the test");
}

#[test]
fn the_configured_interface_must_be_there_and_lead_somewhere() {
    let mut draft = draft(2);
    for (name, grade) in [("eth7", Grade::Failed), ("lo", Grade::Failed), ("eth1", Grade::Warning)] {
        draft.hosts[1].interface = Some(name.into());
        let found = only(&draft, 1, |e| {
            e.findings.interfaces.push(Interface { name: "eth1".into(), addresses: vec![] });
        });
        assert_eq!(
            (found.0, found.1, found.3.as_str()),
            ("interface", grade, "host.1.interface"),
            "{found:?}"
        );
    }
}

#[test]
fn the_trainer_needs_its_libtorch_and_must_be_there() {
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
    let uploaded = column(&Subject { can_upload: true, ..subject(&draft) }, 0, &Ok(examined));
    assert!(uploaded.iter().all(|cell| cell.grade == Grade::Passed));
}

#[test]
fn pushed_code_must_hold_the_script() {
    let draft = draft(1);
    let judge = |has_script| {
        let code = PushedCode { hash: "ab".repeat(32), has_script, imports: Vec::new() };
        let mut examined = good();
        examined.findings.program.as_mut().unwrap().script_exists = false;
        let cells = column(&Subject { code: Some(&code), ..subject(&draft) }, 0, &Ok(examined));
        cells.iter().map(|cell| cell.grade).max().unwrap()
    };
    assert_eq!((judge(true), judge(false)), (Grade::Passed, Grade::Failed));
}
