//! Mapped files of a process: unwinding through them, and names for addresses.
//!
//! Owner: a helper thread of one inspection. Files are mapped, not read: of a library of hundreds of
//! megabytes only the pages that are asked for come in. Function names come from symbol tables, files and
//! lines from DWARF line tables where the file carries them.

use super::memory::{self, Mapping};
use addr2line::gimli::{self, EndianSlice, LittleEndian};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use memmap2::Mmap;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};
use rankdeck_proto::inspection::Frame;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;

/// Debug information above this size is not read: making an index of it would take longer than an inspection
/// may.
const DWARF_BYTES: u64 = 512 << 20;

/// Segments with code (ELF's PF_X).
const EXECUTABLE: u32 = 1;

/// Part of a mapped file.
#[derive(Clone, Default)]
struct Part {
    map: Option<Arc<Mmap>>,
    from: usize,
    to: usize,
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_ref().and_then(|map| map.get(self.from..self.to)).unwrap_or_default()
    }
}

struct Loaded {
    path: String,
    /// Address in the process minus address in the file.
    bias: u64,
    start: u64,
    end: u64,
    /// Where in the file the mapping begins.
    offset: u64,
    map: Arc<Mmap>,
    unwinding: Unwinding,
}

/// The call-frame information of a file, and the index of it, with their addresses in the file.
#[derive(Default)]
struct Unwinding {
    frames: (u64, Part),
    index: (u64, Part),
}

