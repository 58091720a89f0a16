//! Whether the program in an executable file loads a preload library, by its headers. That takes a dynamic,
//! native glibc executable that the kernel does not run with other rights.
//!
//! Reads into memory of its own, on the stack: it is asked in children of vfork too. Executes nothing, and
//! follows no `#!` line: the caller does.

use crate::kernel::file::{Descriptor, read_up_to};
use crate::proc;
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kind of a program file.
#[derive(PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // A box would take the heap.
pub enum ProgramKind {
    /// A program that loads the library; or of a format that the kernel may know and we do not.
    Managed,
    /// A program that never does, for this reason.
    Unmanaged(UnmanagedReason),
    /// A script, run by the program at this path.
    Script(ProgramPath),
    /// An ELF file whose headers are not whole.
    Damaged,
}

/// Why a program's memory cannot be managed.
#[derive(PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // A box would take the heap.
pub enum UnmanagedReason {
    /// No dynamic loader.
    Static,
    /// setuid, setgid or file capabilities: the loader ignores LD_PRELOAD, and takes it out of the environment.
    Privileged,
    /// For another processor or word size.
    Foreign,
    /// Another C library's loader, by its path.
    OtherLibc(ProgramPath),
    /// A glibc that lacks symbols which the library needs, by its loader's path.
    OldLibc(ProgramPath),
    /// Go maps its heap without the C library.
    Go,
    /// It starts where the library is not: under another root directory, or as a user who may not read it.
    Unreachable,
}

impl UnmanagedReason {
    /// Whether the preload library must stay out of the program's environment, because its loader would
    /// take the library for its own and give up. musl's loader passes over a library that it does not find,
    /// and it does not find one named for glibc alone ([`super::loader`]). Other loaders are not known.
    pub fn withholds(&self, named_for_glibc: bool) -> bool {
        match self {
            UnmanagedReason::OtherLibc(loader) => {
                !(named_for_glibc && loader.file_begins(b"ld-musl"))
            }
            UnmanagedReason::OldLibc(_) | UnmanagedReason::Unreachable => true,
            _ => false,
        }
    }
}

impl fmt::Display for UnmanagedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmanagedReason::Static => f.write_str("it is statically linked"),
            UnmanagedReason::Privileged => {
                f.write_str("it is setuid, setgid or has file capabilities")
            }
            UnmanagedReason::Foreign => {
                f.write_str("it is built for another processor or word size")
            }
            UnmanagedReason::OtherLibc(loader) => write!(f, "it uses another C library ({loader})"),
            UnmanagedReason::OldLibc(loader) => {
                write!(f, "it uses a glibc before 2.34 ({loader})")
            }
            UnmanagedReason::Go => {
                f.write_str("it is a Go program, which maps its memory without the C library")
            }
            UnmanagedReason::Unreachable => {
                f.write_str("it starts where Ebbtide's library cannot be read")
            }
        }
    }
}

/// A path as a header has it, cut where that is too long for any: without its null.
#[derive(PartialEq, Eq, Clone, Copy)]
pub struct ProgramPath {
    bytes: [u8; 256],
    len: usize,
}

impl ProgramPath {
    /// The same bytes, as far as there is room.
    pub fn of(from: &[u8]) -> Self {
        // One is left for a null behind it.
        let len = from.len().min(255);
        let mut bytes = [0; 256];
        bytes[..len].copy_from_slice(&from[..len]);
        Self { bytes, len }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The same with a null at its end.
    pub fn with_null(&self) -> &[u8] {
        &self.bytes[..=self.len]
    }

    /// Whether its last part begins so.
    fn file_begins(&self, with: &[u8]) -> bool {
        let file = self.bytes().rsplit(|b| *b == b'/').next();
        file.is_some_and(|file| file.starts_with(with))
    }
}

impl fmt::Display for ProgramPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.bytes().utf8_chunks() {
            f.write_str(part.valid())?;
        }
        Ok(())
    }
}

impl fmt::Debug for ProgramPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How many interpreters of interpreters the kernel follows.
pub const MAX_SCRIPTS: usize = 5;

/// Bytes of the first read: a script's line, and the headers of interest of most programs. The stack may be small.
const HEAD: usize = 320;

