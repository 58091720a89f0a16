//! The exec family: each program is started with an environment that keeps ebbtide ([`environment`](super::environment)),
//! unless it may not be started at all ([`exec_policy`](super::exec_policy)).
//!
//! Fit for the child of a vfork: no lock, no heap.
//!
//! Not here: what becomes of a program ([`exec_target`]).

use core::ffi::{c_char, c_int, c_long, c_void};

use ebb_sys::{memory, raw};

use crate::process::environment::{Strings, reachable, with_environment};
use crate::process::exec_policy::check;
use crate::process::exec_target::{self, Search, Target};
use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::{libc_result, not_there};

type Exec = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type ExecHere = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
type ExecList = unsafe extern "C" fn(*const c_char, *const c_char, ...) -> c_int;
type ExecDescriptor = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut c_int,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    Strings,
    Strings,
) -> c_int;

// SAFETY: the types are those of the manual pages.
static EXECVE: DlsymNext<Exec> = unsafe { DlsymNext::new(c"execve") };
// SAFETY: as above.
static EXECVPE: DlsymNext<Exec> = unsafe { DlsymNext::new(c"execvpe") };
// SAFETY: as above.
static EXECV: DlsymNext<ExecHere> = unsafe { DlsymNext::new(c"execv") };
// SAFETY: as above.
static EXECVP: DlsymNext<ExecHere> = unsafe { DlsymNext::new(c"execvp") };
// SAFETY: as above.
static EXECL: DlsymNext<ExecList> = unsafe { DlsymNext::new(c"execl") };
// SAFETY: as above.
static EXECLP: DlsymNext<ExecList> = unsafe { DlsymNext::new(c"execlp") };
// SAFETY: as above.
static FEXECVE: DlsymNext<ExecDescriptor> = unsafe { DlsymNext::new(c"fexecve") };
// SAFETY: as above.
static POSIX_SPAWN: DlsymNext<Spawn> = unsafe { DlsymNext::new(c"posix_spawn") };
// SAFETY: as above.
static POSIX_SPAWNP: DlsymNext<Spawn> = unsafe { DlsymNext::new(c"posix_spawnp") };
// SAFETY: as above; a descriptor's type is that of a number. Looked up when first called: each look in a libc without
// it, older than glibc 2.39, would leave the program an error of `dlerror`.
static PIDFD_SPAWN: DlsymNext<Spawn> = unsafe { DlsymNext::new(c"pidfd_spawn") };
// SAFETY: as above.
static PIDFD_SPAWNP: DlsymNext<Spawn> = unsafe { DlsymNext::new(c"pidfd_spawnp") };

unsafe extern "C" {
    static environ: Strings;
}

pub fn resolve() {
    EXECVE.get();
    EXECVPE.get();
    EXECV.get();
    EXECVP.get();
    EXECL.get();
    EXECLP.get();
    FEXECVE.get();
    POSIX_SPAWN.get();
    POSIX_SPAWNP.get();
}

/// Makes an exec that nothing forbids.
///
/// # Safety
/// `envp` is an environment.
unsafe fn start(target: Target, envp: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    let target = reachable(target);
    match check(&target) {
        Ok(()) => {
            // SAFETY: by the caller's contract.
            unsafe { with_environment(&target, envp, call) }
        }
        Err(error) => {
            // SAFETY: the location is this thread's.
            unsafe { *libc::__errno_location() = error };
            -1
        }
    }
}

/// A path is looked up as it stands.
const AT_PATH: Search = Search::At(libc::AT_FDCWD);

/// An exec by the `next` function. Another library's function that takes the process's own environment is called in its
/// place, where that environment is given and needs no repair.
///
/// # Safety
/// `exec(3)`'s.
#[inline(never)]
unsafe fn exec_by(
    next: &DlsymNext<Exec>,
    of_another: Option<ExecHere>,
    (file, search): (*const c_char, Search),
    argv: Strings,
    envp: Strings,
) -> c_int {
    let Some(next) = next.get() else {
        return not_there();
    };
    // SAFETY: the caller's call, with the environment made whole; so in each one below.
    unsafe {
        let target = exec_target::named(file, search);
        start(target, envp, |whole| match of_another {
            Some(of_another) if whole == envp => of_another(file, argv),
            _ => next(file, argv, whole),
        })
    }
}

/// `execve`, also for csrc/glue.c.
///
/// # Safety
/// `execve(2)`'s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ebb_exec_path(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { exec_by(&EXECVE, None, (path, AT_PATH), argv, envp) }
}

/// `execl`, for csrc/glue.c. Another library that has one is taken to gather the arguments for its own `execv`.
///
/// # Safety
/// `execv(3)`'s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ebb_exec_list(path: *const c_char, argv: Strings) -> c_int {
    let of_another = EXECL.of_another().and_then(|_| EXECV.of_another());
    // SAFETY: as above; `environ` is the process's environment.
    unsafe { exec_by(&EXECVE, of_another, (path, AT_PATH), argv, environ) }
}

