//! What `/proc` says of other processes.
//!
//! The files read every few milliseconds (`statm`, `stat`) are kept open and read into a
//! buffer on the stack; nothing is allocated. An open file of `/proc/PID` stays bound to that
//! process: after its death a read fails with ESRCH, even when the number is used again. So
//! a [`Process`] names one process for good, which a pid does not.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::Write;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Opens what another process has open as `fd`: the same file by another description, with the same
/// flags.
///
/// # Errors
/// It is gone, or another user's, or the file cannot be opened.
pub fn reopen(process: u32, fd: i32) -> Result<OwnedFd, Errno> {
    let mut buffer = [0; 256];
    let path = Path::new(format_args!("/proc/{process}/fdinfo/{fd}"));
    let len = rustix::io::read(path.open(OFlags::RDONLY)?, &mut buffer)?;
    let flags = std::str::from_utf8(&buffer[..len])
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("flags:")))
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .ok_or(Errno::INVAL)?;
    let kept = OFlags::ACCMODE | OFlags::DIRECT;
    Path::new(format_args!("/proc/{process}/fd/{fd}")).open(OFlags::from_bits_retain(flags) & kept)
}

/// A path under `/proc`, built on the stack.
struct Path {
    bytes: [u8; 64],
    len: usize,
}

impl Path {
    fn new(parts: std::fmt::Arguments<'_>) -> Self {
        let mut path = Self {
            bytes: [0; 64],
            len: 0,
        };
        let mut room = &mut path.bytes[..63];
        let before = room.len();
        // The longest path has two 10-digit numbers: it always fits.
        let _ = room.write_fmt(parts);
        path.len = before - room.len();
        path
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open(&self.bytes[..self.len], flags)
    }
}

/// A descriptor of `/proc` for tasks of ours; below 0: there is none.
static DIRECTORY: AtomicI32 = AtomicI32::new(-1);
/// In a forked child: what its parent's helper had.
static INHERITED: AtomicI32 = AtomicI32::new(-1);

/// On a helper's first task: finds `/proc`, once for all tasks of ours. A forked child whose root directory
/// has none (`chroot`) takes its parent's, from `parent`, the helper of that, where it may.
pub fn find_directory(parent: Option<u32>) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Not an empty directory of that name.
    let own = rustix::fs::open(c"/proc/self", flags, Mode::empty())
        .and_then(|_| rustix::fs::open(c"/proc", flags, Mode::empty()));
    if let Some(found) = own.ok().or_else(|| of_parent(parent?).ok()) {
        DIRECTORY.store(found.into_raw_fd(), SeqCst);
    }
}

fn of_parent(helper: u32) -> Result<OwnedFd, Errno> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let helper = Pid::from_raw(helper as i32).ok_or(Errno::SRCH)?;
    let helper = pidfd_open(helper, PidfdFlags::empty())?;
    pidfd_getfd(helper, INHERITED.load(SeqCst), PidfdGetfdFlags::empty())
}

/// In a forked child: its helper has none yet.
pub(crate) fn forget_directory() {
    INHERITED.store(DIRECTORY.swap(-1, SeqCst), SeqCst);
}

/// Opens what is at a path that begins with `/proc/`.
pub(crate) fn open(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::empty());
    let directory = DIRECTORY.load(SeqCst);
    match path.strip_prefix(b"/proc/") {
        Some(inside) if directory >= 0 && crate::thread::is_ours() => {
            // SAFETY: tasks of ours alone have it, and keep it open.
            let directory = unsafe { BorrowedFd::borrow_raw(directory) };
            rustix::fs::openat(directory, inside, flags, mode)
        }
        _ => rustix::fs::open(path, flags, mode),
    }
}

/// Reads a whole small file from its start; a longer one is cut.
fn read<'a>(fd: &OwnedFd, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let mut len = 0;
    while len < buf.len() {
        match rustix::io::pread(fd, &mut buf[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(&buf[..len])
}

fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |n, &b| {
        b.is_ascii_digit()
            .then(|| n.wrapping_mul(10).wrapping_add((b - b'0') as u64))
    })
}

/// The name (`comm`) of a helper: a process of ours that shares a program's memory and serves it.
pub const HELPER: &std::ffi::CStr = c"ebb-helper";