/// The kind of `file`.
///
/// # Errors
/// It cannot be read.
pub fn program_kind(file: impl AsFd) -> Result<ProgramKind, Errno> {
    let file = file.as_fd();
    let user = rustix::process::geteuid();
    let capabilities =
        || rustix::fs::fgetxattr(file, c"security.capability", &mut [0u8; 64][..]).is_ok();
    if raises_privileges(&rustix::fs::fstat(file)?) || !user.is_root() && capabilities() {
        return Ok(ProgramKind::Unmanaged(UnmanagedReason::Privileged));
    }
    let mut head = [0; HEAD];
    let len = match read_up_to(file, &mut head, 0) {
        // A descriptor that names the file alone (O_PATH).
        Err(Errno::BADF) => return program_kind(proc::open_again(file)?),
        read => read?,
    };
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
        let mut words = line.trim_ascii().split(|b| b.is_ascii_whitespace());
        return Ok(ProgramKind::Script(ProgramPath::of(
            words.next().unwrap_or_default(),
        )));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(ProgramKind::Managed);
    }
    Ok(elf(file, head).unwrap_or(ProgramKind::Damaged))
}

/// Whether no exec gives this process privileges, as in many containers and services.
#[cold]
#[inline(never)]
fn gets_no_privileges() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// Whether the kernel would run the file with another user or group than ours (AT_SECURE).
pub fn raises_privileges(stat: &Stat) -> bool {
    let user = rustix::process::geteuid();
    let setuid = stat.st_mode & 0o4000 != 0 && stat.st_uid != user.as_raw();
    // Without group execute the bit means mandatory locking instead.
    let setgid =
        stat.st_mode & 0o2010 == 0o2010 && stat.st_gid != rustix::process::getegid().as_raw();
    (setuid || setgid) && !gets_no_privileges()
}

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// The loader that an executable file names, if it is a program that has one.
pub fn loader_of(file: impl AsFd) -> Option<ProgramPath> {
    let mut head = [0; HEAD];
    let len = read_up_to(file.as_fd(), &mut head, 0).ok()?;
    let head = &head[..len];
    if !head.starts_with(b"\x7fELF") || !is_native(head)? {
        return None;
    }
    let mut loader = None;
    each_segment(file.as_fd(), head, |kind, content| {
        if kind == PT_INTERP {
            loader = Some(path_in(content?));
        }
        Some(())
    })?;
    loader
}

/// The kind that the ELF headers show; `None` if they are not whole.
fn elf(file: BorrowedFd<'_>, head: &[u8]) -> Option<ProgramKind> {
    if !is_native(head)? {
        return Some(ProgramKind::Unmanaged(UnmanagedReason::Foreign));
    }
    let (mut loader, mut go) = (None, false);
    each_segment(file, head, |kind, content| {
        if kind == PT_INTERP {
            loader = Some(path_in(content?));
        } else if let Some(content) = content {
            // Name size 4, then the name, of the note that carries Go's build id.
            go |= content.get(..4) == Some(&[4, 0, 0, 0]) && content.get(12..16) == Some(b"Go\0\0");
        }
        Some(())
    })?;
    Some(match loader {
        None => without_loader(file),
        Some(loader) if !is_glibcs(loader) => {
            ProgramKind::Unmanaged(UnmanagedReason::OtherLibc(loader))
        }
        Some(loader) if brings_old(&loader) => {
            ProgramKind::Unmanaged(UnmanagedReason::OldLibc(loader))
        }
        Some(_) if go => ProgramKind::Unmanaged(UnmanagedReason::Go),
        Some(_) => ProgramKind::Managed,
    })
}

/// Whether an ELF file is for this processor and word size.
fn is_native(head: &[u8]) -> Option<bool> {
    let machine = u16_in(head, 18)?;
    let native = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    let (wide, little) = (head.get(4) == Some(&2), head.get(5) == Some(&1));
    Some(wide && little && machine == native)
}

/// Looks at the segments that name the loader and that hold notes: at the first bytes of each, if they are whole. `None` if
/// the headers are not, or `look` says so.
fn each_segment(
    file: BorrowedFd<'_>,
    head: &[u8],
    mut look: impl FnMut(u32, Option<&[u8]>) -> Option<()>,
) -> Option<()> {
    let table = u64_in(head, 32)?;
    let (size, count) = (u64::from(u16_in(head, 54)?), u64::from(u16_in(head, 56)?));
    if size < 56 {
        return None;
    }
    for n in 0..count {
        let mut header = [0; 56];
        if part(file, head, &mut header, table.checked_add(n * size)?)? < header.len() {
            return None;
        }
        let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
        if kind != PT_INTERP && kind != PT_NOTE {
            continue;
        }
        let (offset, len) = (u64_in(&header, 8)?, u64_in(&header, 32)?);
        let mut content = [0; 256];
        let len = len.min(content.len() as u64) as usize;
        let whole = part(file, head, &mut content[..len], offset) == Some(len);
        look(kind, whole.then_some(&content[..len]))?;
    }
    Some(())
}

