use super::super::{EnvFactory, make_vector};
use super::*;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_testkit::{python, repository};
use rankdeck_types::experiment::EnvWorker;
use std::time::{Duration, Instant};

fn config(id: &str, python: &str) -> Env {
    Env { worker: EnvWorker::Python, python: python.into(), workers: Some(1), ..Env::new(id, 1) }
}

fn vector(env: &Env, envs: usize, purpose: EnvPurpose) -> Result<Box<dyn VectorEnv>, EnvError> {
    make_vector(env, envs, 0, &Seeds::new(5), 0, purpose)
}

/// Why an environment cannot be made.
fn refused(env: &Env) -> EnvError {
    EnvFactory::open(env).err().unwrap()
}

fn started(env: &Env) -> PythonWorker {
    PythonWorker::start(env, WorkerImports::CurrentDirectory).unwrap()
}

/// Two environments, reset, in this worker.
fn of(env: &Env, streams: Streams, worker: PythonWorker) -> Result<PythonVector, EnvError> {
    StartingVector::begin(env, (0, 2), streams, worker)?.reset(&mut None)?.ready()
}

fn gone(pid: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// An interpreter as a script, with the module `faulty_env` in its path.
fn faulty_python(folder: &std::path::Path, python: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let script = folder.join("python");
    let programs = repository("tests/programs");
    std::fs::write(&script, format!("#!/bin/sh\nPYTHONPATH={} exec {python} \"$@\"\n", programs.display()))
        .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.to_str().unwrap().into()
}

#[test]
fn unaddressable_spaces_are_refused() {
    for (shape, refused) in
        [("[4]", None), ("[0]", Some("empty")), ("[8589934592, 8589934592]", Some("numbers"))]
    {
        let answer = format!(r#"{{"shape": {shape}, "type": "f32", "actions": {{"n": 2}}}}"#);
        let spec = serde_json::from_str::<Spaces>(&answer).unwrap().spec();
        let why = refusal(&spec);
        match refused {
            None => assert_eq!(why, None),
            Some(word) => assert!(why.as_ref().is_some_and(|why| why.contains(word)), "{shape}: {why:?}"),
        }
    }
}

#[test]
fn python_2_failures_report_cause_and_location() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    for (what, expected, in_traceback) in [
        ("raise", "a step of environment 8 failed: ValueError: the pole is on fire", "in step"),
        ("exit", "a step of environment 8 failed: SystemExit: 3", "in step"),
        ("segv", "crashed (SIGSEGV) during a step", "Segmentation fault"),
        ("hang", "did not finish a step within 2s; it is at File", "faulty_env.py"),
        ("stop", "suspended) did not finish a step within 2s", ""),
    ] {
        let env = config(&format!("faulty_env:Faulty-{what}-v0"), &python);
        let seeds = Seeds::new(1);
        let streams = Streams { seeds, first_env: 7, start_iteration: 0, purpose: EnvPurpose::Train };
        let mut vector = of(&env, streams, started(&env)).unwrap();
        // Only now: starting may take longer on a busy machine.
        vector.worker.set_timeout(Duration::from_secs(2));
        let pid = vector.worker.pid();
        let mut outcome = StepOutcome::new(&vector.spec, 2);
        vector.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
        assert_eq!(outcome.rewards, [1.0, 1.0]);
        let start_time = Instant::now();
        let error = vector.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap_err();
        assert!(start_time.elapsed() < Duration::from_secs(60));
        assert!(!error.is_usage());
        let EnvError::Worker { traceback, .. } = &error else { panic!("{error:?}") };
        let text = error.to_string();
        assert!(
            text.contains(&format!("faulty_env:Faulty-{what}-v0")) && text.contains(expected),
            "{what}: {text}"
        );
        assert!(traceback.contains(in_traceback), "{what}: {traceback}");
        let named = text.contains("worker 0, environments 7 to 8 (step 2, pid ");
        assert_eq!(named, ["segv", "hang", "stop"].contains(&what), "{text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        // And it stays an error.
        assert!(vector.step(Actions::Discrete(&[0, 0]), &mut outcome).is_err());
        drop(vector);
        assert!(gone(pid), "{what}: worker {pid} is left");
    }
}

/// What is not a number, or not of the space's shape, is found where it arrives, with its environment and
/// step.
#[test]
fn python_4_nonfinite_values_are_rejected_on_arrival() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    for (what, expected) in [
        ("nan", "environment 8 (faulty_env:Faulty-nan-v0) returned the reward NaN in step 2 of its episode"),
        ("inf", "environment 8 (faulty_env:Faulty-inf-v0) returned the reward inf in step 2"),
        ("nan_seen", "(faulty_env:Faulty-nan_seen-v0) returned NaN as number 1 of its observation in step 2"),
        ("none", "a step of environment 8 failed: it returned None as its reward, which is not a number"),
        ("shape", "observation of shape (4,)"),
    ] {
        let env = config(&format!("faulty_env:Faulty-{what}-v0"), &python);
        let streams =
            Streams { seeds: Seeds::new(1), first_env: 7, start_iteration: 0, purpose: EnvPurpose::Train };
        let mut vector = of(&env, streams, started(&env)).unwrap();
        let mut outcome = StepOutcome::new(&vector.spec, 2);
        vector.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
        let error = vector.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap_err();
        assert!(error.to_string().contains(expected) && !error.is_usage(), "{what}: {error}");
        assert!(vector.step(Actions::Discrete(&[0, 0]), &mut outcome).is_err(), "and it stays an error");
    }
}

#[test]
fn retired_environment_is_not_stepped_until_reset() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    let env = config("faulty_env:Faulty-raise-v0", &python);
    let mut vector = vector(&env, 2, EnvPurpose::Evaluate).unwrap();
    let mut outcome = StepOutcome::new(vector.spec(), 2);
    vector.retire(1);
    // The second one fails by action 1, if it is asked.
    vector.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
    assert_eq!(outcome.valid, [true, false]);
    vector.reset().unwrap();
    vector.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
    assert_eq!(outcome.valid, [true, true]);
    assert!(vector.step(Actions::Discrete(&[0, 1]), &mut outcome).is_err());
}

