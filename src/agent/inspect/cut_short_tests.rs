//! Libraries of a process that somebody cuts short while they are read: an upgrade in place, a full disk.

use super::elf::Elf;
use super::memory::{self, Mapping};
use super::python;
use super::symbols::Modules;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A Python program that has mapped the code of a library of its own, and never looks at it.
struct Victim {
    child: Child,
    library: PathBuf,
    whole: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Victim {
    fn start(name: &str) -> Victim {
        let own = memory::code(std::process::id()).unwrap();
        let c_library = own.iter().find(|mapping| mapping.path.contains("/libc.so")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(name);
        std::fs::copy(&c_library.path, &library).unwrap();
        let elf = Elf::open(&library).unwrap();
        let code = elf.segments.iter().find(|segment| segment.executable).unwrap();
        let program = "import mmap, sys, time\nfile = open(sys.argv[1], 'rb')\nfrom_, bytes = int(sys.argv[2]), int(sys.argv[3])\n\
            code = mmap.mmap(file.fileno(), bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC, offset=from_)\n\
            print('there', flush=True)\ntime.sleep(1000)";
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(&library);
        command.args([(code.offset & !0xfff).to_string(), code.size.to_string()]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        Victim { child, whole: std::fs::read(&library).unwrap(), library, _folder: folder }
    }

    fn mapping(&self) -> Mapping {
        let code = memory::code(self.child.id()).unwrap();
        code.into_iter().find(|mapping| *mapping.path == *self.library.to_string_lossy()).unwrap()
    }

    fn file(&self) -> File {
        OpenOptions::new().write(true).open(&self.library).unwrap()
    }

    /// An address inside the first function whose name is known.
    fn address(&self) -> u64 {
        let elf = Elf::open(&self.library).unwrap();
        let code = elf.segments.iter().find(|segment| segment.executable).unwrap();
        let mut first = None;
        elf.functions(|symbol| {
            let inside = (code.address..code.address + code.size).contains(&symbol.start);
            first = first.or(Some(symbol).filter(|_| inside));
        });
        self.mapping().start + first.unwrap().start - (code.address & !0xfff)
    }

    /// Reads again and again while the library is cut short and written again; as often as it takes for many
    /// reads to meet a change.
    fn read_while_it_changes(&self, mut read: impl FnMut()) {
        let (file, over, changes) = (self.file(), AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    file.set_len(4096).unwrap();
                    std::thread::yield_now();
                    file.write_all_at(&self.whole, 0).unwrap();
                    changes.fetch_add(1, Ordering::SeqCst);
                }
            });
            let begun = Instant::now();
            for _ in 0..60 {
                let before = changes.load(Ordering::SeqCst);
                read();
                while changes.load(Ordering::SeqCst) == before && begun.elapsed() < Duration::from_secs(60) {
                    read();
                }
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}

#[test]
fn a_library_that_is_cut_short_between_opening_and_reading_loses_its_names() {
    let victim = Victim::start("libsimulator.so");
    let (mapping, address) = (victim.mapping(), victim.address());
    let code = [mapping];
    let named = |modules: &Modules| {
        let frames = modules.names(&[address], true).remove(&address).unwrap();
        frames.into_iter().next().unwrap()
    };
    let whole = Modules::new(victim.child.id(), &code);
    assert!(!named(&whole).function.starts_with("0x"), "{:?}", named(&whole));
    let mut cut = Modules::new(victim.child.id(), &code);
    victim.file().set_len(4096).unwrap();
    assert!(named(&cut).function.starts_with("0x"), "{:?}", named(&cut));
    assert_eq!(named(&cut).file.as_deref(), Some("libsimulator.so"));
    assert!(!cut.is_return(address + 16), "its code is gone, too");
    let (frames, _) = cut.unwind(address, 8, 0, 8, |_| Some(address));
    assert_eq!(frames.first(), Some(&address));
}

#[test]
fn a_library_that_changes_while_it_is_read_is_no_trouble() {
    let victim = Victim::start("libsimulator.so");
    let (code, address) = ([victim.mapping()], victim.address());
    victim.read_while_it_changes(|| {
        let mut modules = Modules::new(victim.child.id(), &code);
        let _ = modules.unwind(address, 8, 0, 8, |_| Some(address));
        let _ = (modules.is_return(address + 16), modules.names(&[address], true));
    });
}

/// py-spy maps what it takes for the interpreter's library.
#[test]
fn an_interpreters_library_that_changes_while_it_is_read_is_no_trouble() {
    let victim = Victim::start("libpython3.11.so");
    victim.read_while_it_changes(|| {
        let _ = python::stacks(victim.child.id());
    });
    assert!(rankdeck_proto::mapping::reading(|| python::is_interpreter(victim.child.id(), &[])));
}