/// The path that a segment's bytes hold.
fn path_in(content: &[u8]) -> ProgramPath {
    ProgramPath::of(content.split(|b| *b == 0).next().unwrap_or_default())
}

/// The kind of a program that names no loader, as glibc's own loader is.
#[inline(never)] // Its paths are on the stack for such programs alone.
fn without_loader(file: BorrowedFd<'_>) -> ProgramKind {
    match own_name(file).filter(|name| is_glibcs(*name)) {
        None => ProgramKind::Unmanaged(UnmanagedReason::Static),
        Some(name) if is_old(file) => ProgramKind::Unmanaged(UnmanagedReason::OldLibc(name)),
        Some(_) => ProgramKind::Managed,
    }
}

/// As much as there is of a part of the file, whose first bytes are at hand.
fn part(file: BorrowedFd<'_>, head: &[u8], out: &mut [u8], offset: u64) -> Option<usize> {
    let at_hand = usize::try_from(offset)
        .ok()
        .and_then(|start| head.get(start..start.checked_add(out.len())?));
    match at_hand {
        Some(bytes) => {
            out.copy_from_slice(bytes);
            Some(out.len())
        }
        None => read_up_to(file, out, offset).ok(),
    }
}

/// Whether a loader is glibc's, which may be started itself and then loads a program and the library.
fn is_glibcs(loader: ProgramPath) -> bool {
    loader.file_begins(b"ld-linux") || loader.file_begins(b"ld-2.")
}

/// The system's loader: under another root directory it may be another file.
const SYSTEMS: &CStr = c"/lib64/ld-linux-x86-64.so.2";

/// Device and number of the file that it was as this library began to run, which it would not with one that is too old.
// Beside what every process writes as it starts, and on no page of its own.
#[unsafe(link_section = ".data")]
static LOADER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes the system's loader: no exec of a program for it has to look into it.
pub fn note_loader() {
    let known = identity(SYSTEMS).unwrap_or_default();
    for (word, value) in LOADER.iter().zip(known) {
        word.store(value, Relaxed);
    }
}

#[inline(never)] // Its buffer is on the stack for as long as this takes.
#[unsafe(link_section = ".text.startup")] // The constructor of the library calls it in every process.
fn identity(path: &CStr) -> Option<[u64; 2]> {
    let stat = rustix::fs::stat(path).ok()?;
    Some([stat.st_dev, stat.st_ino])
}

/// The youngest version of glibc of which the library needs symbols. Its loader names each version that it has.
const NEEDED: &[u8] = b"GLIBC_2.34\0";

/// Whether a program's loader is that of a glibc before [`NEEDED`], as programs have that bring one. Not, where it cannot
/// be looked at.
fn brings_old(loader: &ProgramPath) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(path) = CStr::from_bytes_until_nul(loader.with_null()) else {
        return false;
    };
    let noted = LOADER.each_ref().map(|word| word.load(Relaxed));
    if identity(path).is_none_or(|identity| identity == noted) {
        return false;
    }
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return false;
    };
    is_old(Descriptor::from(file).as_fd())
}

/// The same of an open loader.
#[inline(never)] // Its buffer is on the stack only where there is such a loader.
fn is_old(loader: BorrowedFd<'_>) -> bool {
    let (mut part, mut at) = ([0; HEAD], 0);
    loop {
        match read_up_to(loader, &mut part, at) {
            Ok(len) if part[..len].windows(NEEDED.len()).any(|w| w == NEEDED) => return false,
            Ok(HEAD) => at += (HEAD - NEEDED.len()) as u64,
            end => return end.is_ok(),
        }
    }
}

/// Where an open file is, links resolved.
fn own_name(file: BorrowedFd<'_>) -> Option<ProgramPath> {
    let mut name = [MaybeUninit::uninit(); 256];
    proc::path_of_fd(file.as_raw_fd(), &mut name).map(ProgramPath::of)
}

fn u16_in(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u64_in(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
