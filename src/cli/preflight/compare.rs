//! Hosts against each other: ranks that run different code or different libraries fail late, or never, and
//! quietly. Pure.

use super::{CHECKS, Cell, Grade, HostAnswer, Subject, judge};
use rankdeck_proto::examination::Findings;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Transport;
use std::collections::BTreeMap;

/// One thing that should be equal on all hosts.
struct Matter {
    /// The check it belongs to.
    check: &'static str,
    /// What is compared, in words.
    what: &'static str,
    /// A difference cannot work, rather than may not.
    fatal: bool,
    /// The value on one host; `None`: it has none.
    value: fn(&Findings) -> Option<String>,
    /// What the user can do about a difference.
    hint: &'static str,
    /// The key that decides.
    key: &'static str,
}

fn python(found: &Findings) -> Option<&rankdeck_proto::examination::Python> {
    found.program.as_ref()?.python.as_ref()
}

const SAME_PYTHON: &str =
    "use the same environment on all hosts: `prelude`, or the interpreter's full path in `launch.command`";
const SAME_CODE: &str = "bring the same code everywhere: `launch.code = \"DIR\"` copies it by content";

const MATTERS: [Matter; 9] = [
    Matter {
        check: "versions",
        what: "libtorch",
        fatal: true,
        value: |found| found.libtorch_version.clone(),
        hint: "point `libtorch` at the same version everywhere, or bring one with `rankdeck push --libtorch DIR`",
        key: "libtorch",
    },
    Matter {
        check: "versions",
        what: "torch",
        fatal: true,
        value: |found| python(found).map(|python| python.torch.clone().unwrap_or_else(|| "none".into())),
        hint: SAME_PYTHON,
        key: "prelude",
    },
    Matter {
        check: "versions",
        what: "Python",
        fatal: true,
        value: |found| {
            python(found).map(|python| python.version.split('.').take(2).collect::<Vec<_>>().join("."))
        },
        hint: SAME_PYTHON,
        key: "prelude",
    },
    Matter {
        check: "versions",
        what: "CUDA of torch",
        fatal: false,
        value: |found| python(found).and_then(|python| python.cuda.clone()),
        hint: SAME_PYTHON,
        key: "prelude",
    },
    Matter {
        check: "versions",
        what: "NVIDIA driver",
        fatal: false,
        value: |found| found.driver.clone(),
        hint: "NCCL works best with one driver version",
        key: "",
    },
    Matter {
        check: "code",
        what: "script",
        fatal: true,
        value: |found| found.code.script.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    Matter {
        check: "code",
        what: "commit",
        fatal: true,
        value: |found| found.code.commit.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    Matter {
        check: "code",
        what: "Python files beside the script",
        fatal: false,
        value: |found| found.code.folder.clone(),
        hint: SAME_CODE,
        key: "workdir",
    },
    Matter {
        check: "gpus",
        what: "GPU model",
        fatal: false,
        value: |found| found.gpus.first().map(|gpu| gpu.name.clone()),
        hint: "the slowest GPU sets the pace",
        key: "gpus",
    },
];

/// Marks hosts that are one machine with another one: their ranks share it, and each takes all of it for its
/// own.
pub fn same_machine(
    subject: &Subject<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<Cell>],
) {
    let hosts = &subject.draft.hosts;
    let at = CHECKS.iter().position(|check| *check == "reach").unwrap_or_default();
    let machine = |node: usize| match answers.get(node) {
        Some(Ok(answer)) => Some(answer.findings.machine.as_str()).filter(|machine| !machine.is_empty()),
        _ => None,
    };
    for (node, host) in hosts.iter().enumerate() {
        let same = |other: &usize| machine(*other).is_some() && machine(*other) == machine(node);
        // Local hosts are one machine on purpose.
        let Some(first) = (0..node).find(same).filter(|_| host.transport != Transport::Local) else {
            continue;
        };
        let cell = columns.get_mut(node).and_then(|column| column.get_mut(at));
        if let Some(cell) = cell.filter(|cell| cell.grade < Grade::Warning) {
            *cell = Cell::warning(
                format!("this is the same machine as host {}", hosts[first].name),
                "list a machine once, with `nproc` for more ranks; both hosts would take its GPUs and cores",
                format!("host.{node}.address"),
            );
        }
    }
}

/// Refuses GPUs that two hosts of the file would give to ranks: each counts them for its own, and NCCL
/// refuses two ranks on one.
pub fn same_gpu(
    subject: &Subject<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<Cell>],
) {
    let hosts = &subject.draft.hosts;
    let at = CHECKS.iter().position(|check| *check == "gpus").unwrap_or_default();
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for (node, host) in hosts.iter().enumerate() {
        let Some(Ok(answer)) = answers.get(node) else { continue };
        let wanted = judge::wanted(host, &answer.findings);
        let named =
            answer.findings.gpus.iter().filter(|gpu| !gpu.uuid.is_empty() && wanted.contains(&gpu.index));
        for gpu in named {
            let first = *taken.entry(gpu.uuid.as_str()).or_insert(node);
            let Some(cell) = columns.get_mut(node).and_then(|column| column.get_mut(at)) else { continue };
            if first != node && cell.grade < Grade::Failed {
                *cell = Cell::failed(
                    format!("GPU {} ({}) is one of host {}, too", gpu.index, gpu.uuid, hosts[first].name),
                    "list a machine once, with `nproc` for more ranks, or give each host other `gpus`",
                    format!("host.{node}.gpus"),
                );
            }
        }
    }
}

