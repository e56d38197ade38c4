//! Object files of a process, read and never mapped: a writable library may be truncated,
//! and reading a missing page of a mapping kills the reader (SIGBUS). Here it is a section that cannot be
//! read.
//!
//! Owner: a helper thread of one inspection. A section is read when it is first asked for, and shared with
//! all inspections of that moment: the ranks of a host have the same libraries. A file that is no longer the one
//! that was opened first gives nothing more. Format: System V ABI, chapters 4 and 5, 64 bits, little-endian.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Largest section that is read.
const SECTION_BYTES: u64 = 128 << 20;
/// Most segments and sections, and most bytes of the sections' names.
const HEADERS: usize = 4096;
const NAMES_BYTES: u64 = 1 << 20;
/// Longest name of a symbol.
const NAME_BYTES: u64 = 4096;
/// Symbols in one read, and bytes of a symbol.
const SYMBOLS: u64 = 1 << 15;
const SYMBOL_BYTES: u64 = 24;

const LOADED: u32 = 1;
const EXECUTABLE: u32 = 1;
const NO_BITS: u32 = 8;
const COMPRESSED: u64 = 0x800;
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;

/// Identity of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Where a file is, and which one it was when it was opened first.
#[derive(Debug)]
struct ElfSource {
    path: PathBuf,
    known: Identity,
}

impl ElfSource {
    fn open(path: &Path) -> Option<(File, ElfSource)> {
        // By now there may be anything at that place; opening a FIFO would wait for its other end.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let data = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let known = Identity {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            changed: (data.mtime(), data.mtime_nsec()),
        };
        Some((file, ElfSource { path: path.to_owned(), known }))
    }

    /// The same file again.
    fn again(&self) -> Option<File> {
        ElfSource::open(&self.path).filter(|(_, now)| now.known == self.known).map(|(file, _)| file)
    }

    /// Bytes that the file has, all of them or none.
    fn read(&self, file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.known.size);
        if !inside || size > SECTION_BYTES {
            return None;
        }
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

type SectionKey = (Identity, u64, u64);
type ReadSlot = Arc<Mutex<Weak<Vec<u8>>>>;

/// Files of running inspections. A reader of the same bytes waits for them: they
/// come from the same storage.
static READ: Mutex<BTreeMap<SectionKey, ReadSlot>> = Mutex::new(BTreeMap::new());

fn shared(source: &ElfSource, offset: u64, size: u64) -> Option<Arc<Vec<u8>>> {
    let slot = {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |slot: &ReadSlot| slot.try_lock().map_or(true, |bytes| bytes.strong_count() > 0);
        read.retain(|_, slot| Arc::strong_count(slot) > 1 || held(slot));
        Arc::clone(read.entry((source.known, offset, size)).or_default())
    };
    let mut bytes = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = bytes.upgrade() {
        return Some(known);
    }
    let fresh = Arc::new(source.read(&source.again()?, offset, size)?);
    *bytes = Arc::downgrade(&fresh);
    Some(fresh)
}

/// A section's bytes, read at first use; empty when unreadable.
#[derive(Clone, Default)]
pub(super) struct LazySection(Option<Arc<Lazy>>);

struct Lazy {
    source: Arc<ElfSource>,
    offset: u64,
    size: u64,
    bytes: OnceLock<Arc<Vec<u8>>>,
}

impl Deref for LazySection {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(lazy) = &self.0 else { return &[] };
        lazy.bytes.get_or_init(|| shared(&lazy.source, lazy.offset, lazy.size).unwrap_or_default())
    }
}

/// A part of the file that is loaded into memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadSegment {
    pub executable: bool,
    pub offset: u64,
    pub size: u64,
    pub address: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Section {
    name: String,
    kind: u32,
    pub address: u64,
    offset: u64,
    pub size: u64,
    link: usize,
}

/// A function of a symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    pub start: u64,
    pub size: u64,
    /// Where its name stands in the file, and where the names end.
    name: (u64, u64),
}

/// The headers of a file.
pub(super) struct Elf {
    source: Arc<ElfSource>,
    /// Address of the program's first instruction.
    pub entry: u64,
    pub segments: Vec<LoadSegment>,
    sections: Vec<Section>,
}

