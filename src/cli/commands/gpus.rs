//! `rankdeck gpus`: lists the processes that hold GPUs or shared memory on all hosts, and ends what is left over.
//!
//! - GPUS-1: `--free` ends leftovers that a host has proven, `--pid` also what is unproven; nothing else is ended,
//!   and nothing without a question or `--yes`.

use crate::app::stderr;
use crate::cli::args::{GpusArgs, PrintArgs};
use crate::cli::support::run_index::{decode, exec_on_all, load_hosts};
use crate::cli::support::{Failure, code, print, prompt};
use rankdeck_config::HostsSource;
use rankdeck_proto::holders::{FreeOutcome, FreeReport, Holder, HolderList, HolderName, HolderStatus};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::{NONE, bytes, clean, duration, plural};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Runs `rankdeck gpus`.
pub(crate) async fn gpus(hosts_from: &HostsSource, args: GpusArgs) -> Result<u8, Failure> {
    let hosts = load_hosts(hosts_from)?;
    let args_of = |host: &Host| ["gpus", "--workdir", &host.workdir].map(str::to_owned).to_vec();
    let answers = exec_on_all(&hosts, &args.host_keys, args_of).await?;
    let (mut lists, mut silent) = (Vec::new(), Vec::new());
    for (index, answer) in answers.into_iter().enumerate() {
        match answer.and_then(|text| decode::<HolderList>(&hosts[index], &text)) {
            Ok(list) => lists.push((index, list)),
            Err(error) => silent.push(error),
        }
    }
    for (index, list) in lists.iter().filter(|(_, list)| list.left_out > 0) {
        let (host, left_out) = (&hosts[*index].name, list.left_out);
        stderr::line(&format!("warning: host {host}: {left_out} more processes not listed"));
    }
    let holders = merged(lists);
    let chosen = chosen(&hosts, &holders, &args)?;
    let code = if args.free || !args.pid.is_empty() {
        end(&hosts, &holders, chosen, &args).await?
    } else {
        list(&hosts, &holders, args.output);
        code::SUCCESS
    };
    print::errors(&silent);
    Ok(if silent.is_empty() { code } else { code::HOST })
}

/// A process, and the host that shows it.
type HostHolder = (usize, Holder);

/// The processes of all hosts. Hosts that are one machine show the same processes, but each has other runs: the host
/// that has the run of a process decides.
fn merged(lists: Vec<(usize, HolderList)>) -> Vec<HostHolder> {
    let mut all: Vec<HostHolder> = Vec::new();
    let mut known: BTreeMap<(String, HolderName), usize> = BTreeMap::new();
    for (index, list) in lists {
        for holder in list.holders {
            // A later build may not name the machine.
            let machine =
                if list.machine.is_empty() { format!("host {index}") } else { list.machine.clone() };
            let at = *known.entry((machine, holder.name())).or_insert(all.len());
            let weight = |holder: &Holder| (holder.run.is_some(), holder.status == HolderStatus::InUse);
            match all.get_mut(at) {
                Some(other) if weight(&holder) > weight(&other.1) => *other = (index, holder),
                Some(_) => {}
                None => all.push((index, holder)),
            }
        }
    }
    all.sort_by_key(|(index, holder)| (*index, holder.status, holder.pid));
    all
}

/// The processes to end: all leftovers, or those that are named.
fn chosen<'a>(
    hosts: &[Host],
    holders: &'a [HostHolder],
    args: &GpusArgs,
) -> Result<Vec<&'a HostHolder>, Failure> {
    if args.free {
        return Ok(holders.iter().filter(|(_, holder)| holder.status == HolderStatus::Leftover).collect());
    }
    args.pid.iter().map(|text| named(hosts, holders, text)).collect()
}