/// What `/proc/PID/stat` says that we use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Whether it is called [`HELPER`], as anybody may call himself.
    pub named_helper: bool,
    /// R, S, D, T, Z, X …
    pub state: u8,
    /// The parent's pid.
    pub parent: u32,
    /// Whether it is ending: its memory may be gone any moment.
    pub exiting: bool,
    /// Minor faults of all threads so far.
    pub minor_faults: u64,
    /// When the process started, in clock ticks since boot.
    pub start_time: u64,
    /// Bytes of addresses that it has mapped; 0 once its memory is gone.
    pub size: u64,
    /// Which program image the process runs.
    pub image: Image,
}

/// Identifies a program image: two addresses that exec draws anew (with address
/// randomisation) and fork copies. Zero once the memory of the process is gone; for a moment
/// in the midst of exec, which names the process first, the code is zero and the stack
/// another: an image of its own, neither the old program's nor the new one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Image {
    code: u64,
    stack: u64,
}

impl Image {
    /// Whether the process still had memory.
    pub fn is_some(&self) -> bool {
        self.stack != 0
    }
}

/// Among a task's flags, which proc(5) shows since 2.6.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Parses `/proc/PID/stat`; fields are counted from the last parenthesis because the
    /// name before it may contain anything.
    fn parse(text: &[u8]) -> Option<Self> {
        let close = text.iter().rposition(|&b| b == b')')?;
        let open = text.iter().position(|&b| b == b'(')?;
        let mut stat = Stat {
            named_helper: text.get(open + 1..close)? == HELPER.to_bytes(),
            ..Stat::default()
        };
        let mut seen = 0;
        for (i, field) in text.get(close + 2..)?.split(|&b| b == b' ').enumerate() {
            match i + 3 {
                3 => stat.state = *field.first()?,
                4 => stat.parent = number(field)? as u32,
                9 => stat.exiting = number(field)? & PF_EXITING != 0,
                10 => stat.minor_faults = number(field)?,
                22 => stat.start_time = number(field)?,
                23 => stat.size = number(field)?,
                26 => stat.image.code = number(field)?,
                28 => stat.image.stack = number(field)?,
                _ => continue,
            }
            seen += 1;
        }
        (seen == 8).then_some(stat)
    }

    /// Whether the process has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Pages from `/proc/PID/statm`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statm {
    /// Resident pages of every kind.
    pub resident: u64,
    /// Resident pages of files and shared memory.
    pub shared: u64,
}

impl Statm {
    fn parse(text: &[u8]) -> Option<Self> {
        let mut fields = text.split(|&b| b == b' ').skip(1);
        Some(Self {
            resident: number(fields.next()?)?,
            shared: number(fields.next()?)?,
        })
    }

    /// Resident anonymous pages. Exact on new kernels (checked on 6.18). Older ones, from 6.2 on,
    /// add up counters of the processors only roughly: off by up to max(32, 2 · processors)
    /// pages a processor. Before that, by up to 64 pages a thread.
    pub fn anonymous(&self) -> u64 {
        self.resident.saturating_sub(self.shared)
    }
}

/// Anonymous memory of a process as `/proc/PID/smaps_rollup` has it, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rollup {
    /// Resident anonymous pages.
    pub anonymous: u64,
    /// The same, each page divided by the number of processes that map it.
    pub proportional: u64,
}

impl Rollup {
    fn parse(text: &[u8]) -> Option<Self> {
        let field = |name: &[u8]| {
            let line = text
                .split(|&b| b == b'\n')
                .find(|line| line.starts_with(name))?;
            let digits = line[name.len()..]
                .split(|&b| b == b' ')
                .find(|f| !f.is_empty())?;
            number(digits).map(|kib| kib / 4)
        };
        Some(Self {
            anonymous: field(b"Anonymous:")?,
            proportional: field(b"Pss_Anon:")?,
        })
    }

    /// Pages that are counted for this process but paid for by another that shares them.
    pub fn shared_away(&self) -> u64 {
        self.anonymous.saturating_sub(self.proportional)
    }
}

/// Real, effective and saved user, of the text of a `status`.
fn users(text: &[u8]) -> Option<[u64; 3]> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut fields = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|f| !f.is_empty());
    let mut next = || number(fields.next()?);
    Some([next()?, next()?, next()?])
}

/// One process, for good: see the module's text.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    stat: OwnedFd,
    statm: OwnedFd,
    start_time: u64,
}