impl Unwinding {
    /// Where the function around this address of the file begins.
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
pub struct Modules {
    pid: u32,
    loaded: Vec<Loaded>,
    unwinder: framehop::x86_64::UnwinderX86_64<Part>,
    cache: framehop::x86_64::CacheX86_64,
}

impl Modules {
    /// Maps the files; those that cannot be opened are left out.
    pub fn new(pid: u32, mappings: &[Mapping]) -> Modules {
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

    fn load(&mut self, pid: u32, mapping: &Mapping) -> Option<()> {
        // Through its root: it may live in a mount namespace of its own.
        let file = File::open(format!("/proc/{pid}/root{}", mapping.path))
            .or_else(|_| File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end)))
            .ok()?;
        // SAFETY: mapped read-only and privately; a file that shrinks meanwhile would be a program
        // overwritten while it runs, which the kernel refuses for executables (ETXTBSY), and loaders replace
        // libraries by renaming.
        let map = Arc::new(unsafe { Mmap::map(&file) }.ok()?);
        let elf = object::File::parse(&map[..]).ok()?;
        // Segments need not begin at a page: what lies before one on its first page belongs to another, which
        // is mapped elsewhere.
        let segment = elf.segments().find(|segment| {
            let (offset, size) = segment.file_range();
            let executable =
                matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & EXECUTABLE != 0);
            executable && (offset & !0xfff..offset + size.max(1)).contains(&mapping.offset)
        })?;
        let in_file = segment.address().wrapping_sub(segment.file_range().0).wrapping_add(mapping.offset);
        let bias = mapping.start.wrapping_sub(in_file);
        let section = |name: &str| {
            let section = elf.section_by_name(name)?;
            let (from, size) = section.file_range()?;
            let range = section.address()..section.address() + section.size();
            Some((range, Part { map: Some(map.clone()), from: from as usize, to: (from + size) as usize }))
        };
        let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
        let (text_svma, text) = section(".text").unzip();
        let whole = |svma: &Option<std::ops::Range<u64>>, part: &Option<Part>| {
            (svma.as_ref().map_or(0, |range| range.start), part.clone().unwrap_or_default())
        };
        let unwinding = Unwinding {
            frames: whole(&eh_frame_svma, &eh_frame),
            index: whole(&eh_frame_hdr_svma, &eh_frame_hdr),
        };
        let info = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma,
            text,
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        };
        self.unwinder.add_module(Module::new(mapping.path.clone(), mapping.start..mapping.end, bias, info));
        let Mapping { path, start, end, offset, .. } = mapping.clone();
        self.loaded.push(Loaded { path, bias, start, end, offset, map: map.clone(), unwinding });
        Some(())
    }

    /// A call returns to this address: code of one of the files stands there, behind a call (Intel SDM volume
    /// 2, CALL: `E8` with 32 bits, or `FF /2` with 2 to 7 bytes in all).
    pub fn is_return(&self, address: u64) -> bool {
        self.file(address).and_then(|loaded| loaded.before(address)).is_some_and(|before| {
            let indirect = |pair: &[u8]| matches!(pair, [0xff, form] if form & 0x38 == 0x10);
            before[2] == 0xe8 || before.windows(2).any(indirect)
        })
    }

    /// How many of these frames, innermost first, were not called by the one around them: that one calls
    /// another function there. A few are in order, since a function may end with a jump to the next.
    pub fn strays(&self, frames: &[u64]) -> usize {
        frames.windows(2).filter(|pair| self.is_stray(pair[0], pair[1] + 1) == Some(true)).count()
    }

    /// `None`: it cannot be told. Calls through a register lead anywhere.
    fn is_stray(&self, inner: u64, back: u64) -> Option<bool> {
        let target = match self.file(back)?.before(back)? {
            [_, _, 0xe8, distance @ ..] => back.wrapping_add_signed(i64::from(i32::from_le_bytes(distance))),
            // Through a word beside the code, such as the linker's table of functions.
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

    /// Where the function around this address begins.
    fn function(&self, address: u64) -> Option<u64> {
        let loaded = self.file(address)?;
        let start = loaded.unwinding.function(address.wrapping_sub(loaded.bias))?;
        Some(start.wrapping_add(loaded.bias))
    }

    fn file(&self, address: u64) -> Option<&Loaded> {
        self.loaded.iter().find(|loaded| (loaded.start..loaded.end).contains(&address))
    }

    /// A thread begins here: the program's entry point, or the C library, which starts all other threads.
    ///
    /// Unwinding also ends in the middle of a stack, where a record that is none leads to an empty one.
    fn is_bottom(&self, address: u64) -> bool {
        const C_LIBRARIES: [&str; 4] = ["libc.so", "libc-", "libpthread", "ld-musl"];
        /// More than `_start` takes on any architecture, bytes.
        const ENTRY_BYTES: u64 = 64;
        self.file(address).is_some_and(|loaded| {
            let file = loaded.path.rsplit('/').next().unwrap_or(&loaded.path);
            let entry = || object::File::parse(&loaded.map[..]).map(|elf| elf.entry());
            C_LIBRARIES.iter().any(|name| file.starts_with(name))
                || entry().is_ok_and(|entry| {
                    (entry..entry + ENTRY_BYTES).contains(&address.wrapping_sub(loaded.bias))
                })
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

impl Loaded {
    /// The bytes of the code before this address.
    fn before(&self, address: u64) -> Option<[u8; 7]> {
        let at = usize::try_from(address - self.start + self.offset).ok()?;
        self.map.get(at.checked_sub(7)?..at)?.try_into().ok()
    }

    fn names(&self, addresses: &[u64], lines: bool) -> BTreeMap<u64, Vec<Frame>> {
        let Ok(elf) = object::File::parse(&self.map[..]) else { return BTreeMap::new() };
        let symbols = self.functions(&elf, addresses);
        let lines = if lines { line_tables(&elf) } else { None };
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

    /// One pass over the symbol tables: keeping an index of a library's hundreds of thousands would cost more
    /// than it saves.
    fn functions(&self, elf: &object::File<'_>, addresses: &[u64]) -> BTreeMap<u64, String> {
        let mut found: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        let mut wanted: Vec<(u64, u64)> =
            addresses.iter().map(|address| (address.wrapping_sub(self.bias), *address)).collect();
        wanted.sort_unstable();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let (start, size) = (symbol.address(), symbol.size());
            if symbol.kind() != SymbolKind::Text || start == 0 {
                continue;
            }
            // A symbol without a size reaches as far as the next one: take the closest below.
            let end = if size == 0 { start.saturating_add(1 << 16) } else { start.saturating_add(size) };
            let from = wanted.partition_point(|(at, _)| *at < start);
            for (at, address) in wanted[from..].iter().take_while(|(at, _)| *at < end) {
                let _ = at;
                let better = found.get(address).is_none_or(|(known, _)| start > *known);
                if better && let Ok(name) = symbol.name() {
                    found.insert(*address, (start, demangle(name)));
                }
            }
        }
        found.into_iter().map(|(address, (_, name))| (address, name)).collect()
    }
}

fn demangle(name: &str) -> String {
    let text = addr2line::demangle_auto(name.into(), None).into_owned();
    // Rust's hash at the end says nothing to people.
    let text = match text.rsplit_once("::h") {
        Some((head, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            head.to_owned()
        }
        _ => text,
    };
    text.chars().take(300).collect()
}

type Lines<'a> = addr2line::Context<EndianSlice<'a, LittleEndian>>;

fn line_tables<'a>(elf: &object::File<'a>) -> Option<Lines<'a>> {
    let size = |name: &str| elf.section_by_name(name).map(|section| section.size());
    if size(".debug_info")? > DWARF_BYTES || size(".debug_line")? == 0 {
        return None;
    }
    let load = |id: gimli::SectionId| -> Result<EndianSlice<'a, LittleEndian>, gimli::Error> {
        let data = elf.section_by_name(id.name()).and_then(|section| section.data().ok()).unwrap_or_default();
        Ok(EndianSlice::new(data, LittleEndian))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
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
