//! `ebb run`: a program and all it starts, within a memory budget.

use crate::cli::RunArgs;
use crate::program::{self, Kind};
use crate::wait::{self, Running};
use crate::{FAILED, doctor};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The library that is loaded into every program of the tree.
const PRELOAD: &str = "libebb_preload.so";

/// Runs the command; the exit status is the program's own.
///
/// # Errors
/// Whatever keeps it from being started; nothing has been changed then.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let (name, rest) = args.command.split_first().context("no command was given")?;
    let path = std::env::var_os("PATH");
    let program = match program::find(name, path.as_deref()) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("ebb: {error}");
            return Ok(error.status().into());
        }
    };
    if let Kind::Unmanaged(reason) = &program.kind {
        let shown = program.path.display();
        if args.require_managed {
            bail!(
                "the memory of {shown} cannot be managed: {reason}; without --require-managed it runs unmanaged"
            );
        }
        eprintln!(
            "ebb: the memory of {shown} cannot be managed: {reason}; it stays in RAM, programs it starts are managed"
        );
    }
    doctor::must_work()?;

    let mut command = Command::new(&program.path);
    command.arg0(name).args(rest);
    load_into(&mut command, &preload_library()?)?;
    let signals = wait::prepare().context("cannot take signals")?;
    let running = match Running::start(command, signals) {
        Ok(running) => running,
        Err(error) => return Ok(not_started(&program.path, &error)),
    };
    let end = running.wait().context("lost sight of the program")?;
    Ok(end.status().into())
}

fn not_started(path: &Path, error: &std::io::Error) -> ExitCode {
    eprintln!("ebb: cannot execute {}: {error}", path.display());
    let status = match error.raw_os_error() {
        Some(libc::ENOENT) => 127,
        Some(
            libc::EACCES | libc::ENOEXEC | libc::EPERM | libc::ETXTBSY | libc::E2BIG | libc::ELOOP,
        ) => 126,
        _ => FAILED,
    };
    status.into()
}

/// The preload library that belongs to this very command: beside it, or in `../lib/ebb`.
///
/// # Errors
/// Names the places looked at.
pub fn preload_library() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(PRELOAD), dir.join("../lib/ebb").join(PRELOAD)];
    match places.iter().find(|place| place.is_file()) {
        Some(found) => found
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", found.display())),
        None => bail!(
            "{PRELOAD} is missing: it belongs beside ebb, as {} or {}; build it with `cargo build --release` or reinstall",
            places[0].display(),
            places[1].display()
        ),
    }
}

/// Puts the library in front of those already preloaded.
fn load_into(command: &mut Command, library: &Path) -> Result<()> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.contains(&b':') {
        bail!(
            "ebb cannot be used from {}: the loader takes \":\" in a path as a separator; move it elsewhere",
            library.display()
        );
    }
    if bytes.iter().any(u8::is_ascii_whitespace) {
        // LD_PRELOAD cannot quote blanks either, LD_LIBRARY_PATH need not.
        let dir = library.parent().unwrap_or(Path::new("/")).as_os_str();
        command.env("LD_LIBRARY_PATH", prepended(dir, "LD_LIBRARY_PATH"));
        command.env("LD_PRELOAD", prepended(PRELOAD.as_ref(), "LD_PRELOAD"));
    } else {
        command.env("LD_PRELOAD", prepended(library.as_os_str(), "LD_PRELOAD"));
    }
    Ok(())
}

fn prepended(value: &OsStr, variable: &str) -> OsString {
    let mut text = value.to_os_string();
    if let Some(old) = std::env::var_os(variable).filter(|old| !old.is_empty()) {
        text.push(":");
        text.push(old);
    }
    text
}