impl Process {
    /// Opens the files of `pid`.
    ///
    /// # Errors
    /// ENOENT or ESRCH if there is no such process, EMFILE.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let stat = Path::new(format_args!("/proc/{pid}/stat")).open(OFlags::RDONLY)?;
        let statm = Path::new(format_args!("/proc/{pid}/statm")).open(OFlags::RDONLY)?;
        let mut process = Self {
            pid,
            stat,
            statm,
            start_time: 0,
        };
        // Both files were opened by number, one after the other: equal only if the process
        // of the first still lives now.
        process.start_time = process.stat()?.start_time;
        Ok(process)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Its `stat`.
    ///
    /// # Errors
    /// ESRCH once it has been reaped; EIO if the text is not as expected.
    pub fn stat(&self) -> Result<Stat, Errno> {
        let mut buf = [0; 1024];
        Stat::parse(read(&self.stat, &mut buf)?).ok_or(Errno::IO)
    }

    /// Its `statm`; zeros when it is a zombie.
    ///
    /// # Errors
    /// ESRCH once it has been reaped; EIO if the text is not as expected.
    pub fn statm(&self) -> Result<Statm, Errno> {
        let mut buf = [0; 256];
        Statm::parse(read(&self.statm, &mut buf)?).ok_or(Errno::IO)
    }

    /// Whether it is, or can become again without executing another program, this user: that is among
    /// its real, effective and saved ones.
    ///
    /// # Errors
    /// ESRCH if it is gone, EIO on unexpected text.
    pub fn has_user(&self, user: u32) -> Result<bool, Errno> {
        let fd = Path::new(format_args!("/proc/{}/status", self.pid)).open(OFlags::RDONLY)?;
        let mut buf = [0; 2048];
        let users = users(read(&fd, &mut buf)?).ok_or(Errno::IO)?;
        // Opened by number: ours only if our process is still there.
        self.stat()?;
        Ok(users.contains(&u64::from(user)))
    }

    /// Its `smaps_rollup`: the kernel walks every page table of the process, about 100 ns a
    /// resident page.
    ///
    /// # Errors
    /// ESRCH if it is gone, EACCES if it may not be looked at, EIO on unexpected text.
    pub fn rollup(&self) -> Result<Rollup, Errno> {
        let fd = Path::new(format_args!("/proc/{}/smaps_rollup", self.pid)).open(OFlags::RDONLY)?;
        let mut buf = [0; 2048];
        let rollup = Rollup::parse(read(&fd, &mut buf)?).ok_or(Errno::IO)?;
        // Opened by number: ours only if our process is still there.
        self.stat()?;
        Ok(rollup)
    }

    /// Whether it lives in the memory of process `other`, as a child of `vfork` does until it
    /// calls exec. False also where kcmp(2) may not say.
    pub fn lives_in(&self, other: u32) -> bool {
        share_memory(self.pid, other) == Some(true)
    }

    /// Whether it has been killed, or ends otherwise: also before it has run again to notice.
    pub fn is_ending(&self) -> bool {
        match self.stat() {
            Ok(stat) if !stat.exiting && !stat.is_dead() => {}
            _ => return true,
        }
        self.disposition(libc::SIGKILL)
            .is_none_or(|killed| killed.pending)
    }

    /// What a signal would do to its first thread; none if it is gone.
    pub fn disposition(&self, signal: i32) -> Option<Disposition> {
        let file = Path::new(format_args!("/proc/{}/status", self.pid)).open(OFlags::RDONLY);
        let mut buf = [0; 4096];
        Disposition::parse(read(&file.ok()?, &mut buf).ok()?, signal)
    }

    /// Calls `f` with the pid of each child of any of its threads.
    ///
    /// # Errors
    /// ESRCH or ENOENT if it is gone.
    pub fn children(&self, f: impl FnMut(u32)) -> Result<(), Errno> {
        children(self.pid, f)
    }
}

/// What becomes of a signal in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disposition {
    /// It has been sent, and not been taken.
    pub pending: bool,
    /// It is blocked.
    pub blocked: bool,
    /// It has no effect.
    pub ignored: bool,
    /// The program has a handler for it.
    pub caught: bool,
}

impl Disposition {
    fn parse(text: &[u8], signal: i32) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let bit = 1u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
        let has = |name| {
            let mask = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(u64::from_str_radix(mask.trim(), 16).ok()? & bit != 0)
        };
        Some(Self {
            pending: has("SigPnd:")? || has("ShdPnd:")?,
            blocked: has("SigBlk:")?,
            ignored: has("SigIgn:")?,
            caught: has("SigCgt:")?,
        })
    }
}

