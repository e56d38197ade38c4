//! The hook in a real interpreter, with a stand-in for PyTorch's module where no collective is needed.

use super::*;
use rankdeck_proto::message::{Exception, FailureKind, RankEvent};
use rankdeck_proto::status_page::{StatusPageReader, StatusPageWriter};
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// The hook finds what it wraps by name.
const MODULE: &str = r#"
_world = None
class Group:
    def size(self): return 1
def _get_default_group(): return _world
def _get_process_group_name(group): return "0"
def get_process_group_ranks(group): return [0]
def is_initialized(): return _world is not None
def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
    global _world
    _world = Group()
def destroy_process_group(group=None): pass
def all_reduce(tensor, op=None, group=None, async_op=False):
    if callable(op): op()
def broadcast(tensor, src, group=None, async_op=False):
    raise RuntimeError("made by a library")
"#;

/// Hooks of optimizers' steps.
const OPTIMIZER: &str = r#"
_hooks = {}
class Handle:
    def remove(self): _hooks.pop(self)
def register_optimizer_step_post_hook(hook):
    handle = Handle()
    _hooks[handle] = hook
    return handle
def step():
    for hook in _hooks.values(): hook(None, (), {})
"#;

/// A directory with the hook, the stand-in and `train.py`.
fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path()).unwrap();
    let package = folder.path().join("torch/distributed");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(folder.path().join("torch/__init__.py"), "float32 = 1\n").unwrap();
    std::fs::write(package.join("__init__.py"), "from .distributed_c10d import *\n").unwrap();
    std::fs::write(package.join("distributed_c10d.py"), MODULE).unwrap();
    let optim = folder.path().join("torch/optim");
    std::fs::create_dir_all(&optim).unwrap();
    std::fs::write(optim.join("__init__.py"), "").unwrap();
    std::fs::write(optim.join("optimizer.py"), OPTIMIZER).unwrap();
    std::fs::write(folder.path().join("train.py"), script).unwrap();
    folder
}

/// `train.py` as rank 0, whose page is `page`.
fn python(folder: &Path, page: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .arg(folder.join("train.py"))
        .env("PYTHONPATH", format!("{}:{}", folder.join("python").display(), folder.display()))
        .env("RANKDECK_RANK", "0")
        .env_remove("RANK")
        .env("RANKDECK_STATUS_PAGE", page)
        .env_remove("RANKDECK_HOOK_PID")
        .env_remove("WORLD_SIZE");
    command
}

/// Runs `command` while the file system of `at` is full: a tmpfs in a namespace of its own. `None` where no
/// such namespace can be made.
fn on_a_full_disk(at: &Path, command: &Command) -> Option<Output> {
    let room =
        "mount -t tmpfs -o size=64k none \"$0\" && { head -c 1000000 /dev/zero >\"$0/fill\"; exec \"$@\"; }";
    let mut inside = Command::new("unshare");
    inside.args(["-Urm", "sh", "-c", room]).arg(at).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let able = Command::new("unshare").args(["-Urm", "true"]).output();
    able.is_ok_and(|able| able.status.success()).then(|| inside.output().unwrap())
}

const STARTS: &str = r#"
import torch.distributed as dist
for _ in range(3): dist.init_process_group()
dist.all_reduce(None)
print("trained", flush=True)
"#;

#[test]
fn hook_1_full_disk_spares_the_script_and_is_reported_once() {
    let made = folder(STARTS);
    let disk = tempfile::tempdir().unwrap();
    let command = python(made.path(), &disk.path().join("rank0.page"));
    let Some(output) = on_a_full_disk(disk.path(), &command) else {
        rankdeck_testkit::skip!("no user namespaces here");
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "trained\n");
    assert_eq!(errors.matches("no status page").count(), 1, "{errors}");
    assert!(errors.contains("No space left on device"), "{errors}");
}

