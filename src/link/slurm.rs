//! Transport to an agent on a node of a Slurm allocation, through `srun`.
//!
//! Two kinds of steps, both with `--overlap`, because a second step in an allocation otherwise waits for the
//! first:
//! - the *agent step* starts the agent and stays until the agent ends, because Slurm may kill the processes
//!   of a finished step (`proctrack/cgroup`);
//! - the *relay step* copies between its standard streams and the agent's socket; the link may end it at any
//!   time.
//!
//! Invariants:
//! - The agent step's `srun` is never signaled: a signal to srun kills (SIGKILL) the whole step at once. It
//!   runs in its own session, so that a terminal's ctrl-c does not reach it, and it outlives the console. A
//!   run ends when its agents have verified its stop.
//! - srun takes every `SLURM_` variable for an option: a step inherits only how to reach the controller, and
//!   facts about its job. What it needs is passed as options.
//! - slurmstepd forwards whole lines of limited length, so frames are sent as base64 lines
//!   ([`rankdeck_proto::frame`]).

use super::agent_command;
use super::frame_pump::{AgentTransport, Pipe};
use super::link_io::LinkIo;
use super::local;
use super::{AgentCommand, AgentReply, LinkRequest};
use crate::ssh::exec;
use crate::ssh::session::Interest;
use crate::ssh::{SessionOwner, SshError};
use rankdeck_proto::frame;
use rankdeck_proto::frame::LineDecoder;
use rankdeck_types::host::Host;
use rankdeck_types::host::Probe;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of starting an agent; a busy controller is slow.
const STARTING: Duration = Duration::from_secs(60);
/// Timeout of a query about the job.
const ASKING: Duration = Duration::from_secs(10);
/// Timeout of the exit of a relay step.
const ENDING: Duration = Duration::from_secs(1);

/// Returns whether `srun` inherits a variable: any but Slurm's own, how to reach the controller, and, in the
/// allocation of its job (`inside`), facts about that job. It reads all others as options, which belong to
/// the job's other steps, or to whatever the user's shell sets for other commands.
fn is_for_srun(name: &str, inside: bool) -> bool {
    const CONTROLLER: [&str; 6] = [
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_CLUSTERS",
        "SLURM_WORKING_CLUSTER",
        "SLURM_CLUSTER_NAME",
    ];
    const JOB: [&str; 6] =
        ["SLURM_JOB_", "SLURM_JOBID", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_RESTART_COUNT", "SLURM_TMPDIR"];
    let is_slurm = ["SLURM_", "SRUN_"].iter().any(|prefix| name.starts_with(prefix));
    !is_slurm || CONTROLLER.contains(&name) || inside && JOB.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the Slurm job of a host.
fn job_of(host: &Host) -> Option<String> {
    // A plan of an older console names no job.
    host.slurm_job.clone().or_else(|| std::env::var("SLURM_JOB_ID").ok())
}

/// Returns `srun` for one task on `host`.
///
/// # Errors
/// The host has no job; `srun` would request a new allocation.
fn srun(host: &Host, gpus: bool) -> Result<Command, SshError> {
    let job = job_of(host).ok_or_else(|| {
        SshError::permanent(
            format!("{}: the Slurm job of this node is unknown", host.name),
            "run the command in the allocation, or name the job: `--slurm=JOB`",
        )
    })?;
    let inside = std::env::var("SLURM_JOB_ID").is_ok_and(|own| own == job);
    let mut command = Command::new("srun");
    for (name, _) in std::env::vars_os().filter(|(name, _)| !is_for_srun(&name.to_string_lossy(), inside)) {
        command.env_remove(name);
    }
    command.arg(format!("--jobid={job}"));
    command.args([
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--export=ALL",
        "--mpi=none",
        "--cpu-bind=none",
        "--mem=0",
        "--quiet",
    ]);
    if !gpus {
        command.arg("--gres=none");
    }
    command.arg(format!("--nodelist={}", host.name));
    Ok(command)
}

/// Slurm transport of one link.
#[derive(Debug)]
pub(crate) struct SlurmTransport<'a> {
    request: &'a LinkRequest,
    /// Reaped if they end while this console lives; never signaled.
    agent_steps: Vec<Child>,
}

impl SlurmTransport<'_> {
    /// Creates the transport for `request`.
    pub fn new(request: &LinkRequest) -> SlurmTransport<'_> {
        SlurmTransport { request, agent_steps: Vec::new() }
    }
}

impl AgentTransport for SlurmTransport<'_> {
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        reconnecting: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
        self.agent_steps.retain_mut(|agent_step| matches!(agent_step.try_wait(), Ok(None)));
        let request = self.request;
        let (host, agent) = (&request.host, &request.agent_binary);
        link_io.starting();
        let workdir = if host.workdir.is_empty() { "." } else { &host.workdir };
        let mut arguments = agent_command::start_arguments(request, workdir, link_io.inbox.resumes());
        // `agent hold ...` instead of `agent start ...`.
        arguments[1] = "hold".into();
        let mut command = srun(host, true)?;
        command.arg("--input=none").arg(agent).args(&arguments);
        // SAFETY: setsid has no memory effects and is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut running = local::RunningCommand::start(&host.name, command, &[])?;
        let done = |out: &[u8]| exec::after(out, "RANKDECK-AGENT").is_some();
        let output = running.until(&host.name, "srun", STARTING, link_io, &done);
        // From here on, Slurm manages the step.
        self.agent_steps.extend(running.release());
        let output = output?;
        if reconnecting && output.after("RANKDECK-AGENT").is_none() {
            job_is_there(host, link_io)?;
        }
        let probe = agent_command::read_probe_here(request, output.after("RANKDECK-PROBE"));
        let answer = output.after("RANKDECK-AGENT");
        let started =
            agent_command::read_started(&host.name, answer.as_deref(), &output.summary(), reconnecting)?;
        let relay_step = RelayStep::start(srun(host, false)?, agent, &started.socket).map_err(|error| {
            SshError::transient(
                format!("{}: cannot start srun: {error}", host.name),
                "check that `srun` is installed",
            )
        })?;
        Ok((probe, Box::new(relay_step)))
    }
}