/// A thread of process `pid` that waits for a page of memory that a userfaultfd serves. None also where
/// the kernel does not say what threads wait for.
pub fn waits_for_page(pid: u32) -> Option<u32> {
    let waits = |tid| {
        let mut buf = [0; 64];
        let path = Path::new(format_args!("/proc/{pid}/task/{tid}/wchan"));
        let file = path.open(OFlags::RDONLY);
        match file.is_ok_and(|file| read(&file, &mut buf) == Ok(b"handle_userfault")) {
            true => Break(tid),
            false => Continue(()),
        }
    };
    each_thread(pid, waits).ok()?
}

/// Calls `f` with the number of each thread of `pid`, until it breaks; with what it did.
///
/// # Errors
/// ESRCH or ENOENT if it is gone.
pub fn each_thread<B>(
    pid: u32,
    mut f: impl FnMut(u32) -> ControlFlow<B>,
) -> Result<Option<B>, Errno> {
    let dir =
        Path::new(format_args!("/proc/{pid}/task")).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = [std::mem::MaybeUninit::uninit(); 2048];
    let mut tasks = rustix::fs::RawDir::new(&dir, &mut names);
    while let Some(task) = tasks.next() {
        if let Some(tid) = number(task?.file_name().to_bytes())
            && let Break(result) = f(tid as u32)
        {
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// Whether two processes share one memory; none where kcmp(2) may not say, or one is gone.
pub fn share_memory(one: u32, other: u32) -> Option<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: compares two processes by number, and touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}

/// Minor faults of process `pid` so far; 0 if it is gone.
pub fn minor_faults(pid: u32) -> u64 {
    stat_of(pid).map_or(0, |stat| stat.minor_faults)
}

/// Bytes of addresses that process `pid` has mapped; 0 if it has ended. None: it cannot be read.
pub fn size_of(pid: u32) -> Option<u64> {
    stat_of(pid).map(|stat| stat.size)
}

fn stat_of(pid: u32) -> Option<Stat> {
    let mut buf = [0; 1024];
    let fd = Path::new(format_args!("/proc/{pid}/stat")).open(OFlags::RDONLY);
    Stat::parse(read(&fd.ok()?, &mut buf).ok()?)
}

/// Whether the process that a pidfd stands for has ended, with all of its threads.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut polled, Some(&Timespec::default())), Ok(n) if n > 0)
}

/// The process that a pidfd stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PidfdTarget {
    /// Its number, as this process's `/proc` has it.
    pub pid: u32,
    /// Its number as it sees itself: another, if it lives in a PID namespace further in.
    pub own_pid: u32,
}

/// Which process `pidfd` stands for.
///
/// # Errors
/// ESRCH if it has been reaped, or is out of sight in another PID namespace; EINVAL if it is no pidfd.
pub fn pidfd_target(pidfd: BorrowedFd<'_>) -> Result<PidfdTarget, Errno> {
    let number = pidfd.as_raw_fd();
    let file = Path::new(format_args!("/proc/thread-self/fdinfo/{number}")).open(OFlags::RDONLY)?;
    let mut buf = [0; 1024];
    PidfdTarget::parse(read(&file, &mut buf)?)
}

impl PidfdTarget {
    fn parse(text: &[u8]) -> Result<Self, Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&pid| pid > 0);
        let pid = field("Pid:").ok_or(Errno::INVAL)?;
        // -1 or 0 where there is none.
        let pid = number(pid).ok_or(Errno::SRCH)?;
        // The namespaces from ours inwards; the line is missing where the kernel has none.
        let inner = field("NSpid:").and_then(|line| number(line.split_whitespace().next_back()?));
        let own_pid = inner.unwrap_or(pid);
        Ok(Self { pid, own_pid })
    }
}

/// Calls `f` with the pid of each child of any thread of `pid`. A child that comes or goes
/// meanwhile may be missed.
///
/// # Errors
/// ESRCH or ENOENT if it is gone; ENOENT also where the kernel has no such file.
pub fn children(pid: u32, mut f: impl FnMut(u32)) -> Result<(), Errno> {
    let failed = each_thread(pid, |tid| match children_of_thread(pid, tid, &mut f) {
        Ok(()) => Continue(()),
        Err(e) => Break(e),
    })?;
    failed.map_or(Ok(()), Err)
}