#[test]
fn python_3_a_dropped_vector_leaves_no_process() {
    let Some(python) = python("gymnasium") else { return };
    let streams =
        Streams { seeds: Seeds::new(1), first_env: 0, start_iteration: 0, purpose: EnvPurpose::Train };
    let env = config("CartPole-v1", &python);
    let vector = of(&env, streams, started(&env)).unwrap();
    let pid = vector.worker.pid();
    assert!(!gone(pid));
    drop(vector);
    assert!(gone(pid));
}

/// A worker that needs no packages: its environments count their steps.
const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs/fake_env_worker.py");

fn streams(first_env: u32) -> Streams {
    Streams { seeds: Seeds::new(1), first_env, start_iteration: 0, purpose: EnvPurpose::Train }
}

fn fake(id: &str) -> PythonVector {
    let env = config(id, FAKE);
    of(&env, streams(0), started(&env)).unwrap()
}

/// The processes that a shell script has logged as interpreters.
fn logged_pids(log: &std::path::Path) -> Vec<u32> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The fake worker, as an interpreter that logs its process.
fn logging_fake(folder: &std::path::Path) -> (String, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let (script, log) = (folder.join("python"), folder.join("pids"));
    std::fs::write(&script, format!("#!/bin/sh\necho $$ >>{}\nexec {FAKE} \"$@\"\n", log.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (script.to_str().unwrap().into(), log)
}

/// PYTHON-2: an order that fills the pipe of a worker that does not read.
#[test]
fn python_2_worker_that_does_not_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (python, log) = logging_fake(folder.path());
    let env = Env { worker_timeout_s: 0.3, ..config("fake-deaf", &python) };
    let error =
        make_groups(&env, &[4000], streams(8), (None, None), WorkerImports::CurrentDirectory).err().unwrap();
    let text = error.to_string();
    for part in ["fake-deaf", "worker 0, environments 8 to 4007", "300ms"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(logged_pids(&log).into_iter().all(gone), "a worker is left");
}

#[test]
fn python_5_workers_with_different_spaces_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (python, log) = logging_fake(folder.path());
    let env = Env { workers: Some(2), ..config("fake-differs", &python) };
    let error = vector(&env, 4, EnvPurpose::Train).err().unwrap();
    let text = error.to_string();
    for part in ["worker 1", "[2]", "[3]"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(error.is_usage() && error.hint().contains("env.workers"), "{error:?}");
    // Those of another group of the rank, too.
    let alone = Env { workers: Some(1), ..env.clone() };
    let groups = make_groups(&alone, &[2, 2], streams(0), (None, None), WorkerImports::CurrentDirectory);
    assert!(groups.err().unwrap().to_string().contains("worker 1"));
    // The buffers of the trainer have the shape of the factory.
    let factory = EnvFactory::open(&alone).unwrap();
    let error = factory.make(1, 2, &Seeds::new(5), 0, EnvPurpose::Show).err().unwrap().to_string();
    assert!(error.contains("worker 0") && error.contains("[3]"), "{error}");
    drop(factory);
    assert!(logged_pids(&log).into_iter().all(gone), "a worker is left");
}

/// PYTHON-3: each of them ignores the end of its input.
#[test]
fn python_3_workers_of_a_vector_end_together() {
    let folder = tempfile::tempdir().unwrap();
    let (python, log) = logging_fake(folder.path());
    let env = Env { workers: Some(4), ..config("fake-stays", &python) };
    let vector = vector(&env, 4, EnvPurpose::Train).unwrap();
    let pids = logged_pids(&log);
    assert!(pids.len() == 4 && !pids.iter().any(|pid| gone(*pid)), "{pids:?}");
    let start_time = Instant::now();
    drop(vector);
    let within = start_time.elapsed();
    assert!(within < Duration::from_millis(2500), "{within:?}");
    assert!(pids.iter().all(|pid| gone(*pid)), "{pids:?}");
}

#[test]
fn slow_step_reports_progress() {
    use std::sync::mpsc::channel;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("go on");
    let mut vector = fake(&format!("fake-slow:{}", path.display()));
    let (sender, report) = channel();
    let mut steps = 0;
    vector.watch(Box::new(move |activity| {
        steps += u32::from(activity == Activity::EnvStep);
        if steps == 2 {
            // The second environment waits for this.
            std::fs::write(&path, "").unwrap();
        }
        sender.send(activity).unwrap();
    }));
    let mut outcome = StepOutcome::new(&vector.spec, 2);
    vector.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
    let report: Vec<_> = report.try_iter().collect();
    assert_eq!(report[..2], [Activity::EnvStep, Activity::EnvStep]);
    assert_eq!(report.last(), Some(&Activity::None));
}

#[test]
fn python_1_actions_and_results_keep_their_places() {
    let mut vector = fake("fake-ok");
    let mut outcome = StepOutcome::new(&vector.spec, 2);
    for round in 0..2 {
        assert_eq!(vector.observations(), Observations::F32(&[0.0, 0.0, 0.0, 1.0]), "{round}");
        vector.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
        vector.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
        assert_eq!(
            (outcome.rewards.as_slice(), outcome.terminated.as_slice()),
            ([0.0, 1.0].as_slice(), [false, true].as_slice())
        );
        assert_eq!(vector.observations(), Observations::F32(&[2.0, 0.0, 0.0, 1.0]));
        assert_eq!(&outcome.final_observations.view().f32().unwrap()[2..], [2.0, 1.0]);
        assert_eq!(outcome.episodes, [Episode { env: 1, episode_return: 1.0, length: 2 }]);
        for wrong in [Actions::Discrete(&[0]), Actions::Discrete(&[0, 2]), Actions::Continuous(&[0.0, 0.0])] {
            assert!(matches!(vector.step(wrong, &mut outcome), Err(EnvError::Actions { .. })));
        }
        vector.reset().unwrap();
    }
}

#[test]
fn python_2_and_3_worker_failures_are_errors() {
    for (id, expected) in [
        ("fake-die", "code 7"),
        ("fake-hang", "500ms"),
        ("fake-garbage", "protocol"),
        ("fake-error", "it is broken"),
    ] {
        let mut vector = fake(id);
        let pid = vector.worker.pid();
        vector.worker.set_timeout(Duration::from_millis(if id == "fake-hang" { 500 } else { 60_000 }));
        let mut outcome = StepOutcome::new(&vector.spec, 2);
        let error = vector.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap_err();
        assert!(error.to_string().contains(expected), "{id}: {error}");
        assert!(vector.reset().is_err(), "{id}: it stays an error");
        drop(vector);
        assert!(gone(pid), "{id}: worker {pid} is left");
    }
    let silent = Env { worker_timeout_s: 0.2, ..config("fake-silent", FAKE) };
    let error = refused(&silent).to_string();
    assert!(error.contains("400ms"), "{error}");
}

/// The whole path at once: same seeds, spaces, observations, rewards, ends, final observations and returns as
/// in Rust.
#[test]
fn classic_control_in_python_is_classic_control_in_rust() {
    let Some(python) = python("gymnasium") else { return };
    for id in ["CartPole-v1", "MountainCarContinuous-v0", "Acrobot-v1"] {
        let limited = Env { max_episode_steps: Some(40), ..Env::new(id, 1) };
        let there = Env { worker: EnvWorker::Python, python: python.clone(), ..limited.clone() };
        let (mut here, mut there) =
            (vector(&limited, 3, EnvPurpose::Train).unwrap(), vector(&there, 3, EnvPurpose::Train).unwrap());
        assert_eq!(here.spec(), there.spec());
        let spec = here.spec().clone();
        let (mut a, mut b) = (StepOutcome::new(&spec, 3), StepOutcome::new(&spec, 3));
        let mut ends = 0;
        for round in 0..2 {
            assert_eq!(here.observations(), there.observations(), "{id}");
            for step in 0..100_usize {
                let discrete: Vec<i64> =
                    (0..3).map(|i| ((step / 3 + i) % spec.actions.width().max(2)) as i64).collect();
                let continuous: Vec<f32> = (0..3).map(|i| ((step * 5 + i) % 9) as f32 / 3.0 - 1.4).collect();
                let actions = match &spec.actions {
                    ActionSpace::Continuous { .. } => Actions::Continuous(&continuous),
                    _ => Actions::Discrete(&discrete),
                };
                here.step(actions, &mut a).unwrap();
                there.step(actions, &mut b).unwrap();
                assert_eq!(here.observations(), there.observations(), "{id} step {step}");
                assert_eq!(
                    (&a.rewards, &a.terminated, &a.truncated),
                    (&b.rewards, &b.terminated, &b.truncated)
                );
                assert_eq!(a.episodes, b.episodes, "{id} step {step}");
                let width = spec.observation_len();
                for i in (0..3).filter(|i| a.done(*i)) {
                    let row = |o: &StepOutcome| {
                        o.final_observations.view().f32().unwrap()[i * width..(i + 1) * width].to_vec()
                    };
                    assert_eq!(row(&a), row(&b), "{id} step {step}");
                    ends += 1;
                }
            }
            here.reset().unwrap();
            there.reset().unwrap();
            assert!(ends >= 6 * (round + 1), "{ends}");
        }
    }
}

#[test]
fn unmakeable_environment_is_a_usage_error() {
    let error = refused(&config("CartPole-v1", "/nonexistent/python"));
    assert!(error.is_usage() && error.to_string().contains("/nonexistent/python"), "{error}");
    assert!(error.hint().contains("env.python"));
    // `-S` and an empty path: a Python without any package.
    let folder = tempfile::tempdir().unwrap();
    let bare = faulty_python(folder.path(), "python3 -S -E");
    let error = refused(&config("CartPole-v1", &bare));
    assert!(error.is_usage() && error.to_string().contains("gymnasium"), "{error}");
    assert!(error.hint().contains("-m pip install"), "{}", error.hint());
    // The id may not be meant for Python: the message lists what is built in.
    let auto = Env { worker: EnvWorker::Auto, ..config("CartPole-v7", &bare) };
    assert!(refused(&auto).hint().contains("Acrobot-v1"));
    // A program that is not Python at all.
    let error = refused(&config("CartPole-v1", "/bin/cat"));
    assert!(error.to_string().contains("/bin/cat"), "{error}");
    let Some(python) = python("gymnasium") else { return };
    for (id, expected) in
        [("NoSuchEnv-v3", "NoSuchEnv"), ("nosuchmodule:X-v0", "nosuchmodule"), ("CartPole-v9", "CartPole")]
    {
        let error = refused(&config(id, &python));
        assert!(
            error.is_usage() && error.to_string().contains(expected) && !error.hint().is_empty(),
            "{error:?}"
        );
    }
    // Box2D of LunarLander takes two packages.
    let module = "import gymnasium\n\
        def make(**options):\n    raise gymnasium.error.DependencyNotInstalled('it is installed by `pip install swig` \
        followed by `pip install \"gymnasium[box2d]\"`')\n\
        gymnasium.register('Needy-v0', make)\n";
    std::fs::write(folder.path().join("needy.py"), module).unwrap();
    let search =
        faulty_python(folder.path(), &format!("env PYTHONPATH={} {python}", folder.path().display()));
    let error = refused(&config("needy:Needy-v0", &search));
    assert!(
        error.is_usage() && error.hint().contains(r#"pip install "swig" "gymnasium[box2d]""#),
        "{error:?}"
    );
    let atari = Env { frame_stack: Some(4), ..config("CartPole-v1", &python) };
    let error = refused(&atari);
    assert!(error.is_usage() && error.to_string().contains("env.frame_stack"), "{error}");
    let error = refused(&Env { worker: EnvWorker::Auto, ..atari });
    assert!(error.is_usage() && error.to_string().contains("env.frame_stack"), "{error}");
}

#[test]
fn atari_games_with_lives_clipped_rewards_and_whole_scores() {
    let Some(python) = python("gymnasium, ale_py.vector_env") else { return };
    let env = config("BreakoutNoFrameskip-v4", &python);
    let (mut train, mut whole) =
        (vector(&env, 2, EnvPurpose::Train).unwrap(), vector(&env, 2, EnvPurpose::Evaluate).unwrap());
    let spec = train.spec().clone();
    assert_eq!(
        (spec.observation_shape.as_slice(), spec.observation_type),
        ([4, 84, 84].as_slice(), ObservationType::U8)
    );
    assert_eq!(spec.actions, ActionSpace::Discrete { n: 4 });
    let mut random = Seeds::new(3).generator(rankdeck_kernel::seeds::Purpose::Action, 0, 0);
    let mut outcome = StepOutcome::new(&spec, 2);
    let mut scan = |vector: &mut dyn VectorEnv| {
        let (mut cuts, mut episodes) = (0, Vec::new());
        for _ in 0..1500 {
            let actions = [random.below(4) as i64, random.below(4) as i64];
            vector.step(Actions::Discrete(&actions), &mut outcome).unwrap();
            cuts += (0..2).filter(|i| outcome.done(*i)).count();
            for episode in &outcome.episodes {
                assert!(episode.length > 50, "{episode:?}");
                // Only the newest frame of a new game's stack is filled: this was a real reset.
                let seen = vector.observations().u8().unwrap();
                let base = episode.env * spec.observation_len();
                assert!(seen[base..base + 3 * 84 * 84].iter().all(|pixel| *pixel == 0));
            }
            episodes.extend(outcome.episodes.iter().copied());
        }
        (cuts, episodes)
    };
    let (cuts, episodes) = scan(train.as_mut());
    // Five lives a game.
    assert!(episodes.len() >= 4 && cuts >= 5 * episodes.len(), "{cuts} {episodes:?}");
    let (cuts, episodes) = scan(whole.as_mut());
    assert_eq!(cuts, episodes.len());
    assert!(episodes.len() >= 4 && episodes.iter().any(|episode| episode.episode_return > 0.0));
    let error = refused(&config("ALE/Breakuot-v5", &python));
    assert!(error.is_usage() && error.hint().contains("ALE/Breakout-v5"), "{error:?}");
    let error = refused(&config("Pong-v4", &python));
    assert!(error.is_usage() && error.hint().contains("PongNoFrameskip-v4"), "{error:?}");
}

/// It is imported once, and the environment that gave the spaces is one of those that are stepped.
#[test]
fn first_worker_is_reused_for_the_first_vector() {
    use std::os::unix::fs::PermissionsExt;
    let Some(python) = python("gymnasium, ale_py") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (script, starts) = (folder.path().join("python"), folder.path().join("starts"));
    let text = format!("#!/bin/sh\necho >>{}\nexec {python} \"$@\"\n", starts.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let started = || std::fs::read_to_string(&starts).unwrap_or_default().len();
    for (id, envs) in [("CartPole-v1", 3), ("Blackjack-v1", 2), ("ALE/Pong-v5", 1), ("ALE/Pong-v5", 2)] {
        let env = config(id, script.to_str().unwrap());
        let factory = EnvFactory::open(&env).unwrap();
        let before = started();
        let mut taken = factory.make(envs, 4, &Seeds::new(5), 0, EnvPurpose::Train).unwrap();
        assert_eq!(started(), before, "{id}: no other interpreter");
        let mut new = factory.make(envs, 4, &Seeds::new(5), 0, EnvPurpose::Train).unwrap();
        assert_eq!(started(), before + 1, "{id}");
        let mut outcomes = [StepOutcome::new(factory.spec(), envs), StepOutcome::new(factory.spec(), envs)];
        let actions: Vec<i64> = (0..envs as i64).map(|index| index % 2).collect();
        for step in 0..60 {
            assert!(taken.observations() == new.observations(), "{id}, step {step}");
            for (vector, outcome) in [&mut taken, &mut new].into_iter().zip(&mut outcomes) {
                vector.step(Actions::Discrete(&actions), outcome).unwrap();
            }
            assert_eq!(outcomes[0].rewards, outcomes[1].rewards, "{id}, step {step}");
        }
    }
}

/// As a rank that waits for the others would find it.
#[test]
fn python_2_and_3_unclaimed_worker_exits_on_error_or_drop() {
    let Some(python) = python("gymnasium") else { return };
    let env = config("CartPole-v1", &python);
    let (worker, ..) = open(&env, WorkerImports::CurrentDirectory).unwrap();
    let pid = worker.pid();
    // SAFETY: plain system call; the process has not been reaped.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    let streams =
        Streams { seeds: Seeds::new(1), first_env: 0, start_iteration: 0, purpose: EnvPurpose::Train };
    let error = of(&env, streams, worker).err().unwrap().to_string();
    assert!(error.contains("was killed by SIGKILL"), "{error}");
    assert!(gone(pid));
    let (worker, ..) = open(&env, WorkerImports::CurrentDirectory).unwrap();
    let pid = worker.pid();
    drop(worker);
    assert!(gone(pid), "worker {pid} is left");
}

#[test]
fn small_seeds_do_not_overlap() {
    let mut seen = std::collections::HashSet::new();
    for purpose in [EnvPurpose::Train, EnvPurpose::Evaluate] {
        for rank in 0..8 {
            let streams = Streams { seeds: Seeds::new(9), first_env: rank * 64, start_iteration: 3, purpose };
            for index in 0..64 {
                let seed = streams.small(index);
                assert!(seed < 1 << 31 && seen.insert(seed), "{purpose:?} {rank} {index}");
            }
        }
    }
}

/// Steps two kinds of the same environments by the same actions and compares all that they show.
fn assert_same(one: &mut dyn VectorEnv, other: &mut dyn VectorEnv, steps: i64) {
    let envs = one.len();
    let mut outcomes = [0, 1].map(|_| StepOutcome::new(one.spec(), envs));
    let mut episodes = 0;
    for step in 0..steps {
        let actions: Vec<i64> = (0..envs as i64).map(|env| (step * 5 + env) % 3 % 2).collect();
        one.step(Actions::Discrete(&actions), &mut outcomes[0]).unwrap();
        other.step(Actions::Discrete(&actions), &mut outcomes[1]).unwrap();
        assert_eq!(one.observations(), other.observations(), "step {step}");
        let [a, b] = &outcomes;
        assert_eq!((&a.rewards, &a.terminated, &a.truncated), (&b.rewards, &b.terminated, &b.truncated));
        assert_eq!((&a.valid, &a.episodes), (&b.valid, &b.episodes));
        episodes += a.episodes.len();
    }
    assert!(episodes > envs, "{episodes}");
}

#[test]
fn more_workers_give_the_same_episodes() {
    let Some(python) = python("gymnasium") else { return };
    let env = config("CartPole-v1", &python);
    let of = |workers| {
        let env = Env { workers: Some(workers), ..env.clone() };
        vector(&env, 5, EnvPurpose::Train).unwrap()
    };
    let (mut one, mut three) = (of(1), of(3));
    assert_same(&mut *one, &mut *three, 150);
    one.reset().unwrap();
    three.reset().unwrap();
    assert_eq!(one.observations(), three.observations());
}

#[test]
fn keyword_arguments_and_wrappers_reach_the_environment() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let env = Env {
        kwargs: Some([("sutton_barto_reward".to_owned(), toml::Value::Boolean(true))].into()),
        wrappers: Some(vec!["own_envs:Doubled".into(), "own_envs:Doubled".into()]),
        ..config("CartPole-v1", &faulty_python(folder.path(), &python))
    };
    let mut made = vector(&env, 1, EnvPurpose::Train).unwrap();
    let mut outcome = StepOutcome::new(made.spec(), 1);
    let mut rewards = Vec::new();
    for _ in 0..12 {
        made.step(Actions::Discrete(&[1]), &mut outcome).unwrap();
        rewards.push(outcome.rewards[0]);
    }
    // 0 per step and -1 at the end, twice doubled.
    assert!(rewards.contains(&0.0) && rewards.contains(&-4.0), "{rewards:?}");
}

#[test]
fn vector_of_a_factory_steps_as_single_environments_do() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let env = config("CartPole-v1", &faulty_python(folder.path(), &python));
    let of = |factory: &str| {
        let env = Env { vector: Some(format!("own_envs:{factory}")), ..env.clone() };
        vector(&env, 3, EnvPurpose::Train).unwrap()
    };
    let (mut same, mut next) = (of("same_step"), of("next_step"));
    assert_eq!(same.spec(), next.spec());
    let mut outcomes = [0, 1].map(|_| StepOutcome::new(same.spec(), 3));
    let (mut skipped, mut ended) = (0, [0, 0]);
    for step in 0..120_i64 {
        let actions: Vec<i64> = (0..3).map(|env| (step + env) % 2).collect();
        same.step(Actions::Discrete(&actions), &mut outcomes[0]).unwrap();
        next.step(Actions::Discrete(&actions), &mut outcomes[1]).unwrap();
        assert!(outcomes[0].valid.iter().all(|valid| *valid));
        skipped += outcomes[1].valid.iter().filter(|valid| !**valid).count();
        for (count, outcome) in ended.iter_mut().zip(&outcomes) {
            *count += outcome.episodes.len();
            for episode in &outcome.episodes {
                assert!((episode.episode_return - episode.length as f64).abs() < 1e-9, "{episode:?}");
            }
        }
    }
    assert!(ended[0] > 3 && ended[1] > 3, "{ended:?}");
    // The last episodes may have ended in the last step.
    assert!(skipped <= ended[1] && skipped + 3 >= ended[1], "{skipped} {ended:?}");
}

#[test]
fn wrong_factory_wrapper_or_space_is_refused_by_name() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let env = config("CartPole-v1", &faulty_python(folder.path(), &python));
    let text = |env: &Env| refused(env).to_string();
    for (wrong, word) in [
        (Env { vector: Some("own_envs:missing".into()), ..env.clone() }, "missing"),
        (Env { vector: Some("no_such_module:x".into()), ..env.clone() }, "no_such_module"),
        (Env { vector: Some("own_envs:too_many".into()), ..env.clone() }, "2 environments instead of 1"),
        (Env { wrappers: Some(vec!["own_envs:missing".into()]), ..env.clone() }, "missing"),
        (Env { wrappers: Some(vec!["own_envs:Sequenced".into()]), ..env.clone() }, "Sequence"),
        (
            Env { kwargs: Some([("nonsense".to_owned(), toml::Value::Integer(1))].into()), ..env.clone() },
            "nonsense",
        ),
    ] {
        let text = text(&wrong);
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn image_channels_are_the_smaller_side_or_as_set() {
    use rankdeck_types::experiment::ImageChannels::{First, Last};
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    for (name, channels, shape, step, word) in [
        ("six", None, [6, 10, 10], 6.0, "channels last (assumed"),
        ("stack", None, [12, 16, 16], 12.0, "channels last (assumed"),
        ("first", None, [2, 9, 9], 1.0, "channels first (assumed"),
        ("six", Some(First), [10, 10, 6], 1.0, "channels first: networks get [10, 10, 6]"),
        ("first", Some(Last), [9, 2, 9], 9.0, "channels last: networks get [9, 2, 9]"),
    ] {
        let env = Env { channels, ..config(&format!("masked_env:Image-{name}-v0"), &python) };
        let factory = EnvFactory::open(&env).unwrap();
        let images = factory.images().unwrap();
        assert!(images.contains(word), "{name}: {images}");
        let made = factory.make(1, 0, &Seeds::new(1), 0, EnvPurpose::Train).unwrap();
        assert_eq!(made.spec().observation_shape, shape, "{name}");
        // The first two pixels of the first channel.
        assert_eq!(made.observations().f32().unwrap()[..2], [0.0, step], "{name}");
    }
    let error = refused(&Env { channels: Some(First), ..config("CartPole-v1", &python) });
    assert!(error.is_usage() && error.to_string().contains("env.channels"), "{error}");
}

#[test]
fn dict_with_an_image_is_described_by_its_parts() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    let env = Env { workers: Some(2), ..config("masked_env:Mixed-v0", &python) };
    let factory = EnvFactory::open(&env).unwrap();
    let images = factory.images().unwrap();
    assert!(images.contains("camera [12, 10, 3], channels last (assumed"), "{images}");
    assert!(images.contains("5 other values"), "{images}");
    let part = |key: &str, shape: &[usize], image: bool| Branch {
        key: key.into(),
        shape: shape.to_vec(),
        image,
        last: image,
        bytes: image,
    };
    let branches = [part("camera", &[12, 10, 3], true), part("goal", &[2], false), part("lamp", &[3], false)];
    assert_eq!(factory.spec().branches, branches);
    let made = factory.make(3, 0, &Seeds::new(1), 0, EnvPurpose::Train).unwrap();
    let seen = made.observations().f32().unwrap();
    assert_eq!(seen.len(), 3 * 365);
    for seen in seen.chunks(365) {
        assert!(seen[..360].iter().all(|byte| (0.0..=255.0).contains(byte) && byte.fract() == 0.0));
        assert_eq!(seen[360].abs(), 1.0);
        assert_eq!(seen[362..].iter().sum::<f32>(), 1.0);
    }
    // Fully connected networks take all values together.
    let flat = factory.spec().clone().fitted(rankdeck_types::experiment::NetworkKind::Mlp);
    assert_eq!((flat.branches.len(), flat.observation_shape), (0, vec![365]));
}

#[test]
fn several_discrete_actions_reach_the_environment() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    for (kind, sizes) in [("discrete", vec![3, 2, 4]), ("binary", vec![2, 2, 2, 2])] {
        let env = Env { workers: Some(2), ..config(&format!("masked_env:Several-{kind}-v0"), &python) };
        let mut made = vector(&env, 3, EnvPurpose::Train).unwrap();
        assert_eq!(made.spec().actions, ActionSpace::MultiDiscrete { sizes: sizes.clone() });
        let mut outcome = StepOutcome::new(made.spec(), 3);
        for _ in 0..20 {
            // What the observation asks for.
            let seen = made.observations().f32().unwrap().to_vec();
            let mut ones = seen.chunks(sizes.iter().sum()).flat_map(|seen| {
                let mut start = 0;
                sizes.iter().map(move |size| {
                    start += size;
                    seen[start - size..start].iter().position(|value| *value == 1.0).unwrap() as i64
                })
            });
            let actions: Vec<i64> = ones.by_ref().collect();
            made.step(Actions::Discrete(&actions), &mut outcome).unwrap();
            assert_eq!(outcome.rewards, [1.0; 3], "{kind}");
        }
        let mut wrong = vec![0; 3 * sizes.len()];
        wrong[1] = 2;
        assert!(made.step(Actions::Discrete(&wrong), &mut outcome).is_err());
        assert!(made.step(Actions::Discrete(&[0, 0, 0]), &mut outcome).is_err());
    }
}

/// Steps by the highest allowed action, which the environments reward; others are errors of theirs.
#[test]
fn masks_of_info_dict_and_vector_are_those_of_each_step() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    let factory = Some("masked_env:vector".to_owned());
    for (name, workers, vectors) in [("info", 1, None), ("dict", 2, None), ("info", 1, factory)] {
        let env = Env {
            action_masks: Some(true),
            workers: Some(workers),
            vector: vectors,
            ..config(&format!("masked_env:Masked-{name}-v0"), &python)
        };
        let mut made = vector(&env, 3, EnvPurpose::Train).unwrap();
        assert_eq!(made.spec().observation_shape, [2], "without the mask");
        let mut outcome = StepOutcome::new(made.spec(), 3);
        let (mut episodes, mut others) = (0, 0);
        for _ in 0..40 {
            let masks = made.masks().unwrap().chunks(12);
            let actions: Vec<i64> =
                masks.map(|mask| mask.iter().rposition(|allowed| *allowed == 1).unwrap() as i64).collect();
            made.step(Actions::Discrete(&actions), &mut outcome).unwrap();
            assert_eq!(outcome.rewards, [1.0; 3], "{name}");
            episodes += outcome.episodes.len();
            for episode in &outcome.episodes {
                let own = 12 * episode.env..12 * (episode.env + 1);
                let last = &outcome.final_masks[own.clone()];
                assert_eq!(last.iter().filter(|allowed| **allowed == 1).count(), 4, "{name}");
                others += usize::from(*last != made.masks().unwrap()[own]);
            }
        }
        assert_eq!(episodes, 6, "{name}");
        assert!(others > 0, "{name}: last masks are not those of the next episodes");
    }
    let plain = vector(&config("masked_env:Masked-dict-v0", &python), 1, EnvPurpose::Train).unwrap();
    assert!(plain.masks().is_none() && plain.spec().observation_shape == [14]);
}

