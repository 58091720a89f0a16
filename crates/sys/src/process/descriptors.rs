//! Descriptors beside the standard streams that this process was started with. They are for the programs that it starts,
//! and not for it: whoever reads the other end of a pipe waits until nobody has this one.

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first one that is no standard stream.
const FIRST: RawFd = 3;

/// Their numbers.
#[derive(Debug)]
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Those that programs of this process inherit. Before anything else opens any: they are nobody's here.
    pub fn note() -> Self {
        let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
        let numbers = numbers.flatten().filter_map(|entry| {
            let number = entry.file_name();
            number.to_str()?.parse().ok()
        });
        Self(
            numbers
                .filter(|fd| *fd >= FIRST && is_inherited(*fd))
                .collect(),
        )
    }

    /// Closes them, here alone.
    pub fn close(self) {
        for fd in self.0 {
            // SAFETY: it was open before this process opened anything, so no value here owns it.
            unsafe { libc::close(fd) };
        }
    }
}

fn is_inherited(fd: RawFd) -> bool {
    // SAFETY: asks for the flags of a number, whatever that is.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Keeps all but the standard streams from the program that `command` starts. A filter that refuses the call leaves them.
pub fn keep_from(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory. The library's own descriptors, which it marks
    // too, are closed at the exec in any case.
    unsafe {
        command.pre_exec(|| {
            let to_exec = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
            libc::close_range(FIRST as libc::c_uint, libc::c_uint::MAX, to_exec);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// A descriptor that programs inherit.
    fn inherited(fd: &impl AsRawFd) -> OwnedFd {
        // SAFETY: the new descriptor is this value's alone.
        unsafe { OwnedFd::from_raw_fd(libc::dup(fd.as_raw_fd())) }
    }

    #[test]
    fn a_program_gets_them_unless_they_are_kept_from_it() {
        let (_read, write) = pipe().unwrap();
        let given = inherited(&write);
        let look = format!("[ -e /proc/self/fd/{} ]", given.as_raw_fd());
        let has = |kept: bool| {
            let mut command = Command::new("sh");
            command.args(["-c", &look]);
            if kept {
                keep_from(&mut command);
            }
            command.status().unwrap().success()
        };
        assert_eq!((has(false), has(true)), (true, false));
    }

    #[test]
    fn those_that_are_closed_keep_no_reader_waiting() {
        let (mut read, write) = pipe().unwrap();
        let given = inherited(&write);
        let Inherited(all) = Inherited::note();
        assert!(all.contains(&given.as_raw_fd()) && !all.contains(&write.as_raw_fd()));
        drop(write);
        // Of others', which tests beside this one have, none is closed.
        Inherited(vec![std::os::fd::IntoRawFd::into_raw_fd(given)]).close();
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }
}
