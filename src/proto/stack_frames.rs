//! Whose code the frames of a stack are: the program's, a library's, or what both wait in.

use crate::inspection::Frame;

/// Whose code a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameOwner {
    /// The program itself.
    Program,
    /// A library that the program uses: its loop may be there.
    Library,
    /// PyTorch, the language's own library, the system, or rankdeck's hook: what the program waits in.
    System,
}

impl FrameOwner {
    fn of(file: Option<&str>) -> FrameOwner {
        match file {
            Some(file) if file.ends_with(".py") => FrameOwner::of_python(file),
            Some(file) if is_source(file) && !NATIVE_SYSTEM.iter().any(|part| file.contains(part)) => {
                FrameOwner::Program
            }
            _ => FrameOwner::System,
        }
    }

    fn of_python(file: &str) -> FrameOwner {
        if let Some(below) = installed(file) {
            let package = below.split(['/', '.']).next().unwrap_or(below);
            return if TORCH.contains(&package) { FrameOwner::System } else { FrameOwner::Library };
        }
        let is_version = |folder: &str| {
            let number = folder.strip_prefix("python").filter(|number| !number.is_empty());
            number.is_some_and(|number| {
                number.starts_with(|c: char| c.is_ascii_digit())
                    && number.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            })
        };
        // `lib/python3.11`, also below `lib64`.
        let parts = || file.split('/');
        let is_standard =
            || parts().zip(parts().skip(1)).any(|(lib, folder)| lib.starts_with("lib") && is_version(folder));
        if is_of_hook(file) || is_standard() || file.starts_with('<') {
            FrameOwner::System
        } else {
            FrameOwner::Program
        }
    }
}

/// PyTorch's packages.
const TORCH: [&str; 3] = ["torch", "functorch", "torchgen"];
/// Parts of paths of native code below the program.
const NATIVE_SYSTEM: [&str; 12] = [
    "/rustc/",
    "site-packages",
    "dist-packages",
    ".cargo/registry",
    "/usr/lib",
    "/lib/",
    "libtorch",
    "libc.so",
    "libpthread",
    "ld-linux",
    "/library/std",
    "/library/core",
];

/// A file of source code, not a library of which no source is known.
fn is_source(file: &str) -> bool {
    [".rs", ".cc", ".cpp", ".c", ".cu", ".h", ".pyx"].iter().any(|end| file.ends_with(end))
}

/// A file of the hook that agents put before a program, in the folder of the run.
fn is_of_hook(file: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    folder.ends_with("/python")
        && (name == "sitecustomize.py" || name.starts_with("rankdeck") && name.ends_with(".py"))
}

/// The part of a path below the folder in which a package was installed.
fn installed(file: &str) -> Option<&str> {
    let after = |folder: &str| file.rfind(folder).and_then(|at| file.get(at + folder.len()..));
    after("site-packages/").or_else(|| after("dist-packages/"))
}

impl Frame {
    /// Whose code it is.
    pub fn owner(&self) -> FrameOwner {
        FrameOwner::of(self.file.as_deref())
    }

    /// Whether it belongs to rankdeck's hook.
    pub fn is_of_hook(&self) -> bool {
        self.file.as_deref().is_some_and(is_of_hook)
    }

    /// Returns the path of its file; of a library without the folder in which it was installed.
    pub fn path(&self) -> &str {
        let file = self.file.as_deref().unwrap_or_default();
        installed(file).unwrap_or(file)
    }

    /// Returns `FILE:LINE`.
    pub fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}", self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_follows_from_the_path() {
        for (file, owner) in [
            ("/home/u/lib/train.py", FrameOwner::Program),
            ("train.py", FrameOwner::Program),
            ("/w/python/train.py", FrameOwner::Program),
            ("/v/lib/python3.11/site-packages/ding/worker/evaluator.py", FrameOwner::Library),
            ("/usr/lib/python3/dist-packages/requests/api.py", FrameOwner::Library),
            ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", FrameOwner::System),
            ("/v/lib/python3.11/site-packages/torchrl/envs/vec_envs.py", FrameOwner::Library),
            ("/usr/lib/python3.11/threading.py", FrameOwner::System),
            ("/v/lib64/python3.13t/queue.py", FrameOwner::System),
            ("/w/runs/r/gen0/python/rankdeck_hook.py", FrameOwner::System),
            ("<frozen importlib._bootstrap>", FrameOwner::System),
            ("src/trainer/algo/ppg.rs", FrameOwner::Program),
            ("/usr/lib/libc.so.6", FrameOwner::System),
            ("/rustc/abc/library/core/src/ops.rs", FrameOwner::System),
        ] {
            let frame = Frame { file: Some(file.into()), ..Frame::default() };
            assert_eq!(frame.owner(), owner, "{file}");
            assert_eq!(frame.is_of_hook(), file.ends_with("rankdeck_hook.py"), "{file}");
        }
        assert_eq!(Frame::default().owner(), FrameOwner::System);
    }

    #[test]
    fn place_of_a_library_starts_below_its_installation() {
        let file = Some("/v/lib/python3.11/site-packages/ding/entry.py".into());
        let frame = Frame { file, line: Some(9), ..Frame::default() };
        assert_eq!(frame.place(), "ding/entry.py:9");
    }
}
