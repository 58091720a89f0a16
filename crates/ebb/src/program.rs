//! The file that a command names, and whether its memory can be managed (`ebb_sys::elf`).
//!
//! Reads headers only; executes nothing.

use ebb_sys::elf::{
    MAX_SCRIPTS, ProgramKind, UnmanagedReason, loader_of, program_kind, raises_privileges,
};
use ebb_sys::proc::{self, Process};
use ebb_tree::HIDDEN;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The preload library's file, which every managed program of the tree loads.
pub const LIBRARY: &str = "libebb_preload.so";

/// An executable file, found.
#[derive(Debug)]
pub struct Program {
    /// The file to execute.
    pub path: PathBuf,
    /// Flag: its memory can be managed.
    pub kind: Kind,
}

/// Whether a program loads the preload library.
#[derive(PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // There is one.
pub enum Kind {
    /// It loads it.
    Managed,
    /// It never does, for this reason.
    Unmanaged(UnmanagedReason),
}

/// Why a command cannot be executed.
#[derive(Debug)]
pub enum NotExecutable {
    /// No such command: exit 127.
    NotFound(String),
    /// There is one, but it cannot run: exit 126.
    Refused(String),
}

impl NotExecutable {
    /// Exit status, as shells have it.
    pub fn status(&self) -> u8 {
        match self {
            NotExecutable::NotFound(_) => 127,
            NotExecutable::Refused(_) => 126,
        }
    }
}

impl fmt::Display for NotExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotExecutable::NotFound(text) | NotExecutable::Refused(text) => f.write_str(text),
        }
    }
}

/// Finds `command` as execvp would, with the PATH `path`.
///
/// # Errors
/// See [`NotExecutable`].
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Result<Program, NotExecutable> {
    let shown = Path::new(command).display().to_string();
    if command.is_empty() {
        return Err(NotExecutable::NotFound(
            "the command is empty: name a program".into(),
        ));
    }
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![command.into()]
    } else {
        let path = path.map_or_else(|| OsString::from("/bin:/usr/bin"), OsString::from);
        std::env::split_paths(&path)
            .map(|dir| dir.join(command))
            .collect()
    };
    let mut refused = None;
    for file in candidates {
        match executable(&file) {
            Ok(()) => {
                let kind = classify(&file, MAX_SCRIPTS)?;
                return Ok(Program { path: file, kind });
            }
            Err(error) if not_there(&error) => {}
            Err(error) => {
                refused = refused.or(Some(format!(
                    "cannot execute {}: {error}{}",
                    file.display(),
                    next_step(&error)
                )))
            }
        }
    }
    Err(match refused {
        Some(text) => NotExecutable::Refused(text),
        None if shown.contains('/') => {
            NotExecutable::NotFound(format!("{shown}: no such file: check the path"))
        }
        None => NotExecutable::NotFound(format!(
            "{shown}: command not found in $PATH: install it, or give its path"
        )),
    })
}

/// Why the system says that a file is not there which is: its loader is not.
pub fn missing_loader(file: &Path) -> Option<String> {
    let loader = loader_of(File::open(file).ok()?)?;
    let is_there = Path::new(OsStr::from_bytes(loader.bytes())).exists();
    (!is_there).then(|| {
        format!("its loader {loader} is not there: install it, or a program that is built for this system")
    })
}

/// The program that a process of the tree runs, which has not joined, and the reason why its memory cannot be managed.
/// None if it can, or if nothing is known of it.
pub fn unmanaged(pid: u32) -> Option<(PathBuf, String)> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = match std::fs::read_link(&link) {
        Ok(path) => path,
        Err(error) => {
            let reason = unreadable(pid, &error)?;
            return Some((proc::name(pid).into(), reason.into()));
        }
    };
    let reason = match classify(&link, 0).ok()? {
        Kind::Unmanaged(reason) => reason.to_string(),
        Kind::Managed if lacks_library(pid) && has_own("mnt", pid) => {
            "it runs where other files are mounted (a sandbox, a container), and has not found the preload library"
                .into()
        }
        Kind::Managed if lacks_library(pid) => {
            "it has not loaded the preload library: what `sudo` and its like start does not".into()
        }
        Kind::Managed if has_own("net", pid) => {
            "it runs in a network namespace of its own, from which `ebb run` cannot be reached"
                .into()
        }
        Kind::Managed => return None,
    };
    Some((path, reason))
}

