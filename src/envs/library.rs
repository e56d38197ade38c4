//! Environments of a shared library that the user has built (`env.library`, examples/env/rankdeck_env.h), on the
//! trainer's own thread.
//!
//! Invariants, besides those of every [`VectorEnv`]:
//! - LIBRARY-1: shapes and sizes that a library reports are bounded before anything is allocated for them.
//! - LIBRARY-2: rewards and observations are finite, or the step is an error that names the environment by its
//!   index over all ranks; a failure or a crash in the library names it and the function.
//! - LIBRARY-3: a failure to save states is an error that names the environments and the step, never a state.

use super::{
    ActionSpace, Actions, EnvError, Episode, ObservationBuffer, ObservationType, Observations, Spec,
    StepOutcome, Streams, VectorEnv, indices,
};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Once, OnceLock};

const VERSION: u32 = 1;
const MOST_DIMS: usize = 4;
/// Most numbers of an observation and of an action.
const MOST_NUMBERS: u64 = 1 << 31;
const MOST_ACTIONS: u64 = 1 << 16;
/// Most bytes of an environment's saved state.
const MOST_STATE: u64 = 1 << 30;
/// Words before an environment's own state: return and length of its episode.
const COMMON: usize = 2;
const HEADER: &str = "build it with the functions of rankdeck_env.h";

#[repr(C)]
struct RawSpec {
    version: u32,
    observation_type: u32,
    observation_dims: u32,
    actions: u32,
    observation_shape: [u64; MOST_DIMS],
    action_len: u64,
    low: *const f32,
    high: *const f32,
    state_bytes: u64,
}

#[repr(C)]
struct RawOutcome {
    observations: *mut c_void,
    final_observations: *mut c_void,
    rewards: *mut f64,
    terminated: *mut u8,
    truncated: *mut u8,
}

type Describe = unsafe extern "C" fn(*const c_char, *mut RawSpec) -> c_int;
type Create = unsafe extern "C" fn(*const c_char, u32) -> *mut c_void;
type Reset = unsafe extern "C" fn(*mut c_void, *const u64, *mut c_void) -> c_int;
type Step = unsafe extern "C" fn(*mut c_void, *const c_void, *mut RawOutcome) -> c_int;
type Save = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Restore = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);
type ReadError = unsafe extern "C" fn() -> *const c_char;

/// A library; it stays loaded until the process ends.
#[derive(Clone)]
pub(super) struct EnvLibrary {
    path: String,
    options: CString,
    create: Create,
    reset: Reset,
    step: Step,
    destroy: Destroy,
    /// Present if the state can be saved.
    state: Option<(Save, Restore)>,
    error: Option<ReadError>,
    spec: Spec,
    state_bytes: usize,
}

/// The function that the library is in, for [`crashed`].
static INSIDE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

fn inside<T>(function: &'static CStr, call: impl FnOnce() -> T) -> T {
    INSIDE.store(function.as_ptr().cast_mut(), Ordering::Relaxed);
    let result = call();
    INSIDE.store(null_mut(), Ordering::Relaxed);
    result
}

/// Signals of a crash; `abort` is how assertions, the allocator and uncaught exceptions end.
const CRASHES: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

/// What these signals did before.
static BEFORE: [OnceLock<libc::sigaction>; CRASHES.len()] = [const { OnceLock::new() }; CRASHES.len()];

/// Names the function that crashed and puts the action back that the signal had before: the faulting instruction
/// runs again and meets that, such as the one that replaces lost pages of the status page. `abort` raises its signal again by itself.
extern "C" fn crashed(signal: c_int) {
    let function = INSIDE.load(Ordering::Relaxed);
    // SAFETY: `write`, `strlen` and `sigaction` are async-signal-safe; the text is a constant that ends in NUL.
    unsafe {
        if !function.is_null() {
            let print = |text: &[u8]| libc::write(2, text.as_ptr().cast(), text.len());
            print(b"error: the library of env.library crashed in ");
            libc::write(2, function.cast(), libc::strlen(function));
            print(b"\n");
        }
        let place = CRASHES.iter().position(|crash| *crash == signal);
        match place.and_then(|place| BEFORE[place].get()) {
            Some(before) => drop(libc::sigaction(signal, before, null_mut())),
            None => drop(libc::signal(signal, libc::SIG_DFL)),
        }
    }
}

