//! A small real Slurm on this machine, as the current user: munged, slurmctld and two slurmd with their own
//! ports and folders.
//!
//! Several slurmd work on one machine if each has its own node name (`slurmd -N`). Without cgroups:
//! `proctrack/linuxproc`.

use rankdeck_testkit::{free_port, program, skipped};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemons, ended on drop.
pub struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    reaper: Option<Child>,
}

/// Index of the first node in [`Slurm::daemons`], after munged and slurmctld.
const NODES: usize = 2;

/// Kills all processes whose environment contains the folder `$1`, and removes the folder, when its standard
/// input ends, at the latest with the test. A killed test drops nothing, and slurmstepd is a daemon.
const REAPER: &str = r#"
cat >/dev/null
round=0
while [ $round -lt 50 ]; do
    left=
    for p in /proc/[0-9]*; do
        if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qF "$1"; then kill -KILL "${p#/proc/}" && left=1; fi
    done
    [ -n "$left" ] || break
    sleep 0.1
    round=$((round + 1))
done
rm -rf "$1"
"#;

/// Returns why Slurm cannot be started.
fn missing() -> Option<String> {
    let absent: Vec<&str> = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel"]
        .into_iter()
        .filter(|name| program(name).is_none())
        .collect();
    (!absent.is_empty())
        .then(|| format!("no {}; `apt-get install slurmctld slurmd slurm-client munge`", absent.join(", ")))
}

fn daemon(name: &str) -> Command {
    Command::new(program(name).unwrap_or_else(|| name.into()))
}

impl Slurm {
    /// Starts two idle nodes `n0` and `n1`; `None` if the test is skipped.
    pub fn start() -> Option<Slurm> {
        Slurm::start_with("", 0)
    }

    /// Starts nodes with up to 4 GPUs each. Slurm accepts any device as a GPU, and lists their indices in
    /// `CUDA_VISIBLE_DEVICES`.
    pub fn start_with_gpus(gpus: usize) -> Option<Slurm> {
        Slurm::start_with("", gpus)
    }

    /// Starts a Slurm in which requeued jobs wait seconds instead of two minutes for the credentials of their
    /// former steps to expire.
    pub fn start_requeueing() -> Option<Slurm> {
        Slurm::start_with(",cred_expire=15", 0)
    }

    fn start_with(auth: &str, gpus: usize) -> Option<Slurm> {
        if let Some(why) = missing() {
            skipped(&why);
            return None;
        }
        // A short path, for sockets.
        let folder = tempfile::Builder::new().prefix("rd-slurm-").tempdir_in("/tmp").unwrap();
        let dir = folder.path().to_owned();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
        let (user, port) = (user.trim(), [free_port(), free_port(), free_port()]);
        for name in ["n0.spool", "n1.spool", "state", "munge"] {
            std::fs::create_dir(dir.join(name)).unwrap();
        }
        std::fs::set_permissions(dir.join("munge"), PermissionsExt::from_mode(0o755)).unwrap();
        let mut key = vec![0; 128];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut key).unwrap();
        std::fs::write(dir.join("key"), key).unwrap();
        std::fs::set_permissions(dir.join("key"), PermissionsExt::from_mode(0o400)).unwrap();
        let d = dir.display();
        let devices = ["null", "zero", "full", "random"].into_iter().take(gpus);
        let gres: String =
            devices.map(|device| format!("NodeName=n[0-1] Name=gpu File=/dev/{device}\n")).collect();
        std::fs::write(dir.join("gres.conf"), gres).unwrap();
        let of_node = if gpus > 0 { format!("Gres=gpu:{gpus}") } else { String::new() };
        let text = format!(
            "ClusterName=rankdeck\nSlurmctldHost=localhost\nSlurmctldPort={ctl}\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={d}/munge/sock{auth}\nStateSaveLocation={d}/state\nSlurmdSpoolDir={d}/%n.spool\n\
             SlurmctldPidFile={d}/ctl.pid\nSlurmdPidFile={d}/%n.pid\nSlurmctldLogFile={d}/ctl.log\nSlurmdLogFile={d}/%n.log\n\
             MailProg=/bin/true\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nReturnToService=2\nMpiDefault=none\n\
             KillWait=60\nSlurmdTimeout=30\nInactiveLimit=0\nGresTypes=gpu\n\
             NodeName=n0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={p0} CPUs=8 RealMemory=1000 {of_node} State=UNKNOWN\n\
             NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={p1} CPUs=8 RealMemory=1000 {of_node} State=UNKNOWN\n\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            ctl = port[0],
            p0 = port[1],
            p1 = port[2],
        );
        std::fs::write(dir.join("slurm.conf"), text).unwrap();
        let mut reaper = Command::new("setsid");
        reaper.args(["sh", "-c", REAPER, "reaper"]).arg(&dir).stdin(Stdio::piped());
        let reaper = Some(reaper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let mut slurm = Slurm { folder, daemons: Vec::new(), reaper };
        let mut munged = daemon("munged");
        munged.args(["--foreground", "--force"]);
        for (option, name) in [
            ("key-file", "key"),
            ("socket", "munge/sock"),
            ("pid-file", "munge/pid"),
            ("log-file", "munge/log"),
            ("seed-file", "munge/seed"),
        ] {
            munged.arg(format!("--{option}={}", dir.join(name).display()));
        }
        slurm.spawn(munged);
        slurm.wait("munged", || dir.join("munge/sock").exists());
        let mut controller = daemon("slurmctld");
        controller.args(["-D", "-i", "-f"]).arg(slurm.conf());
        slurm.spawn(controller);
        for node in 0..2 {
            let node_daemon = slurm.node_daemon(node);
            slurm.spawn(node_daemon);
        }
        slurm.wait("two idle nodes", || slurm.ask("sinfo", &["-hN", "-t", "idle", "-o", "%N"]) == "n0\nn1");
        Some(slurm)
    }