/// Marks the hosts that differ from the first that has a value.
pub fn compare(
    subject: &Subject<'_>,
    answers: &[Result<HostAnswer, HintedError>],
    columns: &mut [Vec<Cell>],
) {
    let hosts = &subject.draft.hosts;
    for matter in &MATTERS {
        // GPUs that are not wanted do not matter.
        let wanted =
            |node: usize| matter.check != "gpus" || hosts.get(node).is_some_and(|host| host.gpus.is_some());
        let values: Vec<(usize, String)> = answers
            .iter()
            .enumerate()
            .filter(|(node, _)| wanted(*node))
            .filter_map(|(node, answer)| Some((node, (matter.value)(&answer.as_ref().ok()?.findings)?)))
            .collect();
        let Some((first, expected)) = values.first() else { continue };
        for (node, value) in values.iter().filter(|(_, value)| value != expected) {
            let name = hosts.get(*first).map_or("?", |host| host.name.as_str());
            let text = format!("{} {value}, and {expected} on {name}", matter.what);
            let key =
                if matter.key.is_empty() { String::new() } else { format!("host.{node}.{}", matter.key) };
            let cell = match matter.fatal {
                true => Cell::failed(text, matter.hint, key),
                false => Cell::warning(text, matter.hint, key),
            };
            let at = CHECKS.iter().position(|check| *check == matter.check);
            let old = at.and_then(|at| columns.get_mut(*node)?.get_mut(at));
            // The first and worst that is wrong with it stays.
            if let Some(old) = old.filter(|old| old.grade < cell.grade.max(Grade::Warning)) {
                *old = cell;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::tests::{draft, good, subject};
    use super::super::judged;
    use super::*;
    use rankdeck_proto::examination::Python;

    fn cells(check: &str, change: impl Fn(&mut Findings)) -> Vec<Cell> {
        let draft = draft(3);
        let mut odd = good();
        change(&mut odd.findings);
        let report = judged(&subject(&draft), vec![Ok(good_code()), Ok(odd), Ok(good_code())]);
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

    #[test]
    fn different_code_and_versions_are_refused_with_both_named() {
        let code = cells("code", |found| found.code.script = Some("bbbb".into()));
        assert_eq!(
            code.iter().map(|cell| cell.grade).collect::<Vec<_>>(),
            [Grade::Passed, Grade::Failed, Grade::Passed]
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
            torch[1].grade == Grade::Failed && torch[1].text.contains("2.10.0, and 2.11.0 on h0"),
            "{torch:?}"
        );
        let driver = cells("versions", |found| found.driver = Some("550".into()));
        assert!(
            driver.iter().all(|cell| cell.grade == Grade::Passed),
            "one driver alone differs from nothing"
        );
    }
}
