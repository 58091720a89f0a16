//! One process, named for good.
//!
//! An open file of `/proc/PID` stays bound to that process: after its death a read fails with ESRCH,
//! even when the number is used again. So a [`Process`] names one process for good; a pid does not.
//! The files read every few milliseconds (`stat`, `statm`) are kept open.

use super::file::{Path, read};
use super::stat::{Disposition, Rollup, Stat, Statm, secure_execution, users};
use super::status;
use super::tree::{children, numbers_in};
use crate::kernel::file::Descriptor;
use crate::kernel::raw;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::c_long;
use std::os::fd::{AsRawFd, OwnedFd};

/// In debug builds, a number for the program that a process of a simulation runs: another after each exec.
#[cfg(debug_assertions)]
static SIMULATED: std::sync::OnceLock<fn(u32) -> u64> = std::sync::OnceLock::new();

/// The images of processes are a simulation's from now on.
#[cfg(debug_assertions)]
pub fn simulate_images(image_of: fn(u32) -> u64) {
    SIMULATED.get_or_init(|| image_of);
}

/// One process, for good.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    stat: Descriptor,
    statm: Descriptor,
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
        let stat = self.read_stat()?;
        if stat.parent == 0 {
            // The kernel writes so of one that is reaped while it is read, too, with the state from before. That one is
            // gone now.
            return self.read_stat();
        }
        Ok(stat)
    }

    fn read_stat(&self) -> Result<Stat, Errno> {
        let mut buf = [0; 1024];
        let stat = Stat::parse(read(&self.stat, &mut buf)?).ok_or(Errno::IO)?;
        #[cfg(debug_assertions)]
        if let Some(image_of) = SIMULATED.get() {
            let mut stat = stat;
            stat.image.code ^= image_of(self.pid);
            return Ok(stat);
        }
        Ok(stat)
    }

    /// Its parent; none if that is out of sight, as init's is.
    ///
    /// # Errors
    /// ESRCH or ENOENT if one of them is gone, EMFILE.
    pub fn parent(&self) -> Result<Option<Self>, Errno> {
        loop {
            let pid = self.stat()?.parent;
            if pid == 0 {
                return Ok(None);
            }
            let parent = Self::open(pid);
            // Opened by number: it is the parent's if the parent still is. Each turn, a parent has ended.
            if self.stat()?.parent == pid {
                return parent.map(Some);
            }
        }
    }

    /// Its `statm`; zeros when it is a zombie. Where its first thread alone has ended, another's says as much.
    ///
    /// # Errors
    /// ESRCH once it has been reaped; EIO if the text is not as expected.
    pub fn statm(&self) -> Result<Statm, Errno> {
        let mut buf = [0; 256];
        let statm = Statm::parse(read(&self.statm, &mut buf)?).ok_or(Errno::IO)?;
        match statm.resident {
            0 => self.statm_of_a_thread().map_or(Ok(statm), Ok),
            _ => Ok(statm),
        }
    }

    /// Whether it has ended, all of its threads.
    pub fn has_ended(&self) -> bool {
        match self.stat() {
            Ok(stat) => stat.is_dead() && self.statm().is_ok_and(|held| held.resident == 0),
            // Anything else is want of memory, for what the kernel shows there.
            Err(error) => error == Errno::SRCH,
        }
    }

    fn statm_of_a_thread(&self) -> Option<Statm> {
        let mut found = None;
        numbers_in(format_args!("/proc/{}/task", self.pid), |thread| {
            let path = Path::new(format_args!("/proc/{}/task/{thread}/statm", self.pid));
            let mut buf = [0; 256];
            let statm = path.open(OFlags::RDONLY).ok();
            let statm = statm.and_then(|fd| Statm::parse(read(&fd, &mut buf).ok()?));
            found = found.or(statm.filter(|statm| statm.resident > 0));
        })
        .ok()?;
        // Opened by number: ours only if our process is still there.
        self.stat().ok().and(found)
    }

    /// Whether it is, or can become again without executing another program, this user: that is among
    /// its real, effective and saved ones.
    ///
    /// # Errors
    /// ESRCH if it is gone, EIO on unexpected text.
    pub fn has_user(&self, user: u32) -> Result<bool, Errno> {
        Ok(self.users()?.contains(&u64::from(user)))
    }

    /// Whether it is this user and no other, and cannot become another without executing a program.
    ///
    /// # Errors
    /// As above.
    pub fn is_user(&self, user: u32) -> Result<bool, Errno> {
        Ok(self.users()? == [u64::from(user); 3])
    }

    /// Whether both are one user and no other, and cannot become another.
    pub fn is_of_one_user_with(&self, other: &Self) -> bool {
        let users = self.users();
        let one = users.is_ok_and(|[real, effective, saved]| real == effective && real == saved);
        one && users == other.users()
    }

    /// Whether its program has rights of its file's: setuid, setgid, or file capabilities (AT_SECURE). It may have given
    /// them up by now, and keeps what it learnt by them.
    ///
    /// # Errors
    /// ESRCH if it is gone, EACCES if it may not be looked at, EIO where nothing tells.
    pub fn has_rights_of_its_file(&self) -> Result<bool, Errno> {
        let fd = Path::new(format_args!("/proc/{}/auxv", self.pid)).open(OFlags::RDONLY)?;
        let mut buf = [0; 1024];
        let secure = secure_execution(read(&fd, &mut buf)?).ok_or(Errno::IO)?;
        // Opened by number: ours only if our process is still there.
        self.stat()?;
        Ok(secure)
    }

    /// Its real, effective and saved user.
    fn users(&self) -> Result<[u64; 3], Errno> {
        let fd = Path::new(format_args!("/proc/{}/status", self.pid)).open(OFlags::RDONLY)?;
        let mut buf = [0; 2048];
        let users = users(read(&fd, &mut buf)?).ok_or(Errno::IO)?;
        // Opened by number: ours only if our process is still there.
        self.stat()?;
        Ok(users)
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
    /// calls exec. Where kcmp(2) may not say, as in most containers: whether both show the same memory, of the same
    /// sizes. A child of fork does not: it begins without the pages of files that its parent has.
    pub fn lives_in(&self, other: u32) -> bool {
        let looks_so = || {
            let look = |process: &Process| {
                let stat = process.stat().ok()?;
                Some((stat.image, stat.size, process.statm().ok()?))
            };
            Process::open(other).is_ok_and(|other| {
                let [before, own, after] = [&other, self, &other].map(look);
                own == before && own == after && own.is_some_and(|(image, ..)| image.is_some())
            })
        };
        share_memory(self.pid, other).unwrap_or_else(looks_so)
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

    /// The disposition of a signal in its first thread; none if it is gone.
    pub fn disposition(&self, signal: i32) -> Option<Disposition> {
        let file = Path::new(format_args!("/proc/{}/status", self.pid)).open(OFlags::RDONLY);
        let mut kept = [0; 256];
        let text = status::lines(&file.ok()?, &Disposition::LINES, &mut kept);
        Disposition::parse(text.ok()?, signal)
    }

    /// Calls `f` with the pid of each child of any of its threads.
    ///
    /// # Errors
    /// ESRCH or ENOENT if it is gone.
    pub fn children(&self, f: impl FnMut(u32)) -> Result<(), Errno> {
        children(self.pid, f)
    }
}

/// Whether two processes share one memory; none where kcmp(2) may not say, or one is gone.
pub fn share_memory(one: u32, other: u32) -> Option<bool> {
    const KCMP_VM: c_long = 1;
    let args = [one.into(), other.into(), KCMP_VM, 0, 0, 0];
    // SAFETY: compares two processes by number, and touches no memory.
    let order = unsafe { raw::call(libc::SYS_kcmp, args) };
    (order >= 0).then_some(order == 0)
}

/// Minor faults of process `pid` so far; 0 if it is gone.
pub fn minor_faults(pid: u32) -> u64 {
    stat_of(pid).map_or(0, |stat| stat.minor_faults)
}

/// The content of `/proc/PID/stat` for process `pid`. None: it cannot be read.
pub fn stat_of(pid: u32) -> Option<Stat> {
    let mut buf = [0; 1024];
    let fd = Path::new(format_args!("/proc/{pid}/stat")).open(OFlags::RDONLY);
    Stat::parse(read(&fd.ok()?, &mut buf).ok()?)
}

/// The name of a process, as in `/proc/PID/comm`, or "?" if it is gone. Control characters
/// are replaced.
pub fn name(pid: u32) -> String {
    name_if_there(pid).unwrap_or_else(|| "?".into())
}

/// The same; none if it is gone.
pub fn name_if_there(pid: u32) -> Option<String> {
    let mut buf = [0; 64];
    let file = Path::new(format_args!("/proc/{pid}/comm")).open(OFlags::RDONLY);
    let text = read(&file.ok()?, &mut buf).ok()?;
    let text = String::from_utf8_lossy(text.trim_ascii_end());
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    Some(shown.collect())
}

/// Opens the file of a descriptor that cannot be read (O_PATH), to read.
///
/// # Errors
/// Those of open(2).
pub(crate) fn open_again(fd: impl AsRawFd) -> Result<Descriptor, Errno> {
    let path = Path::new(format_args!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
    path.open(OFlags::RDONLY | OFlags::NONBLOCK)
}

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
    let path = Path::new(format_args!("/proc/{process}/fd/{fd}"));
    let file = path.open(OFlags::from_bits_retain(flags) & kept)?;
    Ok(file.into())
}