    fn node_daemon(&self, node: usize) -> Command {
        let mut node_daemon = daemon("slurmd");
        node_daemon.args(["-D", "-N", &format!("n{node}"), "-f"]).arg(self.conf());
        node_daemon
    }

    /// Kills the daemon of a node and marks the node as down, as the controller does after a timeout. Its
    /// processes continue.
    pub fn node_down(&mut self, node: usize) {
        let daemon = &mut self.daemons[NODES + node];
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        self.ask("scontrol", &["update", &format!("nodename=n{node}"), "state=down", "reason=broken"]);
    }

    /// Restarts the daemon of a node.
    pub fn node_up(&mut self, node: usize) {
        let node_daemon = self.node_daemon(node);
        self.spawn(node_daemon);
        let daemon = self.daemons.pop().unwrap();
        self.daemons[NODES + node] = daemon;
        let (name, up) = (format!("n{node}"), ["-t", "idle,alloc,mix"]);
        self.wait("node that is up", || {
            self.ask("sinfo", &["-hN", up[0], up[1], "-n", &name, "-o", "%N"]) == name
        });
    }

    fn spawn(&mut self, mut command: Command) {
        command
            .env("SLURM_CONF", self.conf())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.daemons.push(command.spawn().unwrap());
    }

    fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            let logs =
                |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            assert!(Instant::now() < deadline, "no {what}:\n{}\n{}", logs("ctl.log"), logs("munge/log"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the configuration file.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    /// Returns a command of Slurm, or one that uses it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.conf());
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("SLURM_") && name != "SLURM_CONF")
        {
            command.env_remove(name);
        }
        command
    }

    /// Returns the output of a Slurm command.
    pub fn ask(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Sets the end of a job. Slurm rejects a time in the past.
    pub fn end_in(&self, job: &str, seconds: u32) {
        super::wait_until("the job's end is set", 30, || {
            let words = ["update".to_owned(), format!("JobId={job}"), format!("EndTime=now+{seconds}")];
            self.command("scontrol").args(words).output().unwrap().status.success()
        });
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let jobs = self.ask("squeue", &["-h", "-o", "%i"]);
        for job in jobs.lines() {
            let _ = self.ask("scancel", &["--signal=KILL", "--full", job]);
            let _ = self.ask("scancel", &[job]);
        }
        for child in self.daemons.iter_mut().rev() {
            crate::support::kill(child.id(), libc::SIGTERM);
            let deadline = Instant::now() + Duration::from_secs(5);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(mut reaper) = self.reaper.take() {
            drop(reaper.stdin.take());
            let _ = reaper.wait();
        }
    }
}