#[test]
fn hook_writes_a_page_that_the_agent_reads() {
    let made = folder(STARTS);
    let page = made.path().join("rank0.page");
    let output = python(made.path(), &page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let view = StatusPageReader::open(&page).unwrap().view().unwrap();
    assert!(view.by_hook && !view.torn);
    assert_eq!(view.body.entered, 1);
}

#[test]
fn page_has_the_arguments_of_init_process_group() {
    let arguments = |call: &str, env: &[(&str, &str)]| {
        let made = folder(&format!("import torch.distributed as dist\ndist.init_process_group({call})\n"));
        let page = made.path().join("rank0.page");
        let mut command = python(made.path(), &page);
        command.envs([
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
        ]);
        let output = command.envs(env.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let given = StatusPageReader::open(&page).unwrap().view().unwrap().group_arguments.unwrap();
        (given.rank, given.world_size, given.address, given.port)
    };
    let found = |rank, size, address: &str, port| (rank, size, address.to_owned(), port);
    assert_eq!(arguments("'gloo'", &[]), found(Some(3), Some(4), "node0", Some(29500)));
    assert_eq!(arguments("rank=1, world_size=2", &[]), found(Some(1), Some(2), "node0", Some(29500)));
    let port = [("MASTER_PORT", "x"), ("WORLD_SIZE", "")];
    assert_eq!(arguments("", &port), found(Some(3), None, "node0", None));
    let tcp = "init_method='tcp://[::1]:1234?rank=2', world_size=9";
    assert_eq!(arguments(tcp, &[]), found(Some(2), Some(9), "::1", Some(1234)));
    let long = format!("init_method='file:///{}/end', rank=0, world_size=2", "d".repeat(200));
    let (rank, _, address, port) = arguments(&long, &[]);
    assert!(rank == Some(0) && port.is_none() && address.ends_with("/end"), "{address}");
    assert_eq!(arguments("store=object(), rank=0, world_size=2", &[]), found(Some(0), Some(2), "", None));
}

#[test]
fn page_has_line_backend_and_contradicting_variables() {
    let given = |call: &str, env: &[(&str, &str)]| {
        let made = folder(&format!("import torch.distributed as dist\ndist.init_process_group({call})\n"));
        let page = made.path().join("rank0.page");
        let mut command = python(made.path(), &page);
        command.envs([("RANK", "3"), ("RANKDECK_RANK", "3"), ("WORLD_SIZE", "4"), ("ROLE_WORLD_SIZE", "4")]);
        let output = command.envs(env.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        StatusPageReader::open(&page).unwrap().view().unwrap().group_arguments.unwrap()
    };
    let found = given("'gloo'", &[]);
    assert_eq!((found.backend.as_str(), found.contradicting), ("gloo", vec![]));
    assert!(found.site.ends_with("/train.py:2"), "{}", found.site);
    assert_eq!(given("'cpu:gloo,cuda:nccl'", &[]).backend, "", "one for each kind of device");
    let env = [("SLURM_PROCID", "0"), ("PMI_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "x")];
    assert_eq!(given("", &env).contradicting, ["SLURM_PROCID", "OMPI_COMM_WORLD_SIZE"]);
    let changed = "rank=0, world_size=int(__import__('os').environ.update(WORLD_SIZE='2') or 2)";
    assert_eq!(given(changed, &[]).contradicting, ["WORLD_SIZE"]);
}

#[test]
fn hook_8_steps_count_with_and_without_a_group() {
    let run = |script: &str, ranks: &str| {
        let made = folder(&format!("import torch.optim.optimizer as o, torch.distributed as dist\n{script}"));
        let page = made.path().join("rank0.page");
        let output = python(made.path(), &page).env("WORLD_SIZE", ranks).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let view = StatusPageReader::open(&page).ok()?.view().unwrap();
        Some((view.body.updates, view.body.phase, view.group_arguments.is_some()))
    };
    let three = "for _ in range(3): o.step()\n";
    assert_eq!(run(three, "2"), Some((3, 0, false)));
    assert_eq!(run(three, "1"), None, "a single rank needs no group");
    let forms = "o.step()\ndist.init_process_group()\no.step()\no.step()\n";
    assert_eq!(run(forms, "2"), Some((3, 3, true)), "each step once");
    let forks = "import os\no.step()\nif os.fork() == 0:\n    o.step()\n    os._exit(0)\nos.wait()\n";
    assert_eq!(run(forks, "2"), Some((1, 0, false)), "HOOK-3");
}

/// A rank without torchrun's variables has the hook, too; so do the names of its Flight Recorder.
#[test]
fn recorder_has_the_names_that_the_torch_reads() {
    let old = "TORCH_NCCL_TRACE_BUFFER_SIZE";
    let script = format!("import os\nimport torch.distributed\nprint(os.environ.get('{old}'))\n");
    for (version, expected) in [("2.6.0", "2000"), ("2.8.0+cu128", "None"), ("2.11", "None"), ("x", "None")] {
        let made = folder(&script);
        let text = format!("float32 = 1\n__version__ = '{version}'\n");
        std::fs::write(made.path().join("torch/__init__.py"), text).unwrap();
        let mut command = python(made.path(), &made.path().join("rank0.page"));
        let output = command.env("TORCH_FR_BUFFER_SIZE", "2000").env_remove(old).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{version}: {output:?}");
    }
}

/// Body of the next test in a process of its own.
#[test]
#[ignore = "not a test: a rank of another test"]
fn page_on_a_full_disk() {
    let path = std::env::var("TEST_PAGE").unwrap();
    let error = StatusPageWriter::create(path.as_ref(), 0, 0).err().expect("no room for a page");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
}

#[test]
fn page_2_full_disk_is_an_error_not_a_signal() {
    let disk = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["hook::tests::page_on_a_full_disk", "--exact", "--ignored"]);
    command.env("TEST_PAGE", disk.path().join("rank0.page"));
    let Some(output) = on_a_full_disk(disk.path(), &command) else {
        rankdeck_testkit::skip!("no user namespaces here");
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{:?} {stdout}", output.status);
}

/// Runs rank 0 in the directory `made`, `command` or else its `train.py`, and returns what it reported.
fn events(made: &tempfile::TempDir, command: &[&str]) -> (Vec<RankEvent>, Output) {
    use std::io::Read;
    let path = made.path().join("events.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let own = python(made.path(), &made.path().join("rank0.page"));
    let program = command.first().map_or(own.get_program(), std::ffi::OsStr::new);
    let mut rank = Command::new(program);
    match command {
        [] => rank.args(own.get_args()),
        [_, arguments @ ..] => rank.args(arguments),
    };
    rank.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(made.path());
    rank.env("RANKDECK_EVENTS", &path).env("RANKDECK_RANK", "0");
    rank.env_remove("RANKDECK_FIRST_PYTHON").env_remove("RANKDECK_HOOK_PID");
    let output = rank.output().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut found = Vec::new();
    while let Ok((mut stream, _)) = listener.accept() {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<RankEvent>(line).unwrap());
        assert!(matches!(lines.next(), Some(RankEvent::Hello { .. })), "{text}");
        found.extend(lines);
    }
    (found, output)
}

/// Runs `script`; returns its reported ends as pairs of class and place.
fn reported(script: &str) -> (Vec<(Exception, String)>, Output) {
    let (found, output) = events(&folder(script), &[]);
    let exception = |event| match event {
        RankEvent::Exception(exception) => {
            let line = exception.at.rsplit('/').next().unwrap().to_owned();
            (exception, line)
        }
        other => panic!("{other:?}"),
    };
    (found.into_iter().map(exception).collect(), output)
}

#[test]
fn hook_5_fatal_exception_is_reported_and_printed() {
    let (found, output) = reported(
        "import torch.distributed\nclass Full(OSError): pass\ndef save():\n    raise Full(28, 'full')\n\
         try:\n    save()\nexcept OSError as error:\n    raise RuntimeError('cannot save') from error\n",
    );
    let [(exception, at)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(
        (exception.class.as_str(), exception.errno, at.as_str()),
        ("RuntimeError", Some(28), "train.py:8")
    );
    assert_eq!(
        (exception.message.as_str(), exception.bases.as_slice()),
        ("cannot save", &["Exception".to_owned(), "BaseException".to_owned()][..])
    );
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("RuntimeError: cannot save") && !errors.contains("rankdeck"), "{errors}");
}

/// An exception's type decides the kind, whatever its text.
#[test]
fn hook_5_failure_kind_follows_the_exception_type() {
    let text = "'socket closed: no space left on device, CUDA out of memory'";
    for (raised, expected) in [
        (format!("raise ConnectionResetError({text})"), Some(FailureKind::Other)),
        (format!("raise KeyError({text})"), Some(FailureKind::Other)),
        (format!("class Sim(RuntimeError): pass\nraise Sim({text})"), Some(FailureKind::Other)),
        (format!("raise MemoryError({text})"), Some(FailureKind::OutOfMemory)),
        ("open('/dev/full', 'w', 1).write('x\\n')".into(), Some(FailureKind::DiskFull)),
        (
            "import socket\na, b = socket.socket(), socket.socket()\na.bind(('127.0.0.1', 0))\na.listen()\n\
             b.bind(a.getsockname())"
                .into(),
            Some(FailureKind::PortTaken),
        ),
        ("raise OSError(12, 'x')".into(), Some(FailureKind::OutOfMemory)),
        ("raise RuntimeError('made by a library')".into(), None),
    ] {
        let (found, output) = reported(&format!("import torch.distributed\n{raised}\n"));
        let kinds: Vec<_> = found.iter().map(|(exception, _)| exception.failure).collect();
        assert_eq!(kinds, [expected], "{raised}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn hook_5_place_is_never_in_the_hook() {
    let script = "import torch.distributed as dist\ndist.init_process_group()\ndist.broadcast(None, 0)\n";
    let (found, _) = reported(script);
    assert_eq!(found.iter().map(|(_, at)| at.as_str()).collect::<Vec<_>>(), ["train.py:3"]);
}

#[test]
fn hook_5_only_the_rank_is_watched_among_other_hooks() {
    let own = "import sys\nsys.excepthook = lambda *_: print('theirs', flush=True)\n{}['obs']\n";
    let (found, output) = reported(own);
    assert_eq!(found.len(), 1, "a hook of the program's own hides nothing");
    assert_eq!((found[0].0.class.as_str(), found[0].1.as_str()), ("KeyError", "train.py:3"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "theirs\n");

    let children = "import os, subprocess, sys\nif os.fork() == 0: raise ValueError('forked')\nos.wait()\n\
                    subprocess.run([sys.executable, '-c', 'raise ValueError(\"spawned\")'])\n\
                    try: {}['caught']\nexcept KeyError: pass\nsys.exit(3)\n";
    let (found, output) = reported(children);
    assert_eq!((found.len(), output.status.code()), (0, Some(3)), "{found:?}");

    let thread = "import threading, torch.distributed\n\
                  t = threading.Thread(target=lambda: {}['x'], name='loader')\nt.start()\nt.join()\n";
    let (found, output) = reported(thread);
    assert_eq!((found.len(), found[0].0.thread.as_str()), (1, "loader"));
    assert!(output.status.success());
}

#[test]
fn hook_10_exception_is_raised_in_a_drill_only() {
    for (drill, expected) in [(true, Some(1)), (false, Some(0))] {
        let folder = folder("");
        let [up, stop, request] = ["up", "stop", "page.raise"].map(|name| folder.path().join(name));
        let script = format!(
            "import os, time\nopen({up:?}, 'w').close()\nwhile not os.path.exists({stop:?}): time.sleep(0.01)\n"
        );
        std::fs::write(folder.path().join("train.py"), script).unwrap();
        let mut rank = python(folder.path(), &folder.path().join("page"));
        rank.env_remove("RANKDECK_DRILL").env_remove("RANKDECK_FIRST_PYTHON");
        rank.env("RANKDECK_EVENTS", folder.path().join("none"));
        if drill {
            rank.env("RANKDECK_DRILL", "1");
        }
        let mut child = rank.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !up.exists() {
            assert!(Instant::now() < deadline, "it does not start");
            std::thread::yield_now();
        }
        std::fs::write(&request, "").unwrap();
        if !drill {
            std::fs::write(&stop, "").unwrap();
        }
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                child.kill().unwrap();
            }
            std::thread::yield_now();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), request.exists()), (expected, !drill), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("DrillError"), drill, "{output:?}");
    }
}

/// Two ranks of a process group that run `script` with the hook, and their pages, in a directory.
fn two_ranks(python: &str, folder: &Path, script: &str) -> [Child; 2] {
    install(folder).unwrap();
    std::fs::write(folder.join("train.py"), script).unwrap();
    let port = rankdeck_testkit::free_port().to_string();
    [0, 1].map(|rank: u32| {
        let mut command = Command::new(python);
        command.arg(folder.join("train.py"));
        command.env("PYTHONPATH", folder.join("python")).env("RANK", rank.to_string());
        command.env("RANKDECK_RANK", rank.to_string());
        command.env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("OMP_NUM_THREADS", "1");
        command.env("RANKDECK_STATUS_PAGE", page_of(folder, rank)).spawn().unwrap()
    })
}

fn page_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank{rank}.page"))
}

/// Two ranks of a real process group that average the gradients of two networks by hand, one network after
/// the other: the second rank turns some of the first one's round from step 4 on, and loses some of the
/// other's.
const AVERAGES: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def train(fault):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Conv1d(1, 2, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(8):
        opt.zero_grad()
        net(torch.full((1, 1, 16), float(rank + step))).sum().backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        if rank == 1:
            fault(step, net[0].weight.grad)
        opt.step()
train(lambda step, grad: grad.mul_(-1) if step >= 4 else None)
train(lambda step, grad: grad.fill_(float("nan")) if step == 5 else None)
"#;

#[test]
fn replicas_have_the_same_fingerprints_until_they_drift_apart() {
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    let made = tempfile::tempdir().unwrap();
    let ranks = two_ranks(&python, made.path(), AVERAGES);
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    let taken = [0, 1].map(|rank| {
        StatusPageReader::open(&page_of(made.path(), rank)).unwrap().view().unwrap().fingerprints
    });
    for (network, equal, finite) in [(0, 5, 8), (1, 6, 6)] {
        let [first, second] = [&taken[0], &taken[1]].map(|taken| taken.chunks(8).nth(network).unwrap());
        assert_eq!((first.len(), second.len()), (8, 8), "before each step");
        assert!(
            first.iter().skip(1).all(|taken| taken.synced),
            "gradients are averaged before each: {first:?}"
        );
        let same = first.iter().zip(second).take_while(|(a, b)| a == b).count();
        assert_eq!(same, equal, "{first:?} {second:?}");
        assert_eq!(second.iter().filter(|taken| taken.finite).count(), finite);
    }
}

/// Steps of a busy host, or of ranks that mostly wait, take long and little CPU time.
#[test]
fn fingerprints_are_taken_about_twice_a_second() {
    let made = folder(concat!(
        "import rankdeck_weights, sys\n",
        "for wall in (0.001, 0.25, 4.0, 60.0):\n",
        "    weights = object.__new__(rankdeck_weights.Weights)\n",
        "    weights.every, weights.cost, weights.between, weights.step_wall = 1, 1e-4, 1e-3, wall\n",
        "    weights.pace()\n",
        "    print(weights.every)\n",
    ));
    let types = "float32 = float64 = float16 = bfloat16 = 1\n";
    std::fs::write(made.path().join("torch/__init__.py"), types).unwrap();
    let output = python(made.path(), &made.path().join("rank0.page")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["32", "2", "1", "1"], "{output:?}");
}

/// How dear a fingerprint is decides how many are taken, at places that all ranks have in common.
#[test]
fn dear_fingerprints_are_taken_at_few_common_places() {
    let made = folder(concat!(
        "import rankdeck_weights\n",
        "class Page:\n",
        "    elements = calls = 0\n",
        "    def exchanged(self):\n",
        "        self.elements, self.calls = self.elements + 10, self.calls + 3\n",
        "        return self.elements, self.calls\n",
        "def places(cost, steps):\n",
        "    weights, taken = object.__new__(rankdeck_weights.Weights), []\n",
        "    weights.page, weights.least, weights.cost, weights.every, weights.calls = Page(), 5, cost, 1, None\n",
        "    weights.steps = weights.since = weights.sampled = weights.behind = weights.exchanged = 0\n",
        "    weights.pending = weights.between = None\n",
        "    weights.due = weights.alone = weights.local = False\n",
        "    weights.last = weights.last_wall = 0.0\n",
        "    weights.take = lambda synced: taken.append((weights.calls, weights.since))\n",
        "    for _ in range(steps):\n",
        "        weights.before()\n",
        "        weights.after()\n",
        "    return taken\n",
        "dear, cheap = places(1.0, 4000), places(0.0, 4000)\n",
        "print(dear[:9] == cheap[:9], 9 < len(dear) < 80, len(cheap), set(dear) < set(cheap))\n",
    ));
    let types = "float32 = float64 = float16 = bfloat16 = 1\n";
    std::fs::write(made.path().join("torch/__init__.py"), types).unwrap();
    let output = python(made.path(), &made.path().join("rank0.page")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["True", "True", "4000", "True"], "{output:?}");
}

/// Two ranks that make different numbers of steps between exchanges: of their own before they average their
/// weights, and of averaged gradients below `Join`.
const UNEVEN: &str = r#"
import torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
dist.init_process_group("gloo")
rank = dist.get_rank()
def fresh():
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 4)
    return net, torch.optim.SGD(net.parameters(), lr=1e-3)
def learn(model, opt):
    opt.zero_grad()
    model(torch.full((1, 4), 1.0 + rank)).square().sum().backward()
    opt.step()
net, opt = fresh()
for _ in range(3):
    for _ in range(2 + rank):
        learn(net, opt)
    for parameter in net.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= 2
net, opt = fresh()
model = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(3):
    with Join([model]):
        for _ in range(2 + rank):
            learn(model, opt)
"#;

#[test]
fn uneven_ranks_are_equal_at_equal_positions() {
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    let made = tempfile::tempdir().unwrap();
    for mut rank in two_ranks(&python, made.path(), UNEVEN) {
        assert!(rank.wait().unwrap().success());
    }
    let of = |rank, optimizer| {
        let view = StatusPageReader::open(&page_of(made.path(), rank)).unwrap().view().unwrap();
        let own = view.fingerprints.into_iter().filter(|taken| taken.optimizer == optimizer);
        own.collect::<Vec<_>>()
    };
    for (optimizer, common, equal) in [(0, 6, 3), (1, 6, 6)] {
        let (first, second) = (of(0, optimizer), of(1, optimizer));
        assert_eq!((first.len(), second.len()), (6, 9), "before each step");
        let pairs = first.iter().filter_map(|a| Some((a, second.iter().find(|b| a.position == b.position)?)));
        let pairs: Vec<_> = pairs.collect();
        assert_eq!(pairs.len(), common, "{first:?} {second:?}");
        let same = pairs.iter().filter(|(a, b)| a.lanes == b.lanes);
        assert_eq!(same.clone().count(), equal, "{pairs:?}");
        assert!(same.clone().any(|(a, b)| a.step != b.step), "at different steps");
        // Where they differ, neither has exchanged anything since its step before.
        let apart = pairs.iter().filter(|(a, b)| a.lanes != b.lanes);
        assert!(apart.clone().all(|(a, b)| !a.synced && !b.synced && a.local && b.local), "{pairs:?}");
        assert!(same.clone().all(|(a, b)| a.step == 0 || a.synced && b.synced), "{pairs:?}");
    }
}

/// Two ranks of independent learners that only average a number for a log.
const INDEPENDENT: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(16, 16)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(8):
    opt.zero_grad()
    net(torch.ones(1, 16)).sum().backward()
    dist.all_reduce(torch.ones(2))
    opt.step()
"#;

#[test]
fn average_of_a_number_synchronizes_no_weights() {
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    let made = tempfile::tempdir().unwrap();
    for mut rank in two_ranks(&python, made.path(), INDEPENDENT) {
        assert!(rank.wait().unwrap().success());
    }
    let taken = StatusPageReader::open(&page_of(made.path(), 0)).unwrap().view().unwrap().fingerprints;
    assert!(taken.len() == 8 && taken.iter().all(|taken| !taken.synced), "{taken:?}");
}

/// Two ranks: messages that are posted and waited for, and one that rank 0 waits for without success.
const POSTS: &str = r#"
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.path.dirname(os.environ["RANKDECK_STATUS_PAGE"])
for _ in range(3):
    first, second = torch.zeros(4), torch.zeros(4)
    if rank == 0:
        works = [dist.irecv(first, src=1), dist.irecv(second, src=1)]
        dist.all_reduce(torch.ones(1))
        works[1].wait(), works[0].wait()
        assert first.sum() == 4 and second.sum() == 8
    else:
        works = [dist.isend(torch.ones(4), 0), dist.isend(torch.full((4,), 2.0), 0)]
        dist.all_reduce(torch.ones(1))
        for work in works: work.wait()
for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv if rank == 0 else dist.isend, torch.ones(2), 1 - rank)]):
    work.wait()