/// Fails permanently if the allocation has ended: no step can start in it. A failing query is not an error.
fn job_is_there(host: &Host, owner: &mut dyn SessionOwner) -> Result<(), SshError> {
    let Some(job) = job_of(host) else { return Ok(()) };
    let label = &host.name;
    let mut command = Command::new("scontrol");
    command.args(["show", "job", "--oneliner", &job]);
    let mut running = local::RunningCommand::start(label, command, &[])?;
    let Ok(output) = running.until(label, "scontrol", ASKING, owner, &|_| false) else { return Ok(()) };
    match end_of_job(&String::from_utf8_lossy(&output.stdout), &output.last_error_line()) {
        Some(end) => Err(SshError::permanent(
            format!("{label}: Slurm job {job} has ended: {end}"),
            format!(
                "list leftover processes with `rankdeck ps`, from a job on that node or with `address = \"{label}\"` over SSH"
            ),
        )),
        None => Ok(()),
    }
}

/// Returns how a job ended, if so, from the output of `scontrol show job`.
fn end_of_job(stdout: &str, error: &str) -> Option<String> {
    // A job that is pending again (REQUEUED, PENDING) has released its nodes.
    const ALIVE: [&str; 6] = ["RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "STOPPED"];
    let value = |name: &str| stdout.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    match value("JobState=") {
        Some(state) if ALIVE.contains(&state) => None,
        Some(state) => {
            let reason = value("Reason=").filter(|reason| *reason != "None");
            Some(reason.map_or_else(|| state.to_owned(), |reason| format!("{state} ({reason})")))
        }
        None => error.contains("Invalid job id").then(|| "unknown to Slurm".to_owned()),
    }
}

/// Runs `rankdeck agent ARGS` on a node and returns its reply. Uploads go to this machine's cache, because
/// nodes share home directories.
pub fn call(
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    owner: &mut dyn SessionOwner,
) -> Result<AgentReply, SshError> {
    let mut command = srun(host, false)?;
    if call.input.is_empty() {
        command.arg("--input=none");
    }
    command.arg(agent).arg("agent").args(&call.args);
    local::run_for_reply(host, command, "srun", call, owner)
}

/// A step that relays bytes to an agent. Stdin and stdout of its `srun` are the two directions of one socket.
struct RelayStep {
    child: Child,
    stream: UnixStream,
    reader: LineDecoder,
    /// Unwritten rest of a line.
    pending: Vec<u8>,
}

impl RelayStep {
    fn start(mut command: Command, agent: &Path, socket: &str) -> io::Result<RelayStep> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        command.arg(agent).args(["agent", "relay", "--lines", "--socket", socket]);
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        let child = command.stdin(input).stdout(output).stderr(Stdio::null()).process_group(0).spawn()?;
        Ok(RelayStep { child, stream, reader: LineDecoder::default(), pending: Vec::new() })
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
        let piece = &bytes[..bytes.len().min(frame::LINE_BYTES)];
        self.pending = frame::encode_line(piece);
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
        // The relay ends at the end of its input, and the step with it; killing it affects nothing else.
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
    fn srun_inherits_no_options_of_other_steps() {
        for name in ["PATH", "SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_PARTITION"] {
            assert!(is_for_srun(name, false) && is_for_srun(name, true), "{name}");
        }
        for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_SUBMIT_DIR", "SLURM_ARRAY_TASK_ID"] {
            assert!(is_for_srun(name, true) && !is_for_srun(name, false), "{name}");
        }
        for name in [
            "SLURM_LABELIO",
            "SLURM_STDOUTMODE",
            "SLURM_EXCLUSIVE",
            "SLURM_CONSTRAINT",
            "SLURM_HINT",
            "SLURM_EXPORT_ENV",
            "SLURM_NTASKS",
            "SLURM_CPUS_PER_TASK",
            "SLURM_GPUS_PER_TASK",
            "SLURM_DISTRIBUTION",
            "SLURM_STEP_ID",
            "SLURM_WHATEVER_COMES",
            "SRUN_CPUS_PER_TASK",
        ] {
            assert!(!is_for_srun(name, true), "{name}");
        }
    }

    #[test]
    fn ended_job_is_distinguished_from_a_running_one() {
        let of = |state: &str| end_of_job(&format!("JobId=7 JobName=a JobState={state} Requeue=0"), "");
        assert_eq!(of("NODE_FAIL Reason=NodeDown").as_deref(), Some("NODE_FAIL (NodeDown)"));
        assert_eq!(of("TIMEOUT Reason=TimeLimit").as_deref(), Some("TIMEOUT (TimeLimit)"));
        assert_eq!(of("COMPLETED Reason=None").as_deref(), Some("COMPLETED"));
        assert_eq!(of("PENDING Reason=BeginTime").as_deref(), Some("PENDING (BeginTime)"));
        assert_eq!((of("RUNNING Reason=None"), of("COMPLETING Reason=NodeDown")), (None, None));
        assert_eq!(end_of_job("", "Unable to contact slurm controller"), None, "unreachable, not ended");
        let unknown = end_of_job("", "slurm_load_jobs error: Invalid job id specified");
        assert_eq!(unknown.as_deref(), Some("unknown to Slurm"));
    }
}