impl Elf {
    /// Errors: it is not such a file, or unreadable.
    pub fn open(path: &Path) -> Option<Elf> {
        let (file, source) = ElfSource::open(path)?;
        let header = source.read(&file, 0, 64)?;
        // Magic, 64 bits, little-endian.
        if header.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
            return None;
        }
        let table = |at: u64, each: u64, count: u64| -> Option<Vec<u8>> {
            let count = count.min(HEADERS as u64);
            if count == 0 { Some(Vec::new()) } else { source.read(&file, at, each.checked_mul(count)?) }
        };
        let half = |at: usize| u16_at(&header, at).map(u64::from);
        let (each_segment, each_section) = (half(54)?, half(58)?);
        let segments = table(u64_at(&header, 32)?, each_segment, half(56)?)?;
        let segments = pieces(&segments, each_segment).filter_map(segment).collect();
        let sections = table(u64_at(&header, 40)?, each_section, half(60)?).unwrap_or_default();
        let mut sections: Vec<(u32, Section)> = pieces(&sections, each_section).filter_map(section).collect();
        let names = sections.get(half(62)? as usize).filter(|(_, names)| names.size <= NAMES_BYTES);
        let names = names.and_then(|(_, names)| source.read(&file, names.offset, names.size));
        for (at, section) in &mut sections {
            let text = names.as_ref().and_then(|names| names.get(*at as usize..)).unwrap_or_default();
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
            section.name = String::from_utf8_lossy(&text[..end]).into_owned();
        }
        let sections = sections.into_iter().map(|(_, section)| section).collect();
        Some(Elf { entry: u64_at(&header, 24)?, source: Arc::new(source), segments, sections })
    }

    /// A section that has bytes in the file.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name && section.kind != NO_BITS)
    }

    /// Its bytes, later.
    pub fn part(&self, section: &Section) -> LazySection {
        let source = Arc::clone(&self.source);
        let Section { offset, size, .. } = *section;
        LazySection(Some(Arc::new(Lazy { source, offset, size, bytes: OnceLock::new() })))
    }

    /// The functions of its symbol tables, the whole one before that for the dynamic linker. There are too
    /// many to keep.
    pub fn functions(&self, mut each: impl FnMut(Symbol)) {
        let Some(file) = self.source.again() else { return };
        for table in [".symtab", ".dynsym"].into_iter().filter_map(|name| self.section(name)) {
            let Some(names) = self.sections.get(table.link) else { continue };
            let mut at = 0;
            while at < table.size {
                let size = (table.size - at).min(SYMBOLS * SYMBOL_BYTES);
                let Some(bytes) = self.source.read(&file, table.offset.saturating_add(at), size) else {
                    break;
                };
                pieces(&bytes, SYMBOL_BYTES).filter_map(|bytes| function(bytes, names)).for_each(&mut each);
                at += size;
            }
        }
    }

    /// The names of symbols.
    pub fn names<'a>(&self, symbols: impl Iterator<Item = &'a Symbol>) -> Vec<Option<String>> {
        let Some(file) = self.source.again() else { return symbols.map(|_| None).collect() };
        let name = |symbol: &Symbol| {
            let (at, end) = symbol.name;
            let bytes = self.source.read(&file, at, end.checked_sub(at)?.min(NAME_BYTES))?;
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        symbols.map(name).collect()
    }
}

fn pieces(bytes: &[u8], each: u64) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact((each as usize).max(1))
}

fn segment(bytes: &[u8]) -> Option<LoadSegment> {
    (u32_at(bytes, 0)? == LOADED).then_some(LoadSegment {
        executable: u32_at(bytes, 4)? & EXECUTABLE != 0,
        offset: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        size: u64_at(bytes, 32)?,
    })
}

/// A section, and where its name is among the names.
fn section(bytes: &[u8]) -> Option<(u32, Section)> {
    // What is compressed would have to be taken apart first.
    let kind = if u64_at(bytes, 8)? & COMPRESSED == 0 { u32_at(bytes, 4)? } else { NO_BITS };
    let section = Section {
        name: String::new(),
        kind,
        address: u64_at(bytes, 16)?,
        offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
        link: u32_at(bytes, 40)? as usize,
    };
    Some((u32_at(bytes, 0)?, section))
}