open(f"{folder}/there{rank}", "w").close()
if rank == 0:
    dist.irecv(torch.ones(4), src=1).wait()
while not os.path.exists(f"{folder}/over"):
    time.sleep(0.05)
if rank == 1:
    dist.send(torch.ones(4), 0)
dist.barrier()
"#;

#[test]
fn posted_message_that_is_waited_for_shows_its_peer() {
    waits_for_its_peer(POSTS, |rank, counts| match rank {
        // Six, one of a batch, and the one that never comes.
        0 => counts == Some((8, 7)),
        _ => counts == Some((7, 7)),
    });
}

/// Two ranks: an exchange in equal parts, in unequal ones, and a message that rank 0 waits for without success.
const TALKS: &str = r#"
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.path.dirname(os.environ["RANKDECK_STATUS_PAGE"])
for _ in range(3):
    message = torch.ones(4)
    if rank == 0:
        dist.send(message, 1)
        dist.recv(message)
    else:
        dist.recv(message, src=0)
        dist.isend(message, 0).wait()
dist.all_to_all_single(torch.empty(6), torch.ones(6))
dist.all_to_all_single(torch.empty(3), torch.ones(3), [1, 2][::1 - 2 * rank], [1, 2][::1 - 2 * rank])
open(f"{folder}/there{rank}", "w").close()
if rank == 0:
    dist.recv(message, src=1)