/// The reason why this process may not look at another's program; none of one that has ended.
fn unreadable(pid: u32, error: &io::Error) -> Option<&'static str> {
    if has_other_rights(pid) {
        return Some(
            "it has another user's rights: what `sudo` and its like start does not load the preload library",
        );
    }
    // Of one that ends there is no link at all.
    let hidden = error.kind() == ErrorKind::PermissionDenied;
    let lives = || Process::open(pid).is_ok_and(|process| !process.is_ending());
    (hidden && lives()).then_some(HIDDEN)
}

/// Whether a process is, or may become, a user that this one is not.
fn has_other_rights(pid: u32) -> bool {
    let (Ok(process), Ok(own)) = (Process::open(pid), Process::open(std::process::id())) else {
        return false;
    };
    // What could be read after it could be read before.
    !process.is_of_one_user_with(&own) && process.has_user(0).is_ok()
}

/// Whether a process has mapped libc without the library. Its loader maps what is preloaded first.
fn lacks_library(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let libc = ["/libc.so.6", "/libc-2."];
    libc.iter().any(|libc| maps.contains(libc)) && !maps.contains(LIBRARY)
}

/// Whether a process is in another namespace of this kind than this one. Of networks: the socket of `ebb run` has no file.
fn has_own(kind: &str, pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
    let theirs = namespace(&pid.to_string());
    theirs.is_some() && theirs != namespace("self")
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": make it executable with `chmod +x`",
        _ => "",
    }
}

fn not_there(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn executable(file: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(file)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::other("it is a directory: name a program"));
    }
    // To open a pipe would wait for its other end.
    if !kind.is_file() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(rustix::fs::access(file, rustix::fs::Access::EXEC_OK)?)
}