fn watch_crashes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, before) in CRASHES.iter().zip(&BEFORE) {
            // SAFETY: the handler calls async-signal-safe functions only. It runs on the alternate stack that Rust
            // has made, so that an overflow of the stack is reported, too.
            unsafe {
                let mut known: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*signal, std::ptr::null(), &mut known);
                let _ = before.set(known);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = crashed as extern "C" fn(c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(*signal, &action, null_mut());
            }
        }
    });
}

fn failed(path: &str, text: impl Into<String>, hint: &str, usage: bool) -> EnvError {
    EnvError::Worker {
        id: path.to_owned(),
        error: HintedError::new(text, hint),
        traceback: String::new(),
        usage,
    }
}

/// The text of the latest error of the loader.
fn loader_error() -> String {
    // SAFETY: the loader's own text, which lives until its next call on this thread.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "unknown error".into(),
        // SAFETY: as above.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

impl EnvLibrary {
    /// Loads the library of `env` and asks for its shapes.
    pub(super) fn open(env: &Env) -> Result<Option<EnvLibrary>, EnvError> {
        let Some(path) = &env.library else { return Ok(None) };
        let usage = |text: String, hint: &str| failed(path, text, hint, true);
        let whole = std::path::absolute(Path::new(path))
            .map_err(|error| usage(format!("cannot find it: {error}"), "set env.library to a file"))?;
        let name = CString::new(whole.as_os_str().as_bytes())
            .map_err(|_| usage("its path contains a NUL character".into(), "rename it"))?;
        watch_crashes();
        // SAFETY: loading runs the library's initializers, which the user has asked for by its path.
        let handle = inside(c"its initializers", || unsafe {
            libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL)
        });
        let handle = NonNull::new(handle).ok_or_else(|| {
            usage(
                format!("cannot load it: {}", loader_error()),
                "set env.library to a library that every host has",
            )
        })?;
        let symbol = |name: &CStr| {
            // SAFETY: a loaded library and a C string.
            NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
        };
        let needed = |name: &CStr| {
            symbol(name)
                .ok_or_else(|| usage(format!("it has no function {}", name.to_string_lossy()), HEADER))
        };
        let describe = needed(c"rankdeck_env_describe")?;
        let (create, reset) = (needed(c"rankdeck_env_create")?, needed(c"rankdeck_env_reset")?);
        let (step, destroy) = (needed(c"rankdeck_env_step")?, needed(c"rankdeck_env_destroy")?);
        let (save, restore) = (symbol(c"rankdeck_env_save"), symbol(c"rankdeck_env_restore"));
        let mut options = env.kwargs.clone().unwrap_or_default();
        if let Some(steps) = env.max_episode_steps {
            options.insert("max_episode_steps".into(), i64::from(steps).into());
        }
        let options = CString::new(serde_json::to_string(&options).unwrap_or_default()).unwrap_or_default();
        // SAFETY: the header fixes the types of these functions; a library that has others is the user's mistake.
        let mut library = unsafe {
            EnvLibrary {
                path: path.clone(),
                options,
                create: std::mem::transmute::<NonNull<c_void>, Create>(create),
                reset: std::mem::transmute::<NonNull<c_void>, Reset>(reset),
                step: std::mem::transmute::<NonNull<c_void>, Step>(step),
                destroy: std::mem::transmute::<NonNull<c_void>, Destroy>(destroy),
                state: save.zip(restore).map(|(save, restore)| {
                    (
                        std::mem::transmute::<NonNull<c_void>, Save>(save),
                        std::mem::transmute::<NonNull<c_void>, Restore>(restore),
                    )
                }),
                error: symbol(c"rankdeck_env_error")
                    .map(|error| std::mem::transmute::<NonNull<c_void>, ReadError>(error)),
                spec: Spec::discrete(1, 1),
                state_bytes: 0,
            }
        };
        // SAFETY: as above.
        let describe = unsafe { std::mem::transmute::<NonNull<c_void>, Describe>(describe) };
        // SAFETY: plain data, for which zeros are valid.
        let mut raw: RawSpec = unsafe { std::mem::zeroed() };
        // SAFETY: the options end in NUL, and the library writes one description.
        let code =
            inside(c"rankdeck_env_describe", || unsafe { describe(library.options.as_ptr(), &mut raw) });
        library.succeeded(code, "rankdeck_env_describe")?;
        library.take_spec(&raw).map_err(|text| usage(text, HEADER))?;
        Ok(Some(library))
    }

    /// Takes over what the library has described. LIBRARY-1.
    fn take_spec(&mut self, raw: &RawSpec) -> Result<(), String> {
        if raw.version != VERSION {
            return Err(format!("it was built for version {} of rankdeck_env.h, not {VERSION}", raw.version));
        }
        let dims = raw.observation_dims as usize;
        let shape = raw.observation_shape.get(..dims).filter(|shape| !shape.is_empty());
        let shape = shape.ok_or_else(|| format!("its observations have {dims} dimensions"))?;
        let len = shape.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
        if len.is_none_or(|len| len == 0 || len > MOST_NUMBERS) {
            return Err(format!("its observations have the shape {shape:?}"));
        }
        let actions = match (u64::from(raw.actions), raw.action_len) {
            (n @ 1..=MOST_ACTIONS, _) => ActionSpace::Discrete { n: n as usize },
            (0, len @ 1..=MOST_ACTIONS) if !raw.low.is_null() && !raw.high.is_null() => {
                // SAFETY: the header asks for `action_len` numbers at both.
                let bounds = |from| unsafe { std::slice::from_raw_parts(from, len as usize) }.to_vec();
                ActionSpace::Continuous { low: bounds(raw.low), high: bounds(raw.high) }
            }
            _ => return Err("its actions are empty, too many or without bounds".into()),
        };
        if raw.state_bytes > MOST_STATE {
            return Err(format!("the state of an environment has {} bytes", raw.state_bytes));
        }
        if raw.state_bytes > 0 && self.state.is_none() {
            return Err("its state cannot be saved without rankdeck_env_save and rankdeck_env_restore".into());
        }
        self.state_bytes = raw.state_bytes as usize;
        self.spec = Spec {
            observation_shape: shape.iter().map(|size| *size as usize).collect(),
            observation_type: match raw.observation_type {
                0 => ObservationType::F32,
                1 => ObservationType::U8,
                other => return Err(format!("its observations have the unknown type {other}")),
            },
            branches: Vec::new(),
            actions,
        };
        Ok(())
    }

    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    fn succeeded(&self, code: c_int, function: &str) -> Result<(), EnvError> {
        self.succeeded_at(code, function, "")
    }

    /// `place`: where it was called, after the name of the function; may be empty.
    fn succeeded_at(&self, code: c_int, function: &str, place: &str) -> Result<(), EnvError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the header asks for a text that ends in NUL, or for none.
        let text = self.error.map(|error| unsafe { error() }).filter(|text| !text.is_null());
        // SAFETY: as above.
        let text = text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        let text = text.map_or_else(|| format!("code {code}"), |text| text.chars().take(500).collect());
        Err(failed(&self.path, format!("{function} failed{place}: {text}"), "check the library", false))
    }

    /// `envs` environments, reset.
    pub(super) fn make(&self, envs: usize, streams: Streams) -> Result<Box<dyn VectorEnv>, EnvError> {
        let count = u32::try_from(envs).unwrap_or(u32::MAX);
        // SAFETY: the options end in NUL.
        let batch = inside(c"rankdeck_env_create", || unsafe { (self.create)(self.options.as_ptr(), count) });
        let batch = NonNull::new(batch)
            .ok_or_else(|| self.succeeded(1, "rankdeck_env_create").err().unwrap_or(EnvError::Abandoned))?;
        let seed = |index: usize| Generator::from_words(&streams.words(index)).next_u64();
        let mut vector = LibraryVector {
            observations: AlignedBuffer::new(&self.spec, envs),
            last: AlignedBuffer::new(&self.spec, envs),
            library: self.clone(),
            batch,
            envs,
            seeds: (0..envs).map(seed).collect(),
            first_env: streams.first_env,
            rewards: vec![0.0; envs],
            flags: [vec![0; envs], vec![0; envs]],
            running: vec![(0.0, 0); envs],
            steps: 0,
        };
        vector.reset()?;
        Ok(Box::new(vector))
    }
}

