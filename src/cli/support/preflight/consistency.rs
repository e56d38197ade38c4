//! Consistency checks across hosts: differing code or libraries fail late or silently. Pure.

use super::{CHECKS, CheckResult, CheckStatus, HostAnswer, PreflightInput, host_checks};
use rankdeck_proto::examination::HostFindings;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Transport;
use std::collections::BTreeMap;

/// A property that should be equal on all hosts.
struct ConsistencyCheck {
    /// The check it belongs to.
    check: &'static str,
    /// What is compared, for people.
    what: &'static str,
    /// Whether a difference makes the run fail.
    fatal: bool,
    /// The value on one host; `None` if it has none.
    value: fn(&HostFindings) -> Option<String>,
    /// How to fix a difference.
    hint: &'static str,
    /// The config key that decides.
    key: &'static str,
}

fn python(found: &HostFindings) -> Option<&rankdeck_proto::examination::Python> {
    found.program.as_ref()?.python.as_ref()
}

const SAME_PYTHON: &str = "use the same Python environment on all hosts: set `venv`, `conda` or `prelude`, or the interpreter's full path in `launch.command`";
const SAME_CODE: &str = "copy the same code to all hosts with `launch.code = \"DIR\"`";

const MATTERS: [ConsistencyCheck; 9] = [
    ConsistencyCheck {
        check: "versions",
        what: "libtorch",
        fatal: true,
        value: |found| found.libtorch_version.clone(),
        hint: "set `libtorch` to the same version on all hosts, or install one with `rankdeck push --libtorch DIR`",
        key: "libtorch",
    },
    ConsistencyCheck {
        check: "versions",
        what: "torch",
        fatal: true,
        value: |found| python(found).map(|python| python.torch.clone().unwrap_or_else(|| "none".into())),
        hint: SAME_PYTHON,
        key: "prelude",
    },
    ConsistencyCheck {
        check: "versions",
        what: "Python",
        fatal: true,
        value: |found| {
            python(found).map(|python| python.version.split('.').take(2).collect::<Vec<_>>().join("."))
        },
        hint: SAME_PYTHON,
        key: "prelude",
    },
    ConsistencyCheck {
        check: "versions",
        what: "CUDA of torch",
        fatal: false,
        value: |found| python(found).and_then(|python| python.cuda.clone()),
        hint: SAME_PYTHON,
        key: "prelude",
    },
    ConsistencyCheck {
        check: "versions",
        what: "NVIDIA driver",
        fatal: false,
        value: |found| found.driver.clone(),
        hint: "NCCL works best with one driver version",
        key: "",
    },
    ConsistencyCheck {
        check: "code",
        what: "script",
        fatal: true,
        value: |found| found.code.script.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    ConsistencyCheck {
        check: "code",
        what: "commit",
        fatal: true,
        value: |found| found.code.commit.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    ConsistencyCheck {
        check: "code",
        what: "Python files next to the script",
        fatal: false,
        value: |found| found.code.folder.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    ConsistencyCheck {
        check: "gpus",
        what: "GPU model",
        fatal: false,
        value: |found| found.gpus.first().map(|gpu| gpu.name.clone()),
        hint: "the slowest GPU limits the run",
        key: "gpus",
    },
];

/// Marks hosts that are the same machine: each would count all of its cores and GPUs as its own.
pub(crate) fn same_machine(
    subject: &PreflightInput<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<CheckResult>],
) {
    let hosts = &subject.draft.hosts;
    let at = CHECKS.iter().position(|check| *check == "reach").unwrap_or_default();
    let machine = |node: usize| match answers.get(node) {
        Some(Ok(answer)) => Some(answer.findings.machine.as_str()).filter(|machine| !machine.is_empty()),
        _ => None,
    };
    for (node, host) in hosts.iter().enumerate() {
        let same = |other: &usize| machine(*other).is_some() && machine(*other) == machine(node);
        // Local hosts share a machine on purpose.
        let Some(first) = (0..node).find(same).filter(|_| host.transport != Transport::Local) else {
            continue;
        };
        let cell = columns.get_mut(node).and_then(|column| column.get_mut(at));
        if let Some(cell) = cell.filter(|cell| cell.status < CheckStatus::Warning) {
            *cell = CheckResult::warning(
                format!("this is the same machine as host {}", hosts[first].name),
                "list each machine once and set `nproc` for more ranks",
                format!("host.{node}.address"),
            );
        }
    }
}

/// Rejects GPUs that two hosts of the file would assign: NCCL rejects two ranks on one GPU.
pub(crate) fn same_gpu(
    subject: &PreflightInput<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<CheckResult>],
) {
    let hosts = &subject.draft.hosts;
    let at = CHECKS.iter().position(|check| *check == "gpus").unwrap_or_default();
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for (node, host) in hosts.iter().enumerate() {
        let Some(Ok(answer)) = answers.get(node) else { continue };
        let requested = host_checks::requested_gpus(host, &answer.findings);
        let named =
            answer.findings.gpus.iter().filter(|gpu| !gpu.uuid.is_empty() && requested.contains(&gpu.index));
        for gpu in named {
            let first = *taken.entry(gpu.uuid.as_str()).or_insert(node);
            let Some(cell) = columns.get_mut(node).and_then(|column| column.get_mut(at)) else { continue };
            if first != node && cell.status < CheckStatus::Failed {
                *cell = CheckResult::failed(
                    format!("GPU {} ({}) is also GPU of host {}", gpu.index, gpu.uuid, hosts[first].name),
                    "list each machine once and set `nproc` for more ranks, or set different `gpus` per host",
                    format!("host.{node}.gpus"),
                );
            }
        }
    }
}

/// Reports the address that ranks use if that of rank 0's host does not serve: on that host it is loopback, or
/// another host cannot resolve or reach it. A fixed `launch.master_addr` is not replaced.
pub(crate) fn master_name(
    subject: &PreflightInput<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<CheckResult>],
) {
    let Some(ip) = super::working_address(answers, 0) else { return };
    let Some(first) = subject.draft.hosts.first() else { return };
    let at = CHECKS.iter().position(|check| *check == "names").unwrap_or_default();
    let master = &subject.draft.experiment.launch.master_addr;
    let name = master.as_deref().unwrap_or(first.peer_address());
    let set = format!("set `launch.master_addr = \"{ip}\"`");
    let uses = if master.is_some() { "other hosts reach it at" } else { "ranks use" };
    for (node, (column, answer)) in columns.iter_mut().zip(answers).enumerate() {
        let (Some(cell), Ok(answer)) = (column.get_mut(at), answer) else { continue };
        let found = &answer.findings;
        let route = found.route.as_ref();
        let is_lost = found.reached.iter().any(|to| to.node == 0 && to.is_other);
        let new = if let Some(error) = route.and_then(|route| route.error.as_ref()) {
            format!("cannot resolve `{name}` on this host: {error}; {uses} {ip}")
        } else if is_lost {
            format!("`{name}` does not lead to {} from this host; {uses} {ip}", first.name)
        } else if node == 0 && super::names_loopback(found) && cell.status < CheckStatus::Warning {
            let hint =
                format!("remove `{name}` from the loopback lines of /etc/hosts on that host, or {set}");
            let text = format!("`{name}` resolves to loopback on {}; {uses} {ip}", first.name);
            *cell = CheckResult::warning(text, hint, "host.0.address");
            continue;
        } else {
            continue;
        };
        *cell = match master {
            Some(_) => CheckResult::failed(new, set.as_str(), "launch.master_addr"),
            None => CheckResult::warning(
                new,
                format!("no action needed; to choose the address, {set} or the `address` of {}", first.name),
                "host.0.address",
            ),
        };
    }
}

