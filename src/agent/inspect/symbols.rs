//! Files with the code of a process: unwinding through them, and names for addresses.
//!
//! Owner: a helper thread of one inspection. Of a library of hundreds of megabytes only the sections that are
//! asked for are read ([`super::elf`]), and code from the memory of the process. Function names come from
//! symbol tables, files and lines from DWARF line tables where the file carries them.

use super::elf::{Elf, LazySection, Symbol};
use super::memory::{self, CodeMapping};
use addr2line::gimli::{self, EndianSlice, LittleEndian};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use rankdeck_proto::inspection::Frame;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

/// Debug information above this size is not read: making an index of it would take longer than an inspection
/// may.
const DWARF_BYTES: u64 = 256 << 20;
/// Bytes of code to read before an address.
const BEFORE: u64 = 7;

struct LoadedFile {
    path: String,
    /// Address in the process minus address in the file.
    bias: u64,
    start: u64,
    end: u64,
    elf: Elf,
    unwinding: UnwindTables,
    /// Functions around addresses that were asked for.
    functions: RefCell<BTreeMap<u64, Option<String>>>,
}

/// The call-frame information of a file, and the index of it, with their addresses in the file.
#[derive(Default)]
struct UnwindTables {
    frames: (u64, LazySection),
    index: (u64, LazySection),
}

impl UnwindTables {
    /// Where the function around this address of the file starts.
    fn function(&self, address: u64) -> Option<u64> {
        let bases =
            gimli::BaseAddresses::default().set_eh_frame(self.frames.0).set_eh_frame_hdr(self.index.0);
        let index = gimli::EhFrameHdr::new(&self.index.1, LittleEndian).parse(&bases, 8).ok()?;
        let frames = gimli::EhFrame::new(&self.frames.1, LittleEndian);
        let cie = <gimli::EhFrame<_> as gimli::UnwindSection<_>>::cie_from_offset;
        let found = index.table()?.fde_for_address(&frames, &bases, address, cie).ok()?;
        Some(found.initial_address())
    }
}

/// The files of one process.
pub(crate) struct Modules {
    pid: u32,
    loaded: Vec<LoadedFile>,
    unwinder: framehop::x86_64::UnwinderX86_64<LazySection>,
    cache: framehop::x86_64::CacheX86_64,
}

impl Modules {
    /// Opens the files; those that cannot be read are left out.
    pub fn new(pid: u32, mappings: &[CodeMapping]) -> Modules {
        let mut modules = Modules {
            pid,
            loaded: Vec::new(),
            unwinder: framehop::x86_64::UnwinderX86_64::new(),
            cache: framehop::x86_64::CacheX86_64::new(),
        };
        for mapping in mappings {
            modules.load(pid, mapping);
        }
        modules
    }