/// Observations of all environments that a library writes.
struct AlignedBuffer(ObservationBuffer);

impl AlignedBuffer {
    fn new(spec: &Spec, envs: usize) -> AlignedBuffer {
        AlignedBuffer(ObservationBuffer::new(spec, envs))
    }

    fn pointer(&mut self) -> *mut c_void {
        match &mut self.0 {
            ObservationBuffer::F32(values) => values.as_mut_ptr().cast(),
            ObservationBuffer::U8(values) => values.as_mut_ptr().cast(),
        }
    }

    /// The first number that is not finite among these.
    fn wrong(&self, range: std::ops::Range<usize>) -> Option<(usize, f32)> {
        let ObservationBuffer::F32(values) = &self.0 else { return None };
        let row = &values[range];
        // A sum of zeros is 0 exactly where all numbers are finite.
        if row.iter().map(|value| value * 0.0).sum::<f32>() == 0.0 {
            return None;
        }
        row.iter().copied().enumerate().find(|(_, value)| !value.is_finite())
    }
}

struct LibraryVector {
    library: EnvLibrary,
    batch: NonNull<c_void>,
    envs: usize,
    seeds: Vec<u64>,
    /// Global index of the first environment.
    first_env: u32,
    observations: AlignedBuffer,
    last: AlignedBuffer,
    rewards: Vec<f64>,
    /// Terminated and truncated.
    flags: [Vec<u8>; 2],
    /// Return and length of each environment's current episode.
    running: Vec<(f64, u64)>,
    /// Steps of all environments since they were made.
    steps: u64,
}