/// `execlp`, in the same way.
///
/// # Safety
/// `execvp(3)`'s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ebb_exec_list_search(file: *const c_char, argv: Strings) -> c_int {
    let of_another = EXECLP.of_another().and_then(|_| EXECVP.of_another());
    // SAFETY: as above.
    unsafe { exec_by(&EXECVPE, of_another, (file, Search::Path), argv, environ) }
}

/// # Safety
/// `execve(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { ebb_exec_path(path, argv, envp) }
}

/// # Safety
/// `execv(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { exec_by(&EXECVE, EXECV.of_another(), (path, AT_PATH), argv, environ) }
}

/// # Safety
/// `execvp(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    let of_another = EXECVP.of_another();
    // SAFETY: as above.
    unsafe { exec_by(&EXECVPE, of_another, (file, Search::Path), argv, environ) }
}

/// # Safety
/// `execvpe(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { exec_by(&EXECVPE, None, (file, Search::Path), argv, envp) }
}

/// # Safety
/// `fexecve(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let Some(next) = FEXECVE.get() else {
        return not_there();
    };
    // SAFETY: as above.
    unsafe { start(exec_target::open(fd), envp, |envp| next(fd, argv, envp)) }
}

/// # Safety
/// `execveat(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let is_empty = || {
            let mut first = [1];
            memory::read_own(path as usize, &mut first).is_ok() && first == [0]
        };
        let target = match flags & libc::AT_EMPTY_PATH != 0 && is_empty() {
            true => exec_target::open(dir),
            false => exec_target::named(path, Search::At(dir)),
        };
        start(target, envp, |envp| {
            let [path, argv, envp] = [path.addr(), argv.addr(), envp.addr()].map(|a| a as c_long);
            let args = [dir.into(), path, argv, envp, flags.into(), 0];
            let outcome = raw::checked(libc::SYS_execveat, args);
            libc_result(|| outcome.map_err(|error| error.0)).map_or(-1, |_| 0)
        })
    }
}

/// A function of the family: its child is told by a number or a descriptor.
macro_rules! spawns {
    ($($name:ident, $next:ident, $search:expr;)*) => {$(
        /// # Safety
        /// `posix_spawn(3)`'s.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            child: *mut c_int,
            file: *const c_char,
            actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            // SAFETY: the caller's.
            unsafe {
                let target = exec_target::named(file, $search);
                spawn(&$next, target, child, file, actions, attributes, argv, envp)
            }
        }
    )*};
}

spawns! {
    posix_spawn, POSIX_SPAWN, Search::At(libc::AT_FDCWD);
    posix_spawnp, POSIX_SPAWNP, Search::Path;
    pidfd_spawn, PIDFD_SPAWN, Search::At(libc::AT_FDCWD);
    pidfd_spawnp, PIDFD_SPAWNP, Search::Path;
}

#[allow(clippy::too_many_arguments)] // They are posix_spawn's.
unsafe fn spawn(
    next: &DlsymNext<Spawn>,
    target: Target,
    child: *mut c_int,
    path: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    let Some(next) = next.get() else {
        return libc::ENOSYS;
    };
    let target = reachable(target);
    if let Err(error) = check(&target) {
        return error;
    }
    // SAFETY: as above.
    let status = unsafe {
        with_environment(&target, envp, |envp| {
            next(child, path, actions, attributes, argv, envp)
        })
    };
    // Spawning answers its error; -1 is ours, for a copy that found no room.
    if status == -1 { libc::ENOMEM } else { status }
}

/// The variadic members of the family: a jump, with every argument in its place, to the C
/// functions of csrc/glue.c, which Rust would not export from a static object.
mod variadic {
    use super::{c_char, c_int, c_void};
    use core::arch::naked_asm;

    unsafe extern "C" {
        fn ebb_execl(path: *const c_char, first: *const c_char, ...) -> c_int;
        fn ebb_execlp(file: *const c_char, first: *const c_char, ...) -> c_int;
        fn ebb_execle(path: *const c_char, first: *const c_char, ...) -> c_int;
    }

    macro_rules! jump {
        ($($name:ident => $target:ident;)*) => {$(
            /// # Safety
            /// `execl(3)`'s.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name(_path: *const c_char, _first: *const c_void) -> c_int {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("jmp {}", sym $target);
                #[cfg(target_arch = "aarch64")]
                naked_asm!("b {}", sym $target);
            }
        )*};
    }

    jump! {
        execl => ebb_execl;
        execlp => ebb_execlp;
        execle => ebb_execle;
    }
}
