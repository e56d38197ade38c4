//! Fake GPUs: fakes of NVIDIA's libraries (`tests/fake_cuda`) under the real `libtorch_cuda.so`.
//!
//! Kernels do nothing, so numbers computed on the GPU are meaningless. The rest is real and counted: devices,
//! the order of calls, copies, NCCL's exchanges, synchronization.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// GPUs for processes started with [`FakeCuda::apply`].
#[derive(Debug)]
pub struct FakeCuda {
    built: PathBuf,
    folder: PathBuf,
    knobs: BTreeMap<String, String>,
}

/// Counters of processes by name (`launches`, `bytes_down`; see `tests/fake_cuda/driver.c`).
pub type Counts = BTreeMap<String, u64>;

/// Returns the folder of the libraries, built once. `without`: a symbol to leave out, `LIBRARY:SYMBOL`, or
/// empty.
fn built(without: &str) -> Result<PathBuf, String> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(without.to_owned()).or_insert_with(|| build(without)).clone()
}

fn build(without: &str) -> Result<PathBuf, String> {
    let torch =
        std::env::var_os("LIBTORCH").map_or_else(|| super::repository(".libtorch/torch"), PathBuf::from);
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| super::repository("target"), PathBuf::from);
    let name = match without {
        "" => "fake_cuda".to_owned(),
        symbol => format!("fake_cuda_without_{}", symbol.replace(':', "_")),
    };
    let out = target.join(name);
    let mut command = Command::new("python3");
    command.arg(super::repository("tests/fake_cuda/build.py")).arg(&torch).arg(&out);
    command.args(Some(without).filter(|symbol| !symbol.is_empty()));
    let output = command.output().map_err(|error| format!("python3: {error}"))?;
    let problem = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.success(), problem.as_str()) {
        (true, "") => Ok(out),
        (true, why) => Err(why.to_owned()),
        (false, _) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

impl FakeCuda {
    /// Creates GPUs with these knobs (`tests/fake_cuda/fake.h` lists them) and their files in `folder`;
    /// `None` if the test is skipped.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written.
    pub fn new(folder: &Path, knobs: &[(&str, &str)]) -> Option<FakeCuda> {
        let without = knobs.iter().find(|(knob, _)| *knob == "without");
        let built = match built(without.map_or("", |(_, symbol)| symbol)) {
            Ok(built) => built,
            Err(why) => {
                super::skipped(&format!("the fake CUDA libraries cannot be built: {why}"));
                return None;
            }
        };
        let mut fake = FakeCuda { built, folder: folder.to_path_buf(), knobs: BTreeMap::new() };
        fake.set("gpus", "1");
        for (knob, value) in knobs {
            fake.set(knob, value);
        }
        Some(fake)
    }

    /// Sets a knob; running processes read it again.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written.
    #[expect(clippy::expect_used, reason = "a test that cannot be set up must not pass")]
    pub fn set(&mut self, knob: &str, value: &str) {
        self.knobs.insert(knob.into(), value.into());
        let text: String = self.knobs.iter().map(|(knob, value)| format!("{knob}={value}\n")).collect();
        std::fs::write(self.folder.join("knobs.new"), text).expect("a folder for the fake GPUs");
        std::fs::rename(self.folder.join("knobs.new"), self.folder.join("knobs")).expect("the knobs");
    }

    /// Returns the folder of the libraries (see `tests/fake_cuda/build.py`).
    pub fn built(&self) -> &Path {
        &self.built
    }

    /// Returns the libtorch for `hosts.toml` or `LIBTORCH`.
    pub fn libtorch(&self) -> PathBuf {
        self.built.join("torch")
    }

    /// Returns the driver's folder, for `LD_LIBRARY_PATH`.
    pub fn driver(&self) -> PathBuf {
        self.built.join("driver")
    }

    /// Returns the environment variables with which a program sees these GPUs.
    pub fn env(&self) -> Vec<(String, String)> {
        let path = format!("{}:{}", self.libtorch().join("lib").display(), self.driver().display());
        vec![
            ("FAKE_CUDA".into(), self.folder.display().to_string()),
            ("LD_LIBRARY_PATH".into(), path),
            ("LIBTORCH".into(), self.libtorch().display().to_string()),
        ]
    }

    /// Shows a command all of these GPUs.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.env()).env_remove("CUDA_VISIBLE_DEVICES");
    }

    /// Returns the sums of the counters of a rank's processes; `-`: processes without a rank.
    pub fn counts(&self, rank: &str) -> Counts {
        let mut sums = Counts::new();
        for entry in std::fs::read_dir(self.folder.join("counters")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.split_once('.').is_none_or(|(of, _)| of != rank) {
                continue;
            }
            let lines = std::fs::read(entry.path()).unwrap_or_default();
            for line in lines.chunks_exact(32) {
                let (name, value) = line.split_at(24);
                let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
                let mut bytes = [0; 8];
                bytes.copy_from_slice(value);
                *sums.entry(name).or_default() += u64::from_le_bytes(bytes);
            }
        }
        sums
    }
}