impl Drop for LibraryVector {
    fn drop(&mut self) {
        // SAFETY: the batch is this vector's own and is not used any more.
        inside(c"rankdeck_env_destroy", || unsafe { (self.library.destroy)(self.batch.as_ptr()) });
    }
}

impl LibraryVector {
    /// LIBRARY-2.
    fn refuse_non_finite(&self) -> Result<(), EnvError> {
        let width = self.library.spec.observation_len();
        let wrong = |env: usize| -> Option<String> {
            // Learning uses f32.
            if !(self.rewards[env] as f32).is_finite() {
                return Some(format!("the reward {}", self.rewards[env]));
            }
            let row = env * width..(env + 1) * width;
            let ended = self.flags[0][env] | self.flags[1][env] != 0;
            let last = ended.then_some((&self.last, "last observation"));
            [Some((&self.observations, "observation")), last].into_iter().flatten().find_map(
                |(part, name)| {
                    let (i, value) = part.wrong(row.clone())?;
                    Some(format!("{value} as number {i} of its {name}"))
                },
            )
        };
        match (0..self.envs).find_map(|env| Some((env, wrong(env)?))) {
            None => Ok(()),
            Some((env, what)) => Err(EnvError::NotFinite {
                id: self.library.path.clone(),
                env: self.first_env.wrapping_add(env as u32),
                step: self.running[env].1 + 1,
                what,
            }),
        }
    }

    fn refuse(&self, what: &str) -> EnvError {
        EnvError::Actions { id: self.library.path.clone(), what: what.into() }
    }

    fn words(&self) -> usize {
        COMMON + self.library.state_bytes.div_ceil(8)
    }
}

impl VectorEnv for LibraryVector {
    fn spec(&self) -> &Spec {
        &self.library.spec
    }

    fn len(&self) -> usize {
        self.envs
    }

