//! Which file a command names, and whether its memory can be managed: that takes a program
//! which loads the preload library, so a dynamic, native glibc executable that the kernel
//! does not run with raised privileges.
//!
//! Reads headers only; executes nothing.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How many interpreters of interpreters the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// An executable file, found.
#[derive(Debug)]
pub struct Program {
    /// The file to execute.
    pub path: PathBuf,
    /// Whether its memory can be managed.
    pub kind: Kind,
}

/// What the preload library can do with it.
#[derive(PartialEq, Eq, Debug)]
pub enum Kind {
    /// Loads it.
    Managed,
    /// Never does, for this reason.
    Unmanaged(Reason),
}

/// Why a program's memory cannot be managed.
#[derive(PartialEq, Eq, Debug)]
pub enum Reason {
    /// No dynamic loader.
    Static,
    /// setuid, setgid or file capabilities: the loader ignores LD_PRELOAD.
    Privileged,
    /// For another processor or word size.
    Foreign,
    /// Another C library's loader, by its path.
    OtherLibc(String),
    /// Go maps its heap without the C library.
    Go,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Static => f.write_str("it is statically linked"),
            Reason::Privileged => f.write_str("it is setuid, setgid or has file capabilities"),
            Reason::Foreign => f.write_str("it is built for another processor or word size"),
            Reason::OtherLibc(loader) => write!(f, "it uses another C library ({loader})"),
            Reason::Go => {
                f.write_str("it is a Go program, which maps its memory without the C library")
            }
        }
    }
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
            Ok(meta) => {
                let kind = classify(&file, &meta, MAX_SCRIPTS)?;
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

/// The program that a process runs and why its memory cannot be managed; none if it can, or if that
/// cannot be told.
pub fn unmanaged(pid: u32) -> Option<(PathBuf, Reason)> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let meta = std::fs::metadata(&link).ok()?;
    match classify(&link, &meta, 0).ok()? {
        Kind::Unmanaged(reason) => Some((std::fs::read_link(&link).ok()?, reason)),
        Kind::Managed => None,
    }
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

fn executable(file: &Path) -> io::Result<Metadata> {
    let meta = std::fs::metadata(file)?;
    if meta.is_dir() {
        return Err(io::Error::other("it is a directory: name a program"));
    }
    rustix::fs::access(file, rustix::fs::Access::EXEC_OK)?;
    Ok(meta)
}

fn classify(file: &Path, meta: &Metadata, scripts_left: usize) -> Result<Kind, NotExecutable> {
    let refuse =
        |why: &str| NotExecutable::Refused(format!("cannot execute {}: {why}", file.display()));
    if raises_privileges(file, meta) {
        return Ok(Kind::Unmanaged(Reason::Privileged));
    }
    // An executable that may not be read still runs; nothing can be said about it.
    let Ok(opened) = File::open(file) else {
        return Ok(Kind::Managed);
    };
    let mut head = Vec::new();
    if let Err(error) = (&opened).take(4096).read_to_end(&mut head) {
        return Err(refuse(&error.to_string()));
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line
            .split(|&b| b == b'\n')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let interpreter = line
            .split(|b| b.is_ascii_whitespace())
            .next()
            .unwrap_or_default();
        if scripts_left == 0 || interpreter.is_empty() {
            return Err(refuse("its #! line leads nowhere: correct it"));
        }
        let interpreter = Path::new(OsStr::from_bytes(interpreter));
        let meta = executable(interpreter).map_err(|error| {
            refuse(&format!(
                "its interpreter {}: {error}: install it, or correct the #! line",
                interpreter.display()
            ))
        })?;
        return classify(interpreter, &meta, scripts_left - 1);
    }
    match elf(&opened, &head) {
        Some(kind) => Ok(kind),
        None if head.starts_with(b"\x7fELF") => Err(refuse(
            "its ELF header is damaged: install or build it anew",
        )),
        // The kernel may know the format through binfmt_misc; otherwise exec says ENOEXEC.
        None => Ok(Kind::Managed),
    }
}

/// Whether the kernel would run the file with other rights than ours (AT_SECURE).
fn raises_privileges(file: &Path, meta: &Metadata) -> bool {
    let setuid = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw();
    // Without group execute the bit means mandatory locking instead.
    let setgid =
        meta.mode() & 0o2010 == 0o2010 && meta.gid() != rustix::process::getegid().as_raw();
    let root = rustix::process::geteuid().is_root();
    let capabilities =
        || rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64][..]).is_ok();
    setuid || setgid || (!root && capabilities())
}

/// What the ELF headers say; `None` if they are not whole.
fn elf(file: &File, head: &[u8]) -> Option<Kind> {
    const PT_INTERP: u32 = 3;
    const PT_NOTE: u32 = 4;
    let ident = head.get(..20)?;
    if !ident.starts_with(b"\x7fELF") {
        return None;
    }
    let machine = u16::from_le_bytes([ident[18], ident[19]]);
    let native = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    let (wide, little) = (ident[4] == 2, ident[5] == 1);
    if !wide || !little || machine != native {
        return Some(Kind::Unmanaged(Reason::Foreign));
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let offset = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let (size, count) = (u16_at(54)? as usize, u16_at(56)? as usize);
    if size < 56 {
        return None;
    }
    let mut table = vec![0; size * count];
    file.read_exact_at(&mut table, offset).ok()?;
    let mut interpreter = None;
    let mut go = false;
    for header in table.chunks_exact(size) {
        let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
        let offset = u64::from_le_bytes(header[8..16].try_into().ok()?);
        let len = u64::from_le_bytes(header[32..40].try_into().ok()?).min(4096) as usize;
        let content = || {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
        };
        match kind {
            PT_INTERP => interpreter = Some(content()?),
            // Name size 4, then the name, of the note that carries Go's build id.
            PT_NOTE => {
                go |= content().is_some_and(|b| {
                    b.get(..4) == Some(&[4, 0, 0, 0]) && b.get(12..16) == Some(b"Go\0\0")
                })
            }
            _ => {}
        }
    }
    let Some(interpreter) = interpreter else {
        return Some(Kind::Unmanaged(Reason::Static));
    };
    let loader = String::from_utf8_lossy(&interpreter)
        .trim_end_matches('\0')
        .to_string();
    let glibc = Path::new(&loader)
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
    Some(match (glibc, go) {
        (false, _) => Kind::Unmanaged(Reason::OtherLibc(loader)),
        (true, true) => Kind::Unmanaged(Reason::Go),
        (true, false) => Kind::Managed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
            Kind::Unmanaged(Reason::Static)
        );
        assert_eq!(
            of("foreign", &header(2, 8, b"")),
            Kind::Unmanaged(Reason::Foreign)
        );
        assert_eq!(
            of("wide", &header(1, native, b"")),
            Kind::Unmanaged(Reason::Foreign)
        );
        let musl = "/lib/ld-musl-x86_64.so.1";
        assert_eq!(
            of("musl", &header(2, native, format!("{musl}\0").as_bytes())),
            Kind::Unmanaged(Reason::OtherLibc(musl.into()))
        );
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(of("glibc", &header(2, native, glibc)), Kind::Managed);
        let damaged = scratch("damaged", &header(2, native, glibc)[..100], 0o755);
        assert_eq!(find(damaged.as_os_str(), None).unwrap_err().status(), 126);
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