while not os.path.exists(f"{folder}/over"):
    time.sleep(0.05)
if rank == 1:
    dist.send(message, 0)
dist.barrier()
"#;

#[test]
fn point_to_point_calls_are_counted_by_both_ranks() {
    let view = waits_for_its_peer(TALKS, |rank, counts| match rank {
        0 => counts == Some((4, 3)),
        _ => counts == Some((3, 3)),
    });
    let Some(view) = view else { return };
    let exchanges: Vec<u64> = view
        .ring
        .iter()
        .filter(|entry| entry.op == rankdeck_proto::status_page::CollectiveOp::AllToAll)
        .map(|entry| entry.count)
        .collect();
    assert_eq!(exchanges, [6, 0], "nothing is reported of unequal parts");
    let sent = view.groups.iter().find(|group| group.name.starts_with(b"0>1")).unwrap();
    assert_eq!((sent.entered, sent.left), (3, 3));
}

/// Two ranks until both have what is `right` of the calls from rank 1 to rank 0, entered and left, and then
/// to their end. Returns rank 0's page.
fn waits_for_its_peer(
    script: &str,
    right: impl Fn(u32, Option<(u64, u64)>) -> bool,
) -> Option<rankdeck_proto::status_page::View> {
    let python = rankdeck_testkit::python("torch")?;
    let made = tempfile::tempdir().unwrap();
    let mut ranks = two_ranks(&python, made.path(), script);
    let view = |rank: u32| {
        StatusPageReader::open(&page_of(made.path(), rank)).ok().and_then(|page| page.view().ok())
    };
    let counts = |rank: u32| {
        let view = view(rank)?;
        let found = view.groups.iter().find(|found| found.name.starts_with(b"1>0"))?;
        Some((found.entered, found.left))
    };
    let there = || [0, 1].iter().all(|rank| made.path().join(format!("there{rank}")).exists());
    let begun = std::time::Instant::now();
    while !(there() && right(0, counts(0)) && right(1, counts(1))) {
        if begun.elapsed().as_secs() > 300 {
            ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
            panic!("rank 0 does not wait: {:?} {:?}", counts(0), counts(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let waiting = view(0).unwrap();
    assert!(waiting.body.left < waiting.body.entered, "rank 0 is inside");
    std::fs::write(made.path().join("over"), "").unwrap();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    let over = view(0).unwrap();
    assert_eq!(over.body.left, over.body.entered, "no rank is inside");
    Some(over)
}

// Threads: only the collectives of the training loop count.

/// Collectives entered and left, and steps, by the page that `script` leaves behind.
fn counted(script: &str) -> (u64, u64, u64) {
    let made = folder(script);
    let page = made.path().join("rank0.page");
    let output = python(made.path(), &page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let body = StatusPageReader::open(&page).unwrap().view().unwrap().body;
    (body.entered, body.left, body.updates)
}

const BEGINS: &str = "import _thread, threading, torch.distributed as dist\ndist.init_process_group()\n\
                      class Side:\n    def size(self): return 1\n";

#[test]
fn hook_6_background_thread_does_not_count() {
    let script = "inside, go = threading.Event(), threading.Event()\n\
                  def hold():\n    inside.set()\n    go.wait()\n\
                  dist.all_reduce(None)\n\
                  side = threading.Thread(target=lambda: dist.all_reduce(None, op=hold, group=Side()))\n\
                  side.start()\ninside.wait()\n\
                  for _ in range(3): dist.all_reduce(None)\n\
                  go.set()\nside.join()\ndist.all_reduce(None)\n";
    assert_eq!(counted(&format!("{BEGINS}{script}")), (5, 5, 0));
}

#[test]
fn hook_6_training_loop_may_run_in_any_thread() {
    for (script, calls) in [
        // A thread that C++ has made, as for autograd.
        (
            "over = threading.Event()\ndef hook():\n    dist.all_reduce(None)\n    over.set()\n\
             _thread.start_new_thread(hook, ())\nover.wait()\ndist.all_reduce(None)\n",
            2,
        ),
        // Only another thread trains; once it has ended, the first one may again.
        (
            "went, over = threading.Event(), threading.Event()\n\
             def train():\n    for _ in range(4): dist.all_reduce(None)\n    went.set()\n    over.wait()\n\
             loop = threading.Thread(target=train)\nloop.start()\nwent.wait()\n\
             dist.all_reduce(None)\nover.set()\nloop.join()\ndist.all_reduce(None)\n",
            5,
        ),
        // A collective that is made of others.
        ("dist.all_reduce(None, op=lambda: dist.all_reduce(None))\n", 1),
    ] {
        assert_eq!(counted(&format!("{BEGINS}{script}")), (calls, calls, 0), "{script}");
    }
}

/// Two ranks whose background threads exchange something all the time; the training loop of rank 1 stands
/// still after ten collectives.
const REPORTS: &str = r#"
import os, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.path.dirname(os.environ["RANKDECK_STATUS_PAGE"])
side = dist.new_group([0, 1])
dist.barrier(group=side)
over = False
def report():
    sent = 0
    while True:
        flag = torch.tensor([float(over)])
        dist.all_reduce(flag, group=side)
        sent += 1
        if sent == 20: open(f"{folder}/reports{rank}", "w").close()
        if flag.item() == 2: return
        time.sleep(0.01)
thread = threading.Thread(target=report)
thread.start()
for _ in range(10): dist.all_reduce(torch.ones(1))
while rank == 1 and not os.path.exists(f"{folder}/over"):
    time.sleep(0.05)
dist.all_reduce(torch.ones(1))
over = True
thread.join()
"#;

#[test]
fn hook_6_hang_is_seen_behind_a_thread_that_reports() {
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    let made = tempfile::tempdir().unwrap();
    let mut ranks = two_ranks(&python, made.path(), REPORTS);
    let body = |rank: u32| Some(StatusPageReader::open(&page_of(made.path(), rank)).ok()?.view().ok()?.body);
    let counts = |rank| body(rank).map(|body| (body.entered, body.left));
    let reports = || [0, 1].iter().all(|rank| made.path().join(format!("reports{rank}")).exists());
    let begun = Instant::now();
    // One call of both in the group of the side, ten in that of all ranks, and the one that rank 0 waits in.
    while !(reports() && counts(0) == Some((12, 11)) && counts(1) == Some((11, 11))) {
        if begun.elapsed().as_secs() > 300 {
            ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
            panic!("{:?} {:?}", counts(0), counts(1));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(made.path().join("over"), "").unwrap();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    assert_eq!(counts(0), Some((12, 12)));
}

// Exceptions: which of them end a rank, whatever its exit code.

const RAISES: &str = "raise RuntimeError('simulator lost')\n";

/// What became of each exception of the main thread that was reported: `true` where the rank survived it.
fn survived(found: &[RankEvent]) -> Vec<bool> {
    let mut known = Vec::new();
    for event in found {
        match event {
            RankEvent::Exception(exception) if exception.thread.is_empty() => {
                known.push(exception.survivable);
            }
            RankEvent::Survived => known.iter_mut().for_each(|survived| *survived = true),
            _ => {}
        }
    }
    known
}

#[test]
fn hook_5_exception_ends_the_rank_for_any_exit_code() {
    for (before, code) in [
        ("", 1),
        ("import atexit, os, torch.distributed\natexit.register(lambda: os._exit(0))\n", 0),
        ("import sys, torch.distributed\nsys.excepthook = lambda *_: None\n", 1),
        (
            "import atexit, os, sys, torch.distributed\natexit.register(lambda: os._exit(0))\n\
             sys.excepthook = lambda *_: None\n",
            0,
        ),
        ("import sys\nold = sys.excepthook\nsys.excepthook = lambda *end: old(*end)\n", 1),
    ] {
        let (found, output) = events(&folder(&format!("{before}{RAISES}")), &[]);
        assert_eq!((survived(&found), output.status.code()), (vec![false], Some(code)), "{before}");
    }
    let module = "import runpy; runpy.run_path('train.py', run_name='__main__')";
    for command in [["python3", "-m", "train"], ["python3", "-c", module]] {
        assert_eq!(survived(&events(&folder(RAISES), &command).0), [false], "{command:?}");
    }
}

#[test]
fn hook_5_exception_that_was_caught_is_survived() {
    for (script, reports) in [
        ("import sys\ntry: {}['x']\nexcept KeyError: sys.excepthook(*sys.exc_info())\n", &[true][..]),
        (
            "import sys\ndef run():\n    try: {}['x']\n    except KeyError as error: sys.last_value = error\nrun()\n",
            &[true],
        ),
        ("import code\ncode.InteractiveInterpreter().runsource('1/0')\n", &[true]),
        (
            "import sys\ntry: {}['x']\nexcept KeyError:\n    sys.excepthook(*sys.exc_info())\n    raise\n",
            &[true, false],
        ),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', \
             'import torch.distributed as dist; dist.init_process_group(); 1/0'])\n",
            &[true],
        ),
        ("import sys\nsys.exit('text')\n", &[]),
        ("import sys\nsys.exit(0)\n", &[]),
        ("raise KeyboardInterrupt\n", &[]),
        ("import atexit\natexit.register(lambda: 1/0)\n", &[]),
    ] {
        assert_eq!(survived(&events(&folder(script), &[]).0), reports, "{script}");
    }
}

#[test]
fn hook_5_shell_survives_its_first_program() {
    for (line, reports) in [
        ("python3 train.py; true", &[false][..]),
        ("python3 train.py 2>&1 | cat", &[false]),
        ("python3 train.py || python3 -c 'print(1)'", &[true]),
        ("python3 train.py || python3 train.py; true", &[true, false]),
    ] {
        assert_eq!(survived(&events(&folder(RAISES), &["sh", "-c", line]).0), reports, "{line}");
    }
}

#[test]
fn hook_5_message_has_its_first_cause() {
    let script = "import torch.distributed\n\
        def load():\n    try: {}['table']\n    except KeyError: raise ImportError('no table\\nin b')\n\
        try: load()\nexcept ImportError as error: raise RuntimeError('cannot load a:\\nlook up') from error\n";
    let (found, _) = reported(script);
    let exception = &found[0].0;
    assert_eq!(exception.message, "cannot load a:\nlook up");
    assert_eq!(exception.cause, "KeyError: 'table'");
    for (raised, cause) in [
        ("try: {}['x']\nexcept KeyError: raise ValueError('y') from None\n", ""),
        ("raise ValueError('y')\n", ""),
        ("try: next(iter([]))\nexcept StopIteration: raise ValueError('y')\n", ""),
    ] {
        assert_eq!(reported(raised).0[0].0.cause, cause, "{raised}");
    }
}

#[test]
fn hook_5_dead_child_is_the_cause_of_a_broken_pipe() {
    use rankdeck_proto::message::Exit;
    let child = |end: &str, raised: &str| {
        let script = format!(
            "import os, signal, sys\nread, write = os.pipe()\nchild = os.fork()\n\
             if child == 0:\n    os.close(read)\n    {end}\n\
             os.close(write)\nos.read(read, 1)\nos.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n{raised}\n"
        );
        let found = reported(&script).0.remove(0).0;
        found.child.map(|child| child.exit)
    };
    let killed = |signal| Some(Exit::Signal { signal, out_of_memory: false });
    let kill = "os.kill(os.getpid(), signal.SIGKILL)";
    assert_eq!(child(kill, "raise EOFError"), killed(9));
    assert_eq!(
        child("os.kill(os.getpid(), signal.SIGBUS)", "raise ConnectionResetError(104, 'x')"),
        killed(7)
    );
    assert_eq!(child("os._exit(3)", "raise BrokenPipeError"), Some(Exit::Code { code: 3 }));
    let workers = "raise RuntimeError('DataLoader worker (pid(s) 7) exited unexpectedly')";
    assert_eq!(child(kill, workers), killed(9));
    let from = "try: raise EOFError\nexcept EOFError as error: raise KeyError('obs') from error";
    assert_eq!(child(kill, from), killed(9), "it is raised from one");
    assert_eq!(child("os._exit(0)", "raise EOFError"), None);
    assert_eq!(child(kill, "raise KeyError('obs')"), None, "an error of another kind");
}

#[test]
fn hook_5_frame_of_the_hook_is_no_place() {
    // The stand-in raises inside the wrapped call.
    let inside = "import torch.distributed as dist\ndist.init_process_group()\n\
                  def fail(): raise ValueError('shape')\ndist.all_reduce(None, op=fail)\n";
    assert_eq!(reported(inside).0[0].1, "train.py:3");
    let missing = "import torch.distributed as dist\ndist.init_process_group(wrong=1)\n";
    let at = reported(missing).0.remove(0).0.at;
    assert!(!at.contains("rankdeck_hook") && at.ends_with("train.py:2"), "{at}");
    let library = "import runpy, torch.distributed as dist\ndist.init_process_group()\n\
                   exec(compile('dist.all_reduce(None, op=lambda: 1 / 0)', '<string>', 'exec'))\n";
    let at = reported(library).0.remove(0).0.at;
    assert!(!at.contains("rankdeck_hook"), "{at}");
}

/// How often the return of the main program is reported, and how often that is taken back.
fn returns(found: &[RankEvent]) -> (usize, usize) {
    let count = |is: fn(&RankEvent) -> bool| found.iter().filter(|event| is(event)).count();
    (count(|event| matches!(event, RankEvent::Returned)), count(|event| matches!(event, RankEvent::Survived)))
}

#[test]
fn hook_7_return_of_the_main_program_is_reported() {
    for (script, reports) in [
        ("", 1),
        ("import sys\nsys.exit()\n", 1),
        ("import sys\nsys.exit(0)\n", 1),
        ("import atexit, os\natexit.register(lambda: os.kill(os.getpid(), 11))\n", 1),
        ("from sys import exit\nexit(3)\n", 0),
        ("import sys\nsys.exit('text')\n", 0),
        ("raise ValueError\n", 0),
        ("raise KeyboardInterrupt\n", 0),
        ("import os\nos._exit(0)\n", 0),
        ("import os\nos.kill(os.getpid(), 11)\n", 0),
        ("import os\nif os.fork() == 0: raise SystemExit\nos.wait()\n", 1),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n", 0),
    ] {
        let script = format!("import torch.distributed\n{script}");
        let (found, output) = events(&folder(&script), &[]);
        assert_eq!(returns(&found).0, reports, "{script} {output:?}");
    }
    let made = folder("import torch.distributed\n");
    for (line, reports) in [
        ("python3 train.py; true", (1, 0)),
        ("python3 train.py; python3 train.py; true", (2, 1)),
        ("python3 train.py; python3 -c 'raise ValueError'; true", (1, 1)),
    ] {
        // A socket for each.
        let _ = std::fs::remove_file(made.path().join("events.sock"));
        let _ = std::fs::remove_file(made.path().join("rank0.page.raised"));
        assert_eq!(returns(&events(&made, &["sh", "-c", line]).0), reports, "{line}");
    }
}

// Ranks of a rank's own.

/// The number of an inner rank, and the size of its group.
type InnerRankOf = (Option<u32>, Option<u32>);

/// Those that `script` reports, and whether a page was written.
fn inner_ranks(script: &str) -> (Vec<InnerRankOf>, bool) {
    let made = folder(&format!("import os, torch.distributed as dist\n{script}"));
    let (found, output) = events(&made, &[]);
    assert!(output.status.success(), "{output:?}");
    let inner = |event: &RankEvent| match event {
        RankEvent::InnerRank(inner) => {
            assert!(inner.pid > 0 && inner.at.contains("/train.py:"), "{inner:?}");
            Some((inner.rank, inner.world_size))
        }
        _ => None,
    };
    (found.iter().filter_map(inner).collect(), made.path().join("rank0.page").exists())
}

#[test]
fn hook_9_ranks_of_its_own_are_reported_without_a_page() {
    let spawned = "for rank in range(3):\n    if os.fork() == 0:\n        \
                   dist.init_process_group('gloo', rank=rank, world_size=3)\n        dist.all_reduce(None)\n        \
                   os._exit(0)\n    os.wait()\n";
    let three = [0, 1, 2].map(|rank| (Some(rank), Some(3)));
    assert_eq!(inner_ranks(spawned), (three.to_vec(), false));
    // A launcher starts the only rank of the plan.
    let launched =
        "if os.fork() == 0:\n    dist.init_process_group(rank=0, world_size=1)\n    os._exit(0)\nos.wait()\n";
    assert_eq!(inner_ranks(launched), (vec![], true));
    // A second one next to it.
    let beside = "ready, told = os.pipe()\nover, end = os.pipe()\nif os.fork() == 0:\n    \
                  dist.init_process_group(rank=0, world_size=1)\n    os.write(told, b'1')\n    os.read(over, 1)\n    \
                  os._exit(0)\nos.read(ready, 1)\nif os.fork() == 0:\n    \
                  dist.init_process_group(rank=0, world_size=1)\n    os._exit(0)\n\
                  os.wait()\nos.write(end, b'1')\nos.wait()\n";
    assert_eq!(inner_ranks(beside), (vec![(Some(0), Some(1))], true));
    // The first interpreter itself is the rank, whatever its arguments are.
    assert_eq!(inner_ranks("dist.init_process_group(rank=2, world_size=3)\n"), (vec![], true));
}

#[test]
fn hook_9_rank_of_its_own_writes_a_page_beside() {
    let made = folder(
        "import os, torch.distributed as dist\nfor rank in range(2):\n    if os.fork() == 0:\n        \
         dist.init_process_group('gloo', rank=rank, world_size=2)\n        os._exit(0)\n    os.wait()\n",
    );
    let (_, output) = events(&made, &[]);
    assert!(output.status.success(), "{output:?}");
    for rank in [0, 1] {
        let page = made.path().join(format!("rank0.page.inner{rank}"));
        let view = StatusPageReader::open(&page).unwrap().view().unwrap();
        let given = view.group_arguments.unwrap();
        assert_eq!((view.rank, given.rank, given.world_size), (rank, Some(rank), Some(2)));
        assert_eq!(
            given.contradicting,
            Vec::<String>::new(),
            "they are those of the rank that has started it"
        );
    }
}

#[test]
fn hook_5_failed_rank_of_its_own_is_the_dead_child() {
    use rankdeck_proto::message::{DeadChild, Exit};
    let script = "class ProcessExitedException(Exception): pass\n\
                  error = ProcessExitedException('process 1 terminated with signal SIGKILL')\n\
                  error.error_index, error.pid, error.exit_code = 1, 77, -9\nraise error\n";
    let exit = Exit::Signal { signal: 9, out_of_memory: false };
    let expected = DeadChild { pid: 77, name: "rank 1 of its own".into(), exit };
    assert_eq!(reported(script).0[0].0.child, Some(expected));
}

// What an inspection and the detector of slow runs ask for.

/// Where batches come from.
const LOADER: &str = r#"
import time
class _BaseDataLoaderIter:
    def __next__(self): return self._next_data()
class Worker(_BaseDataLoaderIter):
    def _next_data(self): time.sleep(0.05)
"#;

#[test]
fn waits_for_batches_are_on_the_page() {
    use rankdeck_proto::message::InputKind;
    let script = "import threading, torch.distributed as dist\nfrom torch.utils.data.dataloader import Worker\n\
                  Worker().__next__()\n\
                  dist.init_process_group()\nbatches = Worker()\n\
                  other = threading.Thread(target=batches.__next__)\nother.start()\nother.join()\n\
                  for _ in range(3): batches.__next__()\n";
    let made = folder(script);
    let package = made.path().join("torch/utils/data");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(made.path().join("torch/utils/__init__.py"), "").unwrap();
    std::fs::write(package.join("__init__.py"), "").unwrap();
    std::fs::write(package.join("dataloader.py"), LOADER).unwrap();
    let page = made.path().join("rank0.page");
    let output = python(made.path(), &page).env("WORLD_SIZE", "2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let input = StatusPageReader::open(&page).unwrap().view().unwrap().input.unwrap();
    assert!(input.kind == InputKind::DataLoader && input.site.ends_with("/train.py:9"), "{input:?}");
    assert!(input.waited_ms >= 150, "three batches of the training loop: {input:?}");
}

#[test]
fn tasks_of_an_event_loop_have_their_await_lines() {
    let script = "import asyncio, json, os, threading, time\nimport rankdeck_tasks\n\
                  async def judge(): await asyncio.Event().wait()\n\
                  async def main(): await asyncio.create_task(judge(), name='judge')\n\
                  def look():\n    for _ in range(3000):\n        \
                  found = rankdeck_tasks.waiting(threading.main_thread().ident)\n        \
                  if len(found) == 2: break\n        time.sleep(0.01)\n    \
                  print(json.dumps(found), flush=True)\n    os._exit(0)\n\
                  threading.Thread(target=look).start()\nasyncio.run(main())\n";
    let made = folder(script);
    let output = python(made.path(), &made.path().join("rank0.page")).output().unwrap();
    let found: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let lines = |task: usize| {
        let frames = found[task]["frames"].as_array().unwrap().iter();
        frames.map(|frame| format!("{}:{}", frame[0].as_str().unwrap(), frame[2])).collect::<Vec<_>>()
    };
    assert_eq!(lines(0), ["main:4"], "the main task comes first: {found}");
    assert_eq!(lines(1).last().map(String::as_str), Some("judge:3"), "innermost first: {found}");
    assert_eq!(found[1]["name"], "judge");
}

/// Two ranks with equal weights: each normalizes by its own data, or by what all have seen, in a module of their own or
/// in batch normalization.
const NORMALIZES: &str = r#"
import torch, torch.distributed as dist
class RunningMeanStd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))
    def forward(self, data): return data
dist.init_process_group("gloo")
how, rank = "HOW", dist.get_rank()
torch.manual_seed(1)
scale = RunningMeanStd() if how != "batch" else torch.nn.BatchNorm1d(4)
net = torch.nn.Linear(4, 4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(scale, net)) if how == "ddp" else net
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(8):
    data = torch.full((2, 4), float(rank + step)) + torch.arange(2.0)[:, None]
    opt.zero_grad()
    if how == "batch":
        data = scale(data)
    else:
        mean = data.mean(0)
        if how == "common":
            dist.all_reduce(mean)
        scale.running_mean = 0.9 * scale.running_mean + 0.1 * mean
    model(data).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    opt.step()
"#;

#[test]
fn normalizers_have_fingerprints_of_their_own() {
    use rankdeck_proto::message::NORMALIZERS;
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    for (how, taken, equal) in [("own", 8, 0), ("common", 8, 8), ("batch", 0, 0), ("ddp", 0, 0)] {
        let script = NORMALIZES.replace("HOW", how);
        let made = tempfile::tempdir().unwrap();
        for mut rank in two_ranks(&python, made.path(), &script) {
            assert!(rank.wait().unwrap().success(), "{how}");
        }
        let of = |rank| {
            let view = StatusPageReader::open(&page_of(made.path(), rank)).unwrap().view().unwrap();
            let own = view.fingerprints.into_iter().filter(|taken| taken.optimizer == NORMALIZERS);
            own.collect::<Vec<_>>()
        };
        let (first, second) = (of(0), of(1));
        assert_eq!((first.len(), second.len()), (taken, taken), "{how}");
        assert_eq!(first.iter().zip(&second).filter(|(a, b)| a.lanes == b.lanes).count(), equal, "{how}");
    }
}