/// The process that `PID` or `HOST:PID` names.
fn named<'a>(hosts: &[Host], holders: &'a [HostHolder], text: &str) -> Result<&'a HostHolder, Failure> {
    let (host, pid) = match text.rsplit_once(':') {
        Some((host, pid)) => (Some(host), pid),
        None => (None, text),
    };
    let list = "list the processes with `rankdeck gpus`";
    let pid: u32 = pid.parse().map_err(|_| Failure::usage(format!("invalid pid `{text}`")).hint(list))?;
    if let Some(name) = host
        && !hosts.iter().any(|host| host.name == name)
    {
        return Err(Failure::usage(format!("host `{name}` is not in the hosts file")).hint(list));
    }
    let name_of = |index: usize| hosts.get(index).map_or("", |host| host.name.as_str());
    let is_meant =
        |(index, holder): &&HostHolder| holder.pid == pid && host.is_none_or(|host| host == name_of(*index));
    let found: Vec<&HostHolder> = holders.iter().filter(is_meant).collect();
    let (index, holder) = match found.as_slice() {
        [one] => one,
        [] => {
            let error = format!("no process {text} holds a GPU or shared memory");
            return Err(Failure::usage(error).hint(list));
        }
        several => {
            let names: Vec<String> =
                several.iter().map(|(index, _)| format!("{}:{pid}", name_of(*index))).collect();
            return Err(Failure::usage(format!("pid {pid} is on several hosts"))
                .hint(format!("name the host: {}", names.join(", "))));
        }
    };
    match holder.status {
        HolderStatus::Leftover | HolderStatus::Unproven => Ok(found[0]),
        _ => {
            let host = name_of(*index);
            let error = format!("cannot end process {pid} on {host}: {}", holder.why);
            Err(Failure::usage(error).hint("end it where it was started, or with `kill` on the host"))
        }
    }
}

async fn end(
    hosts: &[Host],
    holders: &[HostHolder],
    chosen: Vec<&HostHolder>,
    args: &GpusArgs,
) -> Result<u8, Failure> {
    if chosen.is_empty() {
        args.output.outcome("no leftover processes");
        hints(hosts, holders, args.output);
        return Ok(code::SUCCESS);
    }
    if !args.output.json && !args.output.quiet {
        print_table(hosts, &chosen);
    }
    let question = question(&chosen);
    if !(args.yes || prompt::can_confirm() && prompt::yes(&question).await) {
        return Err(Failure::usage("nothing was ended").hint("confirm the prompt, or pass `--yes`"));
    }
    let mut by_host: BTreeMap<usize, Vec<&Holder>> = BTreeMap::new();
    chosen.iter().for_each(|(index, holder)| by_host.entry(*index).or_default().push(holder));
    let asked: Vec<Host> = by_host.keys().map(|index| hosts[*index].clone()).collect();
    let words = |host: &Host| {
        let ending = by_host.iter().find(|(index, _)| hosts[**index].name == host.name);
        let names: Vec<String> = ending
            .map(|(_, holders)| holders.iter().map(|holder| holder.name().to_string()).collect())
            .unwrap_or_default();
        let mut words =
            ["free", "--workdir", &host.workdir, "--processes", &names.join(",")].map(str::to_owned).to_vec();
        words.extend((!args.pid.is_empty()).then(|| "--unproven".to_owned()));
        words
    };
    let answers = exec_on_all(&asked, &args.host_keys, words).await?;
    let mut result = code::SUCCESS;
    for ((index, ending), answer) in by_host.iter().zip(answers) {
        let host = &hosts[*index];
        match answer.and_then(|text| decode::<FreeReport>(host, &text)) {
            Ok(report) => {
                if !reported(host, ending, &report, args.output.json) {
                    result = result.max(code::FAILED);
                }
            }
            Err(error) => {
                print::errors([&error]);
                result = code::HOST;
            }
        }
    }
    Ok(result)
}

fn question(chosen: &[&HostHolder]) -> String {
    let runs: BTreeSet<&String> = chosen.iter().filter_map(|(_, holder)| holder.run.as_ref()).collect();
    let hosts: BTreeSet<usize> = chosen.iter().map(|(index, _)| *index).collect();
    let unproven = chosen.iter().filter(|(_, holder)| holder.status == HolderStatus::Unproven).count();
    let mut what = match chosen.len() {
        1 => "end 1 process".to_owned(),
        count => format!("end {count} processes"),
    };
    if unproven > 0 {
        what = format!("{what}, {unproven} of them unproven,");
    } else if !runs.is_empty() {
        what = format!("{what}, left over from {},", plural(runs.len(), "run"));
    }
    format!("{what} on {}?", plural(hosts.len(), "host"))
}