fn classify(file: &Path, scripts_left: usize) -> Result<Kind, NotExecutable> {
    let refuse =
        |why: &str| NotExecutable::Refused(format!("cannot execute {}: {why}", file.display()));
    // An executable that may not be read still runs; its mode alone tells something of it.
    let Ok(opened) = File::open(file) else {
        let raises = rustix::fs::stat(file).is_ok_and(|stat| raises_privileges(&stat));
        return Ok(match raises {
            true => Kind::Unmanaged(UnmanagedReason::Privileged),
            false => Kind::Managed,
        });
    };
    let image = program_kind(&opened).map_err(|error| refuse(&error.to_string()))?;
    let interpreter = match image {
        ProgramKind::Managed => return Ok(Kind::Managed),
        ProgramKind::Unmanaged(reason) => return Ok(Kind::Unmanaged(reason)),
        ProgramKind::Damaged => {
            return Err(refuse(
                "its ELF header is damaged: install or build it anew",
            ));
        }
        ProgramKind::Script(interpreter) => interpreter,
    };
    if scripts_left == 0 || interpreter.bytes().is_empty() {
        return Err(refuse("its #! line leads nowhere: correct it"));
    }
    let interpreter = Path::new(OsStr::from_bytes(interpreter.bytes()));
    executable(interpreter).map_err(|error| {
        refuse(&format!(
            "its interpreter {}: {error}: install it, or correct the #! line",
            interpreter.display()
        ))
    })?;
    classify(interpreter, scripts_left - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    fn scratch(name: &str, content: &[u8], mode: u32) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("ebb-program-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(name);
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn kind(file: &Path) -> Kind {
        find(file.as_os_str(), None).unwrap().kind
    }

    #[test]
    fn a_dynamic_program_and_a_script_of_it() {
        assert_eq!(kind(Path::new("/bin/sh")), Kind::Managed);
        let script = scratch("script", b"#! /bin/sh -e\nexit\n", 0o755);
        assert_eq!(kind(&script), Kind::Managed);
    }

    #[test]
    fn static_foreign_and_other_libc() {
        let header = |class: u8, machine: u16, interpreter: &[u8]| {
            let mut file = vec![0; 120 + interpreter.len()];
            file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
            file[18..20].copy_from_slice(&machine.to_le_bytes());
            file[32] = 64; // program headers right after the ELF header
            file[54] = 56;
            file[56] = 1;
            let kind = if interpreter.is_empty() { 1 } else { 3 };
            file[64] = kind;
            file[72] = 120;
            file[96] = interpreter.len() as u8;
            file[120..].copy_from_slice(interpreter);
            file
        };
        let native = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        let of = |name: &str, bytes: &[u8]| kind(&scratch(name, bytes, 0o755));
        assert_eq!(
            of("static", &header(2, native, b"")),
            Kind::Unmanaged(UnmanagedReason::Static)
        );
        assert_eq!(
            of("foreign", &header(2, 8, b"")),
            Kind::Unmanaged(UnmanagedReason::Foreign)
        );
        assert_eq!(
            of("wide", &header(1, native, b"")),
            Kind::Unmanaged(UnmanagedReason::Foreign)
        );
        let musl = "/lib/ld-musl-x86_64.so.1";
        let kind = of("musl", &header(2, native, format!("{musl}\0").as_bytes()));
        assert!(
            matches!(kind, Kind::Unmanaged(UnmanagedReason::OtherLibc(ref loader)) if loader.to_string() == musl),
            "{kind:?}"
        );
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(of("glibc", &header(2, native, glibc)), Kind::Managed);
        // A program may bring a loader of its own. It names the versions that it has.
        let loader = std::fs::read("/lib64/ld-linux-x86-64.so.2").unwrap();
        let needed = b"GLIBC_2.34\0";
        let at = loader.windows(needed.len()).position(|w| w == needed);
        let mut old = loader.clone();
        old[at.expect("a recent glibc") + 9] = b'3';
        for (name, bytes, is_old) in [
            ("ld-linux-new.so", &loader, false),
            ("ld-linux-old.so", &old, true),
        ] {
            let path = scratch(name, bytes, 0o755);
            let interpreter = [path.as_os_str().as_encoded_bytes(), b"\0"].concat();
            let found = of("own-loader", &header(2, native, &interpreter));
            let reason = matches!(found, Kind::Unmanaged(UnmanagedReason::OldLibc(_)));
            assert_eq!(reason, is_old, "{name}: {found:?}");
            // Started itself, it loads a program and the library.
            let found = of(name, &[&header(2, native, b"")[..], bytes].concat());
            let reason = matches!(found, Kind::Unmanaged(UnmanagedReason::OldLibc(_)));
            assert_eq!(reason, is_old, "{name}: {found:?}");
            assert!(is_old || found == Kind::Managed, "{name}: {found:?}");
        }
        let damaged = scratch("damaged", &header(2, native, glibc)[..100], 0o755);
        assert_eq!(find(damaged.as_os_str(), None).unwrap_err().status(), 126);
    }

    /// A program that waits, with its loader done.
    struct Waiting(Child);

    impl Waiting {
        fn start(command: &mut Command) -> Self {
            command.args(["-c", "echo; read line"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let out = child.stdout.as_mut().unwrap();
            out.read_exact(&mut [0]).unwrap();
            Self(child)
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_without_the_library_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LIBRARY);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-x", "c", "/dev/null", "-o"])
            .arg(&file);
        assert!(cc.status().unwrap().success());
        let without = Waiting::start(&mut Command::new("sh"));
        let (_, reason) = unmanaged(without.0.id()).unwrap();
        assert!(reason.contains("not loaded the preload"), "{reason}");
        let with = Waiting::start(Command::new("sh").env("LD_PRELOAD", &file));
        assert_eq!(unmanaged(with.0.id()), None);
    }

    #[test]
    fn other_rights_are_those_of_another_user() {
        let same = Waiting::start(&mut Command::new("sh"));
        assert!(!has_other_rights(same.0.id()));
        assert!(!has_other_rights(i32::MAX as u32), "there is none");
        // Only root can start another user's program.
        if rustix::process::geteuid().is_root() {
            let other = Waiting::start(Command::new("sh").uid(65534));
            assert!(has_other_rights(other.0.id()));
        }
    }

    #[test]
    fn what_cannot_run() {
        let status = |command: &str| {
            find(command.as_ref(), Some("/bin".as_ref()))
                .unwrap_err()
                .status()
        };
        assert_eq!(status("no-such-command-at-all"), 127);
        assert_eq!(status("/no/such/file"), 127);
        assert_eq!(status(""), 127);
        assert_eq!(status("/tmp"), 126);
        let plain = scratch("plain", b"data", 0o644);
        assert_eq!(status(plain.to_str().unwrap()), 126);
        let dangling = scratch("dangling", b"#!/no/such/interpreter\n", 0o755);
        let error = find(dangling.as_os_str(), None).unwrap_err();
        assert_eq!(error.status(), 126);
        assert!(
            error.to_string().contains("/no/such/interpreter"),
            "{error}"
        );
    }

    #[test]
    fn a_script_that_interprets_itself_ends() {
        let file = scratch("loop", b"", 0o755);
        std::fs::write(&file, format!("#!{}\n", file.display())).unwrap();
        assert_eq!(find(file.as_os_str(), None).unwrap_err().status(), 126);
    }
}
