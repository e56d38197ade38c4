//! The transport to an agent on a node of a Slurm allocation: `srun` instead of SSH.
//!
//! Two kinds of steps, both with `--overlap`, since a second step in an allocation waits for the first
//! otherwise:
//! - the *agent step* starts the agent and stays until the agent has ended, since Slurm may kill whatever a
//!   finished step leaves (`proctrack/cgroup`);
//! - the *relay step* copies between its standard streams and the agent's socket; the link owns it and may
//!   end it at any time.
//!
//! Owner: the link's thread. Invariants:
//! - The agent step's `srun` is never signalled: a signal to srun is SIGKILL for everything in the step, at
//!   once. It has a session of its own, so that a terminal's ctrl-c does not reach it, and it outlives the
//!   console. A run
//!   ends when its agents have verified its stop.
//! - Slurmstepd passes on whole lines of limited length, so frames travel as base64 lines
//!   ([`rankdeck_proto::lines`]).

use super::agent_command;
use super::carry::Pipe;
use super::link_io::LinkIo;
use super::local;
use super::transport::AgentTransport;
use super::{AgentCommand, AgentReply, LinkRequest};
use crate::ssh::output;
use crate::ssh::wait::Interest;
use crate::ssh::{Operator, SshError};
use rankdeck_proto::lines;
use rankdeck_proto::lines::LineReader;
use rankdeck_types::host::Host;
use rankdeck_types::probe::Probe;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bound of starting an agent; a busy controller may take its time.
const STARTING: Duration = Duration::from_secs(60);
/// Bound of a question about the job.
const ASKING: Duration = Duration::from_secs(10);
/// How long a relay step may take to end by itself.
const ENDING: Duration = Duration::from_secs(1);

/// What a step of ours must not inherit: options of the job's own steps that `srun` would read from the
/// environment.
fn is_option_of_srun(name: &str) -> bool {
    const PREFIXES: [&str; 9] = [
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_TASKS_PER_NODE",
        "SLURM_GPU",
        "SLURM_CPU",
        "SLURM_MEM",
        "SLURM_DISTRIBUTION",
        "SLURM_THREADS",
        "SLURM_EXACT",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `srun` for one task of a step of ours on `host`.
fn srun(host: &Host, gpus: bool) -> Command {
    let mut command = Command::new("srun");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_option_of_srun(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    if let Some(job) = std::env::var_os("SLURM_JOB_ID") {
        let mut option = std::ffi::OsString::from("--jobid=");
        option.push(job);
        command.arg(option);
    }
    command.args([
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--mpi=none",
        "--cpu-bind=none",
        "--mem=0",
        "--quiet",
    ]);
    if !gpus {
        command.arg("--gres=none");
    }
    command.arg(format!("--nodelist={}", host.name));
    command
}

/// The Slurm transport of one link.
#[derive(Debug)]
pub struct SlurmTransport<'a> {
    request: &'a LinkRequest,
    /// Reaped when they end while this console lives; never signalled.
    agent_steps: Vec<Child>,
}

impl SlurmTransport<'_> {
    /// The transport for `request`.
    pub fn new(request: &LinkRequest) -> SlurmTransport<'_> {
        SlurmTransport { request, agent_steps: Vec::new() }
    }
}

impl AgentTransport for SlurmTransport<'_> {
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        mending: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
        self.agent_steps.retain_mut(|agent_step| matches!(agent_step.try_wait(), Ok(None)));
        let request = self.request;
        let (host, agent) = (&request.host, &request.agent_binary);
        link_io.starting();
        let workdir = if host.workdir.is_empty() { "." } else { &host.workdir };
        let mut arguments = agent_command::start_arguments(request, workdir);
        // `agent hold ...` instead of `agent start ...`.
        arguments[1] = "hold".into();
        let mut command = srun(host, true);
        command.arg("--input=none").arg(agent).args(&arguments);
        // SAFETY: setsid has no memory effects and is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut running = local::RunningCommand::start(&host.name, command, &[])?;
        let done = |out: &[u8]| output::after(out, "RANKDECK-AGENT").is_some();
        let said = running.until(&host.name, "srun", STARTING, link_io, &done);
        // Answered or not: the step is Slurm's from here on.
        self.agent_steps.extend(running.release());
        let said = said?;
        if mending && said.after("RANKDECK-AGENT").is_none() {
            job_is_there(&host.name, link_io)?;
        }
        let probe = agent_command::read_probe_here(request, said.after("RANKDECK-PROBE"));
        let answer = said.after("RANKDECK-AGENT");
        let started = agent_command::read_started(&host.name, answer.as_deref(), &said.described(), mending)?;
        let relay_step = RelayStep::start(host, agent, &started.socket).map_err(|error| {
            SshError::passing(
                format!("{}: cannot start srun: {error}", host.name),
                "check that `srun` is installed here",
            )
        })?;
        Ok((probe, Box::new(relay_step)))
    }
}