/// Prints what a host has done; `false` if something was not ended.
fn reported(host: &Host, ending: &[&Holder], report: &FreeReport, as_json: bool) -> bool {
    let known = |name: HolderName| ending.iter().find(|holder| holder.name() == name);
    let mut all_ended = true;
    for (name, outcome) in &report.processes {
        all_ended &= *outcome == FreeOutcome::Ended;
        if as_json {
            let found = Holder { pid: name.pid, start: name.start, ..Holder::default() };
            let mut line = self::as_json(host, known(*name).map_or(&found, |holder| *holder));
            if let (Value::Object(line), Ok(Value::Object(outcome))) =
                (&mut line, serde_json::to_value(outcome))
            {
                line.extend(outcome);
            }
            print::json(&line);
            continue;
        }
        let command = known(*name).map_or("", |holder| holder.command.as_str());
        let text = match outcome {
            FreeOutcome::Ended => format!("ended: {}:{} {command}", host.name, name.pid),
            FreeOutcome::Survived { state } => {
                format!("still running: {}:{} {command} (state {state})", host.name, name.pid)
            }
            FreeOutcome::Refused(HintedError { error, .. }) => format!("not ended: {}: {error}", host.name),
            FreeOutcome::Unknown => format!("unknown outcome: {}:{} {command}", host.name, name.pid),
        };
        print::stdout(clean(&text).trim_end());
    }
    all_ended
}

fn list(hosts: &[Host], holders: &[HostHolder], output: PrintArgs) {
    if output.json {
        holders.iter().for_each(|(index, holder)| {
            print::json(&self::as_json(&hosts[*index], holder));
        });
        return;
    }
    if holders.is_empty() {
        print::stdout("no process holds a GPU or shared memory");
        return;
    }
    print_table(hosts, &holders.iter().collect::<Vec<_>>());
    hints(hosts, holders, output);
}

/// What can be done about it.
fn hints(hosts: &[Host], holders: &[HostHolder], output: PrintArgs) {
    let with = |status| holders.iter().filter(move |(_, holder)| holder.status == status);
    if with(HolderStatus::Leftover).next().is_some() {
        output.progress("hint: end leftover processes with `rankdeck gpus --free`");
    }
    if let Some((index, holder)) = with(HolderStatus::Unproven).next() {
        let name = format!("{}:{}", hosts[*index].name, holder.pid);
        output.progress(&format!("hint: end an unproven process with `rankdeck gpus --pid {name}`"));
    }
}

const HEADER: [&str; 12] =
    ["HOST", "PID", "USER", "RUN", "AGE", "PARENT", "GPU", "MEMORY", "USE", "SHM", "STATUS", "COMMAND"];

fn print_table(hosts: &[Host], holders: &[&HostHolder]) {
    let header = HEADER.map(str::to_owned).to_vec();
    let rows = holders.iter().map(|(index, holder)| row(&hosts[*index], holder));
    print::text(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
}

fn row(host: &Host, holder: &Holder) -> Vec<String> {
    let memory: u64 = holder.gpus.iter().fold(0, |sum, share| sum.saturating_add(share.memory));
    let gpus: Vec<String> = holder.gpus.iter().map(|share| share.index.to_string()).collect();
    let busy = holder.gpus.iter().filter_map(|share| share.percent).reduce(u32::saturating_add);
    let is_known = holder.start > 0;
    let some = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| NONE.to_owned());
    let parent = match holder.ppid {
        1 => "init".to_owned(),
        0 => String::new(),
        ppid => format!("{} ({ppid})", holder.parent),
    };
    let cells = [
        host.name.clone(),
        holder.pid.to_string(),
        some(Some(holder.user.clone())),
        some(holder.run.clone()),
        some(is_known.then(|| duration(holder.age_s))),
        some(Some(parent)),
        some(Some(gpus.join(","))),
        some((memory > 0).then(|| bytes(memory))),
        some(busy.map(|percent| format!("{percent}%"))),
        some((holder.shm_files > 0).then(|| bytes(holder.shm_bytes))),
        holder.status.name().to_owned(),
        holder.command.clone(),
    ];
    cells.iter().map(|cell| clean(cell)).collect()
}