    fn load(&mut self, pid: u32, mapping: &CodeMapping) -> Option<()> {
        // Through its root: it may live in a mount namespace of its own. What is at the place of a file that
        // was replaced is another one.
        let there = Some(format!("/proc/{pid}/root{}", mapping.path)).filter(|_| !mapping.gone);
        let mapped =
            || Elf::open(Path::new(&format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end)));
        let elf = there.and_then(|path| Elf::open(Path::new(&path))).or_else(mapped)?;
        // Segments need not start at a page: what lies before one on its first page belongs to another, which
        // is mapped elsewhere.
        let segment = elf.segments.iter().find(|segment| {
            let end = segment.offset.saturating_add(segment.size.max(1));
            segment.executable && (segment.offset & !0xfff..end).contains(&mapping.offset)
        })?;
        let in_file = segment.address.wrapping_sub(segment.offset).wrapping_add(mapping.offset);
        let bias = mapping.start.wrapping_sub(in_file);
        let section = |name: &str| {
            let section = elf.section(name)?;
            Some((section.address..section.address.checked_add(section.size)?, elf.part(section)))
        };
        let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
        let whole = |svma: &Option<std::ops::Range<u64>>, part: &Option<LazySection>| {
            (svma.as_ref().map_or(0, |range| range.start), part.clone().unwrap_or_default())
        };
        let unwinding = UnwindTables {
            frames: whole(&eh_frame_svma, &eh_frame),
            index: whole(&eh_frame_hdr_svma, &eh_frame_hdr),
        };
        let info = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: section(".text").map(|(range, _)| range),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        };
        self.unwinder.add_module(Module::new(mapping.path.clone(), mapping.start..mapping.end, bias, info));
        let CodeMapping { path, start, end, .. } = mapping.clone();
        let functions = RefCell::default();
        self.loaded.push(LoadedFile { path, bias, start, end, elf, unwinding, functions });
        Some(())
    }

    /// A call returns to this address: code of one of the files stands there, behind a call (Intel SDM volume
    /// 2, CALL: `E8` with 32 bits, or `FF /2` with 2 to 7 bytes in all).
    pub fn is_return(&self, address: u64) -> bool {
        self.before(address).is_some_and(|before| {
            let indirect = |pair: &[u8]| matches!(pair, [0xff, form] if form & 0x38 == 0x10);
            before[2] == 0xe8 || before.windows(2).any(indirect)
        })
    }

    /// How many of these frames, innermost first, were not called by the one around them: that one calls
    /// another function there. A few are in order, since a function may end with a jump to the next.
    pub fn strays(&self, frames: &[u64]) -> usize {
        frames.windows(2).filter(|pair| self.is_stray(pair[0], pair[1] + 1) == Some(true)).count()
    }

    /// `None`: unknown. Calls through a register lead anywhere.
    fn is_stray(&self, inner: u64, back: u64) -> Option<bool> {
        let target = match self.before(back)? {
            [_, _, 0xe8, distance @ ..] => back.wrapping_add_signed(i64::from(i32::from_le_bytes(distance))),
            // Through a word next to the code, such as the linker's table of functions.
            [_, 0xff, 0x15, distance @ ..] => {
                let place = back.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
                u64::from_le_bytes(memory::read(self.pid, place, 8).ok()?.try_into().ok()?)
            }
            _ => return None,
        };
        // A stub of the linker is the beginning of no function.
        let called = self.function(target).filter(|start| *start == target)?;
        Some(self.function(inner)? != called)
    }

    /// Where the function around this address starts.
    fn function(&self, address: u64) -> Option<u64> {
        let loaded = self.file(address)?;
        let start = loaded.unwinding.function(address.wrapping_sub(loaded.bias))?;
        Some(start.wrapping_add(loaded.bias))
    }

    fn file(&self, address: u64) -> Option<&LoadedFile> {
        self.loaded.iter().find(|loaded| (loaded.start..loaded.end).contains(&address))
    }

    /// The code before this address, where that is one of the files'.
    fn before(&self, address: u64) -> Option<[u8; BEFORE as usize]> {
        let from = address
            .checked_sub(BEFORE)
            .filter(|from| *from >= self.file(address).map_or(u64::MAX, |l| l.start))?;
        memory::read(self.pid, from, BEFORE as usize).ok()?.try_into().ok()
    }

    /// A thread starts here: the program's entry point, or the C library, which starts all other threads.
    ///
    /// Unwinding also ends in the middle of a stack, where an invalid record leads to an empty one.
    fn is_bottom(&self, address: u64) -> bool {
        const C_LIBRARIES: [&str; 4] = ["libc.so", "libc-", "libpthread", "ld-musl"];
        /// More than `_start` takes on any architecture, bytes.
        const ENTRY_BYTES: u64 = 64;
        self.file(address).is_some_and(|loaded| {
            let file = loaded.path.rsplit('/').next().unwrap_or(&loaded.path);
            let entry = loaded.elf.entry..loaded.elf.entry.saturating_add(ENTRY_BYTES);
            C_LIBRARIES.iter().any(|name| file.starts_with(name))
                || entry.contains(&address.wrapping_sub(loaded.bias))
        })
    }

    /// The frames of a stack, innermost first, and whether its bottom was reached.
    pub fn unwind(
        &mut self,
        ip: u64,
        sp: u64,
        bp: u64,
        most: usize,
        read: impl Fn(u64) -> Option<u64>,
    ) -> (Vec<u64>, bool) {
        let registers = framehop::x86_64::UnwindRegsX86_64::new(ip, sp, bp);
        let mut read = |address| read(address).ok_or(());
        let mut frames = self.unwinder.iter_frames(ip, registers, &mut self.cache, &mut read);
        let mut found = Vec::new();
        while found.len() < most {
            match frames.next() {
                Ok(Some(FrameAddress::InstructionPointer(address))) => found.push(address),
                Ok(Some(FrameAddress::ReturnAddress(address))) => found.push(address.get() - 1),
                Ok(None) => {
                    let whole = found.last().is_some_and(|last| self.is_bottom(*last));
                    return (found, whole);
                }
                Err(_) => break,
            }
        }
        (found, false)
    }

    /// Frames for addresses, inlined calls innermost first; addresses outside of all files are left out.
    /// Without `lines` only symbol tables are read, which is much quicker.
    pub fn names(&self, addresses: &[u64], lines: bool) -> BTreeMap<u64, Vec<Frame>> {
        let mut named = BTreeMap::new();
        for loaded in &self.loaded {
            let inside: Vec<u64> = addresses
                .iter()
                .copied()
                .filter(|address| (loaded.start..loaded.end).contains(address))
                .collect();
            if !inside.is_empty() {
                named.extend(loaded.names(&inside, lines));
            }
        }
        named
    }
}