    fn observations(&self) -> Observations<'_> {
        self.observations.0.view()
    }

    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let actions: *const c_void = match (actions, &self.library.spec.actions) {
            (Actions::Discrete(actions), ActionSpace::Discrete { n })
                if actions.len() == self.envs
                    && actions.iter().all(|action| (0..*n as i64).contains(action)) =>
            {
                actions.as_ptr().cast()
            }
            (Actions::Continuous(actions), ActionSpace::Continuous { low, .. })
                if actions.len() == self.envs * low.len()
                    && !actions.iter().any(|action| action.is_nan()) =>
            {
                actions.as_ptr().cast()
            }
            _ => return Err(self.refuse("actions do not match its action space")),
        };
        if outcome.rewards.len() != self.envs {
            return Err(self.refuse("the outcome's buffers were made for another environment"));
        }
        self.flags.iter_mut().for_each(|flags| flags.fill(0));
        let [terminated, truncated] = &mut self.flags;
        let mut raw = RawOutcome {
            observations: self.observations.pointer(),
            final_observations: self.last.pointer(),
            rewards: self.rewards.as_mut_ptr(),
            terminated: terminated.as_mut_ptr(),
            truncated: truncated.as_mut_ptr(),
        };
        // SAFETY: every array has a row or an element for each environment, as the header requires.
        let code = inside(c"rankdeck_env_step", || unsafe {
            (self.library.step)(self.batch.as_ptr(), actions, &mut raw)
        });
        self.library.succeeded(code, "rankdeck_env_step")?;
        self.steps += 1;
        self.refuse_non_finite()?;
        outcome.episodes.clear();
        let width = self.library.spec.observation_len();
        for (env, running) in self.running.iter_mut().enumerate() {
            let reward = self.rewards[env];
            running.0 += reward;
            running.1 += 1;
            outcome.rewards[env] = reward as f32;
            outcome.terminated[env] = self.flags[0][env] != 0;
            outcome.truncated[env] = self.flags[1][env] != 0;
            outcome.valid[env] = true;
            if outcome.done(env) {
                let (episode_return, length) = std::mem::take(running);
                outcome.episodes.push(Episode { env, episode_return, length });
                let row = env * width..(env + 1) * width;
                match (&mut outcome.final_observations, &self.last.0) {
                    (ObservationBuffer::F32(to), ObservationBuffer::F32(from)) => {
                        to[row.clone()].copy_from_slice(&from[row]);
                    }
                    (ObservationBuffer::U8(to), ObservationBuffer::U8(from)) => {
                        to[row.clone()].copy_from_slice(&from[row]);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        self.running.fill((0.0, 0));
        self.rewards.fill(0.0);
        self.flags.iter_mut().for_each(|flags| flags.fill(0));
        let to = self.observations.pointer();
        // SAFETY: a seed and a row for each environment.
        let code = inside(c"rankdeck_env_reset", || unsafe {
            (self.library.reset)(self.batch.as_ptr(), self.seeds.as_ptr(), to)
        });
        self.library.succeeded(code, "rankdeck_env_reset")?;
        self.refuse_non_finite()
    }

    fn words_per_env(&self) -> Option<usize> {
        (self.library.state_bytes > 0).then(|| self.words())
    }

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        let Some((save, _)) = self.library.state.filter(|_| self.library.state_bytes > 0) else {
            return Ok(None);
        };
        let each = self.library.state_bytes;
        let mut states = vec![0_u8; each * self.envs];
        // SAFETY: room for the state of each environment.
        let code =
            inside(c"rankdeck_env_save", || unsafe { save(self.batch.as_ptr(), states.as_mut_ptr().cast()) });
        let place = format!(" in {} after step {}", indices(self.first_env, self.envs), self.steps);
        self.library.succeeded_at(code, "rankdeck_env_save", &place)?;
        let mut words = Vec::with_capacity(self.words() * self.envs);
        for ((episode_return, length), state) in self.running.iter().zip(states.chunks_exact(each)) {
            words.extend([episode_return.to_bits(), *length]);
            words.extend(state.chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }));
        }
        Ok(Some(words))
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let expected = self.words() * self.envs;
        let restore = self.library.state.filter(|_| self.library.state_bytes > 0);
        let Some((_, restore)) = restore.filter(|_| words.len() == expected) else {
            return Err(EnvError::State { expected, found: words.len() });
        };
        let each = self.library.state_bytes;
        let mut states = Vec::with_capacity(each * self.envs);
        for (running, words) in self.running.iter_mut().zip(words.chunks_exact(COMMON + each.div_ceil(8))) {
            *running = (f64::from_bits(words[0]), words[1]);
            let bytes = words[COMMON..].iter().flat_map(|word| word.to_le_bytes());
            states.extend(bytes.take(each));
        }
        let to = self.observations.pointer();
        // SAFETY: a state and a row for each environment.
        let code = inside(c"rankdeck_env_restore", || unsafe {
            restore(self.batch.as_ptr(), states.as_ptr().cast(), to)
        });
        self.library.succeeded(code, "rankdeck_env_restore")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvFactory, EnvPurpose};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_testkit::repository;
    use std::path::PathBuf;
    use std::process::Command;

    /// Builds a C source against the header; `None` without a compiler.
    fn built(folder: &Path, name: &str, source: &str) -> Option<PathBuf> {
        let (file, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
        std::fs::write(&file, source).unwrap();
        let header = repository("examples/env");
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-I"]).arg(header).arg("-o").arg(&library).arg(&file);
        match command.status() {
            Ok(status) => assert!(status.success(), "{name}"),
            Err(_) => {
                rankdeck_testkit::skipped("no C compiler");
                return None;
            }
        }
        Some(library)
    }

    fn grid() -> String {
        std::fs::read_to_string(repository("examples/env/grid.c")).unwrap()
    }

    fn env(library: &Path) -> Env {
        Env { library: Some(library.display().to_string()), ..Env::new("grid", 4) }
    }

    fn vector(env: &Env, envs: usize, first: u32) -> Box<dyn VectorEnv> {
        EnvFactory::open(env).unwrap().make(envs, first, &Seeds::new(5), 0, EnvPurpose::Train).unwrap()
    }

    /// Steps by fixed actions; all that was seen.
    fn played(vector: &mut dyn VectorEnv, first: i64, steps: i64) -> Vec<(Vec<f32>, StepOutcome)> {
        let mut outcome = StepOutcome::new(vector.spec(), vector.len());
        (0..steps)
            .map(|step| {
                let actions: Vec<i64> =
                    (0..vector.len() as i64).map(|env| i64::from((step + env + first) % 5 != 0)).collect();
                vector.step(Actions::Discrete(&actions), &mut outcome).unwrap();
                (vector.observations().f32().unwrap().to_vec(), outcome.clone())
            })
            .collect()
    }

    #[test]
    fn example_in_c_steps_resets_and_continues_from_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = built(folder.path(), "grid", &grid()) else { return };
        let env = env(&library);
        let mut whole = vector(&env, 4, 0);
        let before = played(&mut *whole, 0, 60);
        let episodes: Vec<Episode> =
            before.iter().flat_map(|(_, outcome)| outcome.episodes.clone()).collect();
        assert!(episodes.len() >= 4, "{episodes:?}");
        assert!(episodes.iter().all(|episode| episode.length >= 10 && episode.episode_return <= 0.91));
        let state = whole.save().unwrap().unwrap();
        assert_eq!(state.len(), 4 * whole.words_per_env().unwrap());
        let mut resumed = vector(&env, 4, 9);
        resumed.restore(&state).unwrap();
        assert_eq!(played(&mut *whole, 3, 60), played(&mut *resumed, 3, 60));
        // Streams belong to the index over all ranks.
        let (mut all, mut second) = (vector(&env, 4, 0), vector(&env, 2, 2));
        assert_eq!(all.observations().f32().unwrap()[4..], *second.observations().f32().unwrap());
        let (all, second) = (played(&mut *all, 2, 60), played(&mut *second, 4, 60));
        assert!(all.iter().zip(&second).all(|(all, second)| all.0[4..] == second.0[..]));
        // Each environment has episodes of its own.
        let (mut twins, mut outcome) = (vector(&env, 2, 0), StepOutcome::new(whole.spec(), 2));
        let differ = (0..60).any(|step| {
            twins.step(Actions::Discrete(&[step % 4, step % 4]), &mut outcome).unwrap();
            let seen = twins.observations().f32().unwrap();
            seen[..2] != seen[2..]
        });
        assert!(differ);
    }

    #[test]
    fn example_in_rust_gives_the_same_episodes() {
        let folder = tempfile::tempdir().unwrap();
        let Some(c) = built(folder.path(), "grid", &grid()) else { return };
        let rust = folder.path().join("rust.so");
        let mut command = Command::new("rustc");
        command.args(["--edition", "2024", "-O", "--crate-type", "cdylib", "-o"]).arg(&rust);
        assert!(command.arg(repository("examples/env/grid.rs")).status().unwrap().success());
        let [mut one, mut other] = [c, rust].map(|library| vector(&env(&library), 3, 1));
        assert_eq!(played(&mut *one, 0, 200), played(&mut *other, 0, 200));
    }

    /// LIBRARY-1, LIBRARY-2.
    #[test]
    fn wrong_library_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |library: &Path| EnvFactory::open(&env(library)).err().unwrap().to_string();
        assert!(refused(&folder.path().join("missing.so")).contains("cannot load it"));
        for (name, from, to, word) in [
            ("version", "= RANKDECK_ENV_VERSION", "= 7", "version 7"),
            ("shape", "observation_shape[0] = 2", "observation_shape[0] = 1ull << 60", "shape"),
            ("dims", "observation_dims = 1", "observation_dims = 9", "9 dimensions"),
            ("actions", "spec->actions = 2", "spec->actions = 0", "actions"),
            ("step", "int rankdeck_env_step", "int another_step", "rankdeck_env_step"),
            ("state", "int rankdeck_env_save", "int another_save", "rankdeck_env_save"),
            ("type", "RANKDECK_ENV_F32;", "5;", "type 5"),
        ] {
            let source = grid();
            assert!(source.contains(from), "{from}");
            let Some(library) = built(folder.path(), name, &source.replace(from, to)) else { return };
            let text = refused(&library);
            assert!(text.contains(word), "{name}: {text}");
        }
    }

    /// LIBRARY-2.
    #[test]
    fn library_2_failure_and_bad_numbers_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let stepped = |name: &str, from: &str, to: &str| {
            let source = grid();
            assert!(source.contains(from));
            let library = built(folder.path(), name, &source.replace(from, to))?;
            let mut made = vector(&env(&library), 2, 6);
            let mut outcome = StepOutcome::new(made.spec(), 2);
            made.step(Actions::Discrete(&[1, 1]), &mut outcome).err()
        };
        let Some(nan) = stepped("nan", ": -0.01;", ": 0.0 / 0.0;") else { return };
        assert!(
            matches!(&nan, EnvError::NotFinite { env: 6, step: 1, what, .. } if what.contains("reward")),
            "{nan}"
        );
        let failed =
            "int rankdeck_env_step(void *all, const void *actions, struct rankdeck_env_outcome *out) {";
        let error = stepped(
            "fails",
            failed,
            &format!(
                "const char *rankdeck_env_error(void) {{ return \"no track\"; }}\n{failed} if (1) return 3;"
            ),
        );
        assert!(error.unwrap().to_string().contains("rankdeck_env_step failed: no track"));
    }

    /// LIBRARY-3.
    #[test]
    fn library_3_failed_save_names_environments_and_step() {
        let folder = tempfile::tempdir().unwrap();
        let (source, from) = (grid(), "int rankdeck_env_save(void *all, void *states) {");
        assert!(source.contains(from));
        let source = source.replace(from, &format!("{from} if (1) return 5;"));
        let Some(library) = built(folder.path(), "unsaved", &source) else { return };
        let mut made = vector(&env(&library), 2, 6);
        played(&mut *made, 0, 3);
        let text = made.save().unwrap_err().to_string();
        for part in ["rankdeck_env_save", "environments 6 to 7", "step 3", "code 5"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The failed save leaves no state, and the environments go on.
        assert!(made.words_per_env().is_some());
        played(&mut *made, 3, 3);
    }
}