/// Fails for good when the allocation is no more: no step will ever start in it. What cannot be asked may
/// come back.
fn job_is_there(label: &str, operator: &mut dyn Operator) -> Result<(), SshError> {
    let Ok(job) = std::env::var("SLURM_JOB_ID") else { return Ok(()) };
    let mut command = Command::new("scontrol");
    command.args(["show", "job", "--oneliner", &job]);
    let mut running = local::RunningCommand::start(label, command, &[])?;
    let Ok(said) = running.until(label, "scontrol", ASKING, operator, &|_| false) else { return Ok(()) };
    match end_of_job(&String::from_utf8_lossy(&said.stdout), &said.complaint()) {
        Some(end) => Err(SshError::lasting(
            format!("{label}: Slurm job {job} has no nodes any more: {end}"),
            format!(
                "`rankdeck ps` shows what is left there, from a job that has the node, or with `address = \"{label}\"` over SSH"
            ),
        )),
        None => Ok(()),
    }
}

/// How a job has ended, if it has, by what `scontrol show job` prints.
fn end_of_job(said: &str, complaint: &str) -> Option<String> {
    // A job that waits again (REQUEUED, PENDING) has given its nodes back.
    const GOES_ON: [&str; 6] = ["RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "STOPPED"];
    let value = |name: &str| said.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    match value("JobState=") {
        Some(state) if GOES_ON.contains(&state) => None,
        Some(state) => {
            let reason = value("Reason=").filter(|reason| *reason != "None");
            Some(reason.map_or_else(|| state.to_owned(), |reason| format!("{state} ({reason})")))
        }
        None => complaint.contains("Invalid job id").then(|| "Slurm does not know it any more".to_owned()),
    }
}

/// Runs `rankdeck agent ARGS` on a node and gives back its answer. Uploads go into this machine's cache, as
/// nodes share their home folders.
pub fn call(
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    operator: &mut dyn Operator,
) -> Result<AgentReply, SshError> {
    let mut command = srun(host, false);
    if call.input.is_empty() {
        command.arg("--input=none");
    }
    command.arg(agent).arg("agent").args(&call.args);
    local::answer_of(host, command, "srun", call, operator)
}

/// A step that copies bytes to an agent. Standard input and output of its `srun` are the two directions of
/// one socket.
struct RelayStep {
    child: Child,
    stream: UnixStream,
    reader: LineReader,
    /// The rest of a line that did not fit.
    pending: Vec<u8>,
}

impl RelayStep {
    fn start(host: &Host, agent: &Path, socket: &str) -> io::Result<RelayStep> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let mut command = srun(host, false);
        command.arg(agent).args(["agent", "relay", "--lines", "--socket", socket]);
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        let child = command.stdin(input).stdout(output).stderr(Stdio::null()).process_group(0).spawn()?;
        Ok(RelayStep { child, stream, reader: LineReader::default(), pending: Vec::new() })
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let wrote = Write::write(&mut self.stream, &self.pending)?;
            self.pending.drain(..wrote);
        }
        Ok(())
    }
}

impl Pipe for RelayStep {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        loop {
            let count = self.reader.take(buffer);
            if count > 0 {
                return Ok(count);
            }
            let mut chunk = [0; 16 << 10];
            match Read::read(&mut self.stream, &mut chunk)? {
                0 => return Ok(0),
                read => self.reader.push(&chunk[..read])?,
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let piece = &bytes[..bytes.len().min(lines::PIECE)];
        self.pending = lines::line(piece);
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(piece.len()),
        }
    }

    fn interest(&self, pending: bool) -> Interest {
        Interest { fd: self.stream.as_raw_fd(), read: true, write: pending || !self.pending.is_empty() }
    }
}

impl Drop for RelayStep {
    fn drop(&mut self) {
        // The relay ends at the end of its input, and the step with it; killing this step harms nobody else.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let deadline = Instant::now() + ENDING;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_over_is_told_from_one_that_goes_on() {
        let of = |state: &str| end_of_job(&format!("JobId=7 JobName=a JobState={state} Requeue=0"), "");
        assert_eq!(of("NODE_FAIL Reason=NodeDown").as_deref(), Some("NODE_FAIL (NodeDown)"));
        assert_eq!(of("TIMEOUT Reason=TimeLimit").as_deref(), Some("TIMEOUT (TimeLimit)"));
        assert_eq!(of("COMPLETED Reason=None").as_deref(), Some("COMPLETED"));
        assert_eq!(of("PENDING Reason=BeginTime").as_deref(), Some("PENDING (BeginTime)"));
        assert_eq!((of("RUNNING Reason=None"), of("COMPLETING Reason=NodeDown")), (None, None));
        assert_eq!(end_of_job("", "Unable to contact slurm controller"), None, "it may come back");
        let unknown = end_of_job("", "slurm_load_jobs error: Invalid job id specified");
        assert_eq!(unknown.as_deref(), Some("Slurm does not know it any more"));
    }
}