/// A process as a JSON line.
fn as_json(host: &Host, holder: &Holder) -> Value {
    let mut line = json!({ "kind": "gpu_process", "host": host.name });
    if let (Value::Object(line), Ok(Value::Object(fields))) = (&mut line, serde_json::to_value(holder)) {
        line.extend(fields);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.into(), ..Host::default() }
    }

    fn holder(pid: u32, status: HolderStatus, run: &str) -> Holder {
        let run = Some(run.to_owned()).filter(|run| !run.is_empty());
        Holder { pid, start: 9, status, run, ..Holder::default() }
    }

    fn list(machine: &str, holders: &[Holder]) -> HolderList {
        HolderList { holders: holders.to_vec(), machine: machine.into(), ..HolderList::default() }
    }

    #[test]
    fn hosts_of_one_machine_show_each_process_once() {
        use HolderStatus::{InUse, Leftover, Unproven};
        let first = list("m", &[holder(1, Unproven, ""), holder(2, Leftover, "a"), holder(3, InUse, "")]);
        let second = list("m", &[holder(1, Leftover, "b"), holder(2, InUse, "a"), holder(3, Leftover, "b")]);
        let third = list("n", &[holder(1, Unproven, "")]);
        let all = merged(vec![(0, first), (1, second), (2, third)]);
        let found: Vec<_> = all.iter().map(|(index, holder)| (*index, holder.pid, holder.status)).collect();
        assert_eq!(found, [(1, 1, Leftover), (1, 3, Leftover), (1, 2, InUse), (2, 1, Unproven)]);
    }

    #[test]
    fn gpus_1_pid_names_one_process_that_may_end() {
        let hosts = [host("a"), host("b")];
        let all = [
            (0, holder(1, HolderStatus::Unproven, "")),
            (1, holder(1, HolderStatus::Unproven, "")),
            (1, holder(2, HolderStatus::Leftover, "r")),
            (1, holder(3, HolderStatus::InUse, "r")),
            (1, holder(4, HolderStatus::OtherUser, "")),
        ];
        let pick = |text: &str| {
            named(&hosts, &all, text)
                .map(|(index, holder)| (*index, holder.pid))
                .map_err(|failure| failure.code)
        };
        assert_eq!((pick("b:1"), pick("2"), pick("b:2")), (Ok((1, 1)), Ok((1, 2)), Ok((1, 2))));
        for wrong in ["1", "3", "4", "5", "a:2", "c:1", "x", "a:", "-1"] {
            assert_eq!(pick(wrong), Err(code::USAGE), "{wrong}");
        }
    }

    #[test]
    fn gpus_1_free_takes_leftovers_only() {
        let all: Vec<HostHolder> = [
            HolderStatus::Leftover,
            HolderStatus::Unproven,
            HolderStatus::InUse,
            HolderStatus::OtherUser,
            HolderStatus::Unknown,
        ]
        .into_iter()
        .zip(1..)
        .map(|(status, pid)| (0, holder(pid, status, "r")))
        .collect();
        let args = GpusArgs { free: true, ..GpusArgs::default() };
        let pids: Vec<u32> =
            chosen(&[host("a")], &all, &args).unwrap().iter().map(|(_, holder)| holder.pid).collect();
        assert_eq!(pids, [1]);
    }

    #[test]
    fn gpu_process_line_has_kind_host_and_status() {
        let line = as_json(&host("a"), &holder(7, HolderStatus::InUse, "r"));
        let fields = ["kind", "host", "status", "run"].map(|field| line[field].as_str().unwrap().to_owned());
        assert_eq!(fields, ["gpu_process", "a", "in_use", "r"]);
        assert_eq!((line["pid"].as_u64(), line["gpus"].as_array().map(Vec::len)), (Some(7), Some(0)));
    }
}