fn children_of_thread(pid: u32, tid: u32, f: &mut impl FnMut(u32)) -> Result<(), Errno> {
    let file = match Path::new(format_args!("/proc/{pid}/task/{tid}/children")).open(OFlags::RDONLY)
    {
        Ok(file) => file,
        // The thread is gone, or (for the first) the kernel has no such file.
        Err(Errno::NOENT | Errno::SRCH) if tid != pid => return Ok(()),
        Err(e) => return Err(e),
    };
    // A number may be cut by the end of the buffer: carry its digits over.
    let mut pending: Option<u64> = None;
    let mut buf = [0; 1024];
    loop {
        let n = match rustix::io::read(&file, &mut buf[..]) {
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(Errno::SRCH) => 0,
            Err(e) => return Err(e),
        };
        if n == 0 {
            break;
        }
        for &b in &buf[..n] {
            if b.is_ascii_digit() {
                pending = Some(pending.unwrap_or(0) * 10 + (b - b'0') as u64);
            } else if let Some(child) = pending.take() {
                f(child as u32);
            }
        }
    }
    if let Some(child) = pending {
        f(child as u32);
    }
    Ok(())
}

/// Calls `f` with every pid. The kernel goes by number, so a process that lives throughout
/// is never skipped.
///
/// # Errors
/// Those of reading `/proc`.
pub fn all(mut f: impl FnMut(u32)) -> Result<(), Errno> {
    let dir = Path::new(format_args!("/proc")).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = [std::mem::MaybeUninit::uninit(); 4096];
    let mut entries = rustix::fs::RawDir::new(&dir, &mut names);
    while let Some(entry) = entries.next() {
        if let Some(pid) = number(entry?.file_name().to_bytes()) {
            f(pid as u32);
        }
    }
    Ok(())
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Time since boot, as `/proc/PID/stat` has it for the start of a process: in hundredths of a second
/// (USER_HZ), cut.
pub fn ticks() -> u64 {
    const USER_HZ: u64 = 100;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * USER_HZ + now.tv_nsec as u64 / (1_000_000_000 / USER_HZ)
}

/// Which PID namespace this process is in: its inode, which no other has while it lives. One system
/// call, and nothing is allocated.
///
/// # Errors
/// Those of stat(2): `/proc` is not mounted, or not one that shows this process.
pub fn pid_namespace() -> Result<u64, Errno> {
    Ok(rustix::fs::stat(c"/proc/self/ns/pid")?.st_ino)
}

/// The name of a process, as in `/proc/PID/comm`, or "?" if it is gone. Control characters
/// are replaced.
pub fn name(pid: u32) -> String {
    let mut buf = [0; 64];
    let text = Path::new(format_args!("/proc/{pid}/comm"))
        .open(OFlags::RDONLY)
        .and_then(|fd| read(&fd, &mut buf).map(<[u8]>::to_vec))
        .unwrap_or_else(|_| b"?".to_vec());
    String::from_utf8_lossy(text.trim_ascii_end())
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Whether children of the calling process come to be in its own PID namespace: after `unshare` the first of
/// them is the first of a new one. Yes where `/proc` does not say.
pub fn children_stay_in_namespace() -> bool {
    let inode = |path| rustix::fs::stat(path).map(|stat| stat.st_ino).ok();
    inode(c"/proc/self/ns/pid") == inode(c"/proc/self/ns/pid_for_children")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn parses_a_stat_with_a_hostile_name() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 123 0 0 0 1 2 0 0 20 0 1 0 \
            99 1000 200 18446744073709551615 111 222 333 444 0 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(
            stat,
            Stat {
                state: b'S',
                parent: 7,
                exiting: false,
                named_helper: false,
                minor_faults: 123,
                start_time: 99,
                size: 1000,
                image: Image {
                    code: 111,
                    stack: 333
                },
            }
        );
        let named = |name: &str| {
            let text = String::from_utf8_lossy(text).replacen("a) R 1 (b", name, 1);
            Stat::parse(text.as_bytes()).unwrap().named_helper
        };
        assert!(named("ebb-helper") && !named("ebb-helper)") && !named("(ebb-helper"));
        assert_eq!(Stat::parse(b"42 (a) S 7"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    /// Of another process, which does nothing meanwhile: in this one other tests come and go.
    #[test]
    fn a_process_has_the_users_that_its_status_says() {
        // A name may look like anything, but is escaped.
        let text = b"Name:\tUid:\\n1\nState:\tS\nUid:\t1000\t0\t7\t9\nGid:\t5\t5\t5\t5\n";
        assert_eq!(users(text), Some([1000, 0, 7]));
        assert_eq!(users(b"Name:\tx\n"), None);
        assert_eq!(users(b"Uid:\t1\t2\n"), None);
        let us = Process::open(std::process::id()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(
            (us.has_user(user), us.has_user(user + 1)),
            (Ok(true), Ok(false))
        );
    }

    #[test]
    fn memory_shows_in_statm_and_rollup() {
        const PAGES: u64 = 2048;
        // Keeps the last lines it has read, until its input ends.
        let mut child = Command::new("tail")
            .args(["-n", "1000000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&vec![b'x'; 4096 * PAGES as usize]).unwrap();
        let start = std::time::Instant::now();
        let asleep = |process: &Process| process.stat().unwrap().state == b'S';
        // All is read when it waits for more.
        while process.statm().unwrap().anonymous() < PAGES || !asleep(&process) {
            assert!(start.elapsed().as_secs() < 60, "it keeps nothing");
            std::thread::yield_now();
        }
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        let error = cpus * (2 * cpus).max(32);
        let (statm, rollup) = (process.statm().unwrap(), process.rollup().unwrap());
        assert!(
            statm.anonymous().abs_diff(rollup.anonymous) <= error,
            "{statm:?} {rollup:?}"
        );
        assert!(rollup.anonymous >= PAGES && rollup.proportional <= rollup.anonymous);
        drop(input);
        child.wait().unwrap();
    }

    #[test]
    fn a_child_is_found_and_its_death_seen_for_good() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let age = ticks() - process.start_time();
        assert!(age < 60 * 100, "{age} ticks");
        let mut seen = false;
        children(std::process::id(), |pid| seen |= pid == child.id()).unwrap();
        assert!(seen);
        assert_eq!(process.stat().unwrap().parent, std::process::id());
        // It has called exec, so its memory is its own.
        let me = Process::open(std::process::id()).unwrap();
        assert!(!process.lives_in(std::process::id()) && me.lives_in(std::process::id()));
        child.kill().unwrap();
        while !process.stat().unwrap().is_dead() {
            std::thread::yield_now();
        }
        assert!(!process.stat().unwrap().image.is_some());
        child.wait().unwrap();
        assert_eq!(process.stat().unwrap_err(), Errno::SRCH);
        assert_eq!(process.statm().unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn a_pidfd_says_whose_it_is() {
        use std::os::fd::AsFd;
        let me = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        );
        let me = me.unwrap();
        let (pid, own_pid) = (std::process::id(), std::process::id());
        assert_eq!(pidfd_target(me.as_fd()), Ok(PidfdTarget { pid, own_pid }));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(pidfd_target(null.as_fd()), Err(Errno::INVAL));

        let parse = |text: &str| PidfdTarget::parse(text.as_bytes()).map(|p| (p.pid, p.own_pid));
        assert_eq!(parse("pos:\t0\nPid:\t77\nNSpid:\t77\t5\t1\n"), Ok((77, 1)));
        assert_eq!(parse("Pid:\t77\n"), Ok((77, 77)));
        assert_eq!(parse("Pid:\t-1\nNSpid:\t-1\n"), Err(Errno::SRCH));
        assert_eq!(parse("Pid:\t0\n"), Err(Errno::SRCH));
    }

    #[test]
    fn a_disposition_is_read_signal_by_signal() {
        let text = b"Name:\tx\nSigQ:\t0/1\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n\
            SigBlk:\t0000000000004000\nSigIgn:\t0000000000000004\nSigCgt:\t0000000000000002\n";
        let masks = |signal| {
            let d = Disposition::parse(text, signal).unwrap();
            [d.pending, d.blocked, d.ignored, d.caught]
        };
        assert_eq!(masks(libc::SIGTERM), [true, true, false, false]);
        assert_eq!(masks(libc::SIGQUIT), [false, false, true, false]);
        assert_eq!(masks(libc::SIGINT), [false, false, false, true]);
        assert_eq!(Disposition::parse(b"Name:\tx\n", 15), None);
        assert_eq!(Disposition::parse(text, 0), None);
    }

    #[test]
    fn a_killed_process_is_ending_before_it_has_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.is_ending());
        child.kill().unwrap();
        assert!(process.is_ending());
        child.wait().unwrap();
        assert!(process.is_ending());
    }

    #[test]
    fn exec_changes_the_image() {
        // A shell that waits for a line and then becomes another program.
        let mut child = Command::new("sh")
            .args(["-c", "read x; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        // Until its own exec is over, not only under way.
        while name(child.id()) != "sh" || process.stat().unwrap().image.code == 0 {
            std::thread::yield_now();
        }
        let before = process.stat().unwrap().image;
        assert_eq!(process.stat().unwrap().image, before);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        while name(child.id()) != "sleep" {
            std::thread::yield_now();
        }
        assert_ne!(process.stat().unwrap().image, before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