/// Marks the hosts that differ from the first one with a value.
pub(crate) fn compare(
    subject: &PreflightInput<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<CheckResult>],
) {
    let hosts = &subject.draft.hosts;
    for matter in &MATTERS {
        // GPUs that are not requested do not matter.
        let requested =
            |node: usize| matter.check != "gpus" || hosts.get(node).is_some_and(|host| host.gpus.is_some());
        let values: Vec<(usize, String)> = answers
            .iter()
            .enumerate()
            .filter(|(node, _)| requested(*node))
            .filter_map(|(node, answer)| Some((node, (matter.value)(&answer.as_ref().ok()?.findings)?)))
            .collect();
        let Some((first, expected)) = values.first() else { continue };
        for (node, value) in values.iter().filter(|(_, value)| value != expected) {
            let name = hosts.get(*first).map_or("?", |host| host.name.as_str());
            let text = format!("{} {value}, but {expected} on {name}", matter.what);
            let key =
                if matter.key.is_empty() { String::new() } else { format!("host.{node}.{}", matter.key) };
            let cell = match matter.fatal {
                true => CheckResult::failed(text, matter.hint, key),
                false => CheckResult::warning(text, matter.hint, key),
            };
            let at = CHECKS.iter().position(|check| *check == matter.check);
            let old = at.and_then(|at| columns.get_mut(*node)?.get_mut(at));
            // The first and worst result stays.
            if let Some(old) = old.filter(|old| old.status < cell.status.max(CheckStatus::Warning)) {
                *old = cell;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::preflight::evaluate;
    use crate::cli::support::preflight::host_checks::tests::{draft, good, subject};
    use rankdeck_proto::examination::Python;
    use rankdeck_types::plan::PlanDraft;

    fn cells(check: &str, change: impl Fn(&mut HostFindings)) -> Vec<CheckResult> {
        let draft = draft(3);
        let mut odd = good();
        change(&mut odd.findings);
        let report = evaluate(&subject(&draft), vec![Ok(good_code()), Ok(odd), Ok(good_code())]);
        let at = CHECKS.iter().position(|name| *name == check).unwrap();
        report.columns.iter().map(|column| column[at].clone()).collect()
    }

    fn good_code() -> HostAnswer {
        let mut examined = good();
        examined.findings.code.script = Some("aaaa".into());
        examined.findings.program.as_mut().unwrap().python = Some(Python {
            version: "3.11.2".into(),
            torch: Some("2.11.0".into()),
            cuda: None,
            ..Python::default()
        });
        examined
    }

    /// The default /etc/hosts of Debian, with hosts listed by name.
    #[test]
    fn route_1_loopback_name_is_replaced_by_reachable_address() {
        use crate::cli::support::preflight::working_address;
        use rankdeck_proto::examination::{ConnectResult, Interface};
        let answers = |own: &str, seen: &str, held: &str, lost: Option<&str>| {
            let (mut first, mut second) = (good(), good());
            first.findings.route.as_mut().unwrap().addresses = vec![own.parse().unwrap()];
            first
                .findings
                .interfaces
                .push(Interface { name: "eth1".into(), addresses: vec![held.parse().unwrap()] });
            second.findings.reached = vec![ConnectResult {
                address: seen.into(),
                error: lost.map(str::to_owned),
                ..Default::default()
            }];
            vec![Ok(first), Ok(second)]
        };
        let chosen = |own: &str, seen: &str, held: &str, lost: Option<&str>| {
            working_address(&answers(own, seen, held, lost), 0).map(|ip| ip.to_string())
        };
        let ten = "10.77.0.10";
        assert_eq!(chosen("127.0.1.1", "10.77.0.10:20001", ten, None).as_deref(), Some(ten));
        assert_eq!(chosen("::1", "[::ffff:10.77.0.10]:20001", ten, None).as_deref(), Some(ten));
        assert_eq!(chosen("10.77.0.10", "10.77.0.10:20001", ten, None), None, "the name is right");
        assert_eq!(chosen("127.0.1.1", "127.0.0.1:20001", ten, None), None, "one machine");
        assert_eq!(chosen("127.0.1.1", "203.0.113.5:20001", ten, None), None, "behind translation");
        assert_eq!(chosen("127.0.1.1", "10.77.0.10:20001", ten, Some("refused")), None);
        let mut draft = draft(2);
        let at = CHECKS.iter().position(|name| *name == "names").unwrap();
        let names = |draft: &PlanDraft| {
            let report = evaluate(&subject(draft), answers("127.0.1.1", "10.77.0.10:20001", ten, None));
            report.columns.into_iter().map(|mut column| column.swap_remove(at)).collect::<Vec<_>>()
        };
        let cells = names(&draft);
        assert_eq!(
            (cells[0].status, cells[1].status),
            (CheckStatus::Warning, CheckStatus::Passed),
            "{cells:?}"
        );
        assert!(cells[0].text.contains(ten) && cells[0].hint.contains("/etc/hosts"), "{cells:?}");
        draft.experiment.launch.master_addr = Some("h0".into());
        assert_eq!(names(&draft)[0].status, CheckStatus::Warning);
    }

    /// The first host is reached only at an address of its other interface.
    fn at_other_address(name_fails: bool) -> Vec<Result<HostAnswer, HintedError>> {
        use rankdeck_proto::examination::{ConnectResult, Interface};
        let ip = |text: &str| text.parse().unwrap();
        let eth1 = |address: &str| Interface { name: "eth1".into(), addresses: vec![ip(address)] };
        let (mut first, mut second) = (good(), good());
        first.findings.interfaces.push(eth1("10.1.0.10"));
        second.findings.interfaces.push(eth1("10.1.0.11"));
        second.findings.reached = vec![ConnectResult {
            address: "10.1.0.10:20001".into(),
            is_other: true,
            source: Some(ip("10.1.0.11")),
            ..ConnectResult::default()
        }];
        if name_fails {
            second.findings.route.as_mut().unwrap().error = Some("Name or service not known".into());
        }
        vec![Ok(first), Ok(second)]
    }

    #[test]
    fn address_that_works_is_used_instead_of_the_name() {
        use crate::cli::support::preflight::interfaces;
        let at = CHECKS.iter().position(|name| *name == "names").unwrap();
        for name_fails in [false, true] {
            let mut draft = draft(2);
            let report = evaluate(&subject(&draft), at_other_address(name_fails));
            assert_eq!(report.peer_addresses, [Some("10.1.0.10".to_owned()), None]);
            let eth1 = || Some("eth1".to_owned());
            assert_eq!(interfaces(&report), [eth1(), eth1()]);
            assert_eq!(report.count(CheckStatus::Failed), 0, "{:?}", report.columns);
            let cell = &report.columns[1][at];
            assert!(cell.status == CheckStatus::Warning && cell.text.contains("10.1.0.10"), "{cell:?}");
            draft.experiment.launch.master_addr = Some("h0".into());
            let report = evaluate(&subject(&draft), at_other_address(name_fails));
            let cell = &report.columns[1][at];
            assert!(cell.status == CheckStatus::Failed && cell.hint.contains("10.1.0.10"), "{cell:?}");
        }
    }

    #[test]
    fn alias_is_replaced_by_its_host_name() {
        let mut draft = draft(2);
        draft.hosts[0].peer_address = Some("10.77.0.10".into());
        let report = evaluate(&subject(&draft), vec![Ok(good()), Ok(good())]);
        assert_eq!(report.peer_addresses[0].as_deref(), Some("10.77.0.10"));
        let plan = report.plan.unwrap().unwrap();
        assert_eq!(plan.address(plan.members().next().unwrap()), "10.77.0.10");
    }

    #[test]
    fn differing_code_and_versions_fail() {
        let code = cells("code", |found| found.code.script = Some("bbbb".into()));
        assert_eq!(
            code.iter().map(|cell| cell.status).collect::<Vec<_>>(),
            [CheckStatus::Passed, CheckStatus::Failed, CheckStatus::Passed]
        );
        assert!(code[1].text.contains("bbbb") && code[1].text.contains("aaaa on h0"), "{code:?}");
        assert_eq!(code[1].key, "host.1.workdir");
        let torch = cells("versions", |found| {
            found.program.as_mut().unwrap().python = Some(Python {
                version: "3.11.9".into(),
                torch: Some("2.10.0".into()),
                cuda: None,
                ..Python::default()
            });
        });
        assert!(
            torch[1].status == CheckStatus::Failed && torch[1].text.contains("2.11.0 on h0"),
            "{torch:?}"
        );
        let driver = cells("versions", |found| found.driver = Some("550".into()));
        assert!(
            driver.iter().all(|cell| cell.status == CheckStatus::Passed),
            "one driver alone differs from nothing"
        );
    }
}