#[test]
fn mask_that_allows_nothing_names_environment_and_step() {
    let Some(python) = python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = faulty_python(folder.path(), &python);
    let masked = |id: &str| Env { action_masks: Some(true), ..config(id, &python) };
    let streams =
        Streams { seeds: Seeds::new(1), first_env: 7, start_iteration: 0, purpose: EnvPurpose::Train };
    for (name, allowed_steps) in [("empty", 1), ("once", 0)] {
        let env = masked(&format!("masked_env:Masked-{name}-v0"));
        let mut vector = of(&env, streams, started(&env)).unwrap();
        let mut outcome = StepOutcome::new(&vector.spec, 2);
        let mut step = || {
            let masks = vector.masks().unwrap().chunks(12);
            let actions: Vec<i64> =
                masks.map(|mask| mask.iter().position(|allowed| *allowed == 1).unwrap() as i64).collect();
            vector.step(Actions::Discrete(&actions), &mut outcome)
        };
        for _ in 0..allowed_steps {
            step().unwrap();
        }
        let error = step().unwrap_err();
        assert!(!error.is_usage());
        match name {
            "empty" => {
                assert!(matches!(error, EnvError::NoAction { env: 7, step: 3, part: None, .. }), "{error:?}");
            }
            _ => assert!(error.to_string().contains("environment 7 failed"), "{error}"),
        }
        assert!(vector.reset().is_err(), "it stays an error");
    }
    for (id, word) in [("CartPole-v1", "action_mask"), ("Pendulum-v1", "env.action_masks")] {
        let env = masked(id);
        let error = EnvFactory::open(&env)
            .and_then(|factory| factory.make(1, 0, &Seeds::new(1), 0, EnvPurpose::Train))
            .err()
            .unwrap();
        assert!(error.is_usage() && error.to_string().contains(word), "{error}");
    }
}