impl LoadedFile {
    fn names(&self, addresses: &[u64], lines: bool) -> BTreeMap<u64, Vec<Frame>> {
        let symbols = self.functions(addresses);
        let sections = lines.then(|| debug_information(&self.elf)).flatten();
        let lines = sections.as_ref().and_then(line_tables);
        let library = self.path.rsplit('/').next().unwrap_or(&self.path);
        addresses
            .iter()
            .map(|address| {
                let at = address.wrapping_sub(self.bias);
                let mut frames = lines.as_ref().map(|lines| places(lines, at)).unwrap_or_default();
                let outer = symbols.get(address).cloned();
                if frames.is_empty() {
                    frames.push(Frame {
                        function: outer.unwrap_or_else(|| format!("{at:#x}")),
                        file: Some(library.to_owned()),
                        line: None,
                    });
                } else if let (Some(last), Some(outer)) = (frames.last_mut(), outer)
                    && last.function.is_empty()
                {
                    last.function = outer;
                }
                (*address, frames)
            })
            .collect()
    }

    /// The functions around addresses, in one pass over the symbol tables for those that are new: keeping an
    /// index of a library's hundreds of thousands would cost more than it saves.
    fn functions(&self, addresses: &[u64]) -> BTreeMap<u64, String> {
        let mut known = self.functions.borrow_mut();
        let new = addresses.iter().filter(|address| !known.contains_key(address));
        let mut offsets: Vec<(u64, u64)> =
            new.map(|address| (address.wrapping_sub(self.bias), *address)).collect();
        offsets.sort_unstable();
        if !offsets.is_empty() {
            let found = self.symbols(&offsets);
            let names = found.keys().copied().zip(self.elf.names(found.values()));
            known.extend(offsets.iter().map(|(_, address)| (*address, None)));
            known.extend(names.map(|(address, name)| (address, name.as_deref().map(demangle))));
        }
        let of = |address: &u64| Some((*address, known.get(address)?.clone()?));
        addresses.iter().filter_map(of).collect()
    }

    /// Returns the symbol of each address. `addresses`: in the file, sorted, and in the process.
    fn symbols(&self, addresses: &[(u64, u64)]) -> BTreeMap<u64, Symbol> {
        let mut found: BTreeMap<u64, Symbol> = BTreeMap::new();
        self.elf.functions(|symbol| {
            // A symbol without a size reaches as far as the next one: take the closest below.
            let size = if symbol.size == 0 { 1 << 16 } else { symbol.size };
            let end = symbol.start.saturating_add(size);
            let from = addresses.partition_point(|(at, _)| *at < symbol.start);
            for (_, address) in addresses[from..].iter().take_while(|(at, _)| *at < end) {
                if found.get(address).is_none_or(|known| symbol.start > known.start) {
                    found.insert(*address, symbol);
                }
            }
        });
        found
    }
}

fn demangle(name: &str) -> String {
    let text = addr2line::demangle_auto(name.into(), None).into_owned();
    // Rust's hash at the end is noise.
    let text = match text.rsplit_once("::h") {
        Some((head, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            head.to_owned()
        }
        _ => text,
    };
    text.chars().take(300).collect()
}

type Lines<'a> = addr2line::Context<EndianSlice<'a, LittleEndian>>;

/// The sections with line tables and what belongs to them, where a file has them and they are not too large.
fn debug_information(elf: &Elf) -> Option<gimli::DwarfSections<LazySection>> {
    let size = |name: &str| elf.section(name).map_or(0, |section| section.size);
    if size(".debug_info") == 0 || size(".debug_line") == 0 {
        return None;
    }
    let mut all = 0_u64;
    let load = |id: gimli::SectionId| -> Result<LazySection, gimli::Error> {
        let section = elf.section(id.name());
        all = all.saturating_add(section.map_or(0, |section| section.size));
        Ok(section.map(|section| elf.part(section)).unwrap_or_default())
    };
    let sections = gimli::DwarfSections::load(load).ok()?;
    (all <= DWARF_BYTES).then_some(sections)
}

fn line_tables(sections: &gimli::DwarfSections<LazySection>) -> Option<Lines<'_>> {
    addr2line::Context::from_dwarf(sections.borrow(|part| EndianSlice::new(part, LittleEndian))).ok()
}

fn places(lines: &Lines<'_>, at: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    let Ok(mut frames) = lines.find_frames(at).skip_all_loads() else { return found };
    while let Ok(Some(frame)) = frames.next() {
        let function = frame.function.and_then(|name| name.raw_name().ok().map(|name| demangle(&name)));
        let (file, line) =
            frame.location.map_or((None, None), |place| (place.file.map(str::to_owned), place.line));
        if file.is_some() {
            found.push(Frame { function: function.unwrap_or_default(), file, line });
        }
    }
    found
}