fn function(bytes: &[u8], names: &Section) -> Option<Symbol> {
    let (start, size) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    if start == 0 || !matches!(bytes.get(4)? & 0xf, FUNCTION | INDIRECT_FUNCTION) {
        return None;
    }
    let name = names.offset.checked_add(u64::from(u32_at(bytes, 0)?))?;
    Some(Symbol { start, size, name: (name, names.offset.checked_add(names.size)?) })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::memory::{self, CodeMapping};
    use crate::inspect::stacks;
    use crate::inspect::symbols::Modules;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    fn copy_of_this_program(folder: &Path) -> PathBuf {
        let path = folder.join("library.so");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        path
    }

    #[test]
    fn functions_and_sections_of_a_program_are_read() {
        let elf = Elf::open(Path::new("/proc/self/exe")).unwrap();
        assert!(elf.segments.iter().any(|segment| segment.executable && segment.size > 0));
        let frames = elf.section(".eh_frame").unwrap();
        assert_eq!(elf.part(frames).len() as u64, frames.size);
        assert!(elf.section(".bss").is_none(), "it has no bytes");
        let mut found = Vec::new();
        elf.functions(|symbol| found.push(symbol));
        // Rust's own functions may be inlined wherever they are called.
        let at = elf.names(found.iter()).iter().position(|name| name.as_deref() == Some("main"));
        assert!(found[at.unwrap()].size > 0);
    }

    #[test]
    fn cut_off_bytes_are_missing_and_shared_ones_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = copy_of_this_program(folder.path());
        let elf = Elf::open(&path).unwrap();
        let frames = || elf.part(elf.section(".eh_frame").unwrap());
        let (first, second) = (frames(), frames());
        assert!(!first.is_empty());
        assert!(std::ptr::eq(&*first, &*second), "both have the same bytes");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        assert!(std::ptr::eq(&*first, &*second), "what was read stays");
        drop((first, second));
        assert!(frames().is_empty());
        let mut found = 0;
        elf.functions(|_| found += 1);
        assert_eq!(found, 0);
        // Its headers name sections that are not there.
        assert!(Elf::open(&path).is_none_or(|cut| cut.section(".eh_frame").is_none()));
    }

    #[test]
    fn headers_of_any_content_are_no_trouble() {
        let folder = tempfile::tempdir().unwrap();
        let path = copy_of_this_program(folder.path());
        let whole = std::fs::read(&path).unwrap();
        let header = whole.get(..64).unwrap();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..2_000 {
            let mut bytes = header.to_vec();
            for _ in 0..4 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes[6 + (random >> 33) as usize % 58] = (random >> 56) as u8;
            }
            bytes.extend_from_slice(&whole[64..4096]);
            std::fs::write(&path, &bytes).unwrap();
            if let Some(elf) = Elf::open(&path) {
                let _ = elf.section(".eh_frame").map(|section| elf.part(section).len());
                elf.functions(|_| {});
            }
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Elf::open(&path).is_none(), "no file");
    }

    /// A Python program that has mapped the code of its own library, and never reads it.
    struct MappedLibrary {
        child: Child,
        library: PathBuf,
        whole: Vec<u8>,
        _folder: tempfile::TempDir,
    }

    impl Drop for MappedLibrary {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl MappedLibrary {
        fn start(name: &str) -> MappedLibrary {
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
            MappedLibrary { child, whole: std::fs::read(&library).unwrap(), library, _folder: folder }
        }

        fn mapping(&self) -> CodeMapping {
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
                    while changes.load(Ordering::SeqCst) == before
                        && begun.elapsed() < Duration::from_secs(60)
                    {
                        read();
                    }
                }
                over.store(true, Ordering::SeqCst);
            });
        }
    }

    #[test]
    fn truncated_library_loses_its_symbols() {
        let program = MappedLibrary::start("libsimulator.so");
        let (mapping, address) = (program.mapping(), program.address());
        let code = [mapping];
        let named = |modules: &Modules| {
            let frames = modules.names(&[address], true).remove(&address).unwrap();
            frames.into_iter().next().unwrap()
        };
        let whole = Modules::new(program.child.id(), &code);
        assert!(!named(&whole).function.starts_with("0x"), "{:?}", named(&whole));
        let mut cut = Modules::new(program.child.id(), &code);
        program.file().set_len(4096).unwrap();
        assert!(named(&cut).function.starts_with("0x"), "{:?}", named(&cut));
        assert_eq!(named(&cut).file.as_deref(), Some("libsimulator.so"));
        assert!(!cut.is_return(address + 16), "its code is gone, too");
        let (frames, _) = cut.unwind(address, 8, 0, 8, |_| Some(address));
        assert_eq!(frames.first(), Some(&address));
    }

    #[test]
    fn library_that_changes_while_read_is_harmless() {
        let program = MappedLibrary::start("libsimulator.so");
        let (code, address) = ([program.mapping()], program.address());
        program.read_while_it_changes(|| {
            let mut modules = Modules::new(program.child.id(), &code);
            let _ = modules.unwind(address, 8, 0, 8, |_| Some(address));
            let _ = (modules.is_return(address + 16), modules.names(&[address], true));
        });
    }

    /// py-spy maps what it takes for the interpreter's library.
    #[test]
    fn changed_interpreter_library_is_harmless() {
        let program = MappedLibrary::start("libpython3.11.so");
        program.read_while_it_changes(|| {
            let _ = stacks::python_stacks(program.child.id());
        });
        assert!(rankdeck_proto::mapping::reading(|| stacks::is_interpreter(program.child.id(), &[])));
    }
}
