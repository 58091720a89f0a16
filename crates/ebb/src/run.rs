//! `ebb run`: a program and all it starts, within a memory budget.

use crate::cli::RunArgs;
use crate::program::{self, Kind, NotExecutable, Program};
use crate::stats::{self, StatsFile};
use crate::wait::{self, Running};
use crate::{FAILED, doctor, setup};
use anyhow::{Context, Result, bail};
use ebb_sys::background::{self, Side};
use ebb_tree::Supervisor;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Names the supervisor to the processes of the tree.
const CONTROL: &str = "EBB_CONTROL";
const REQUIRE_MANAGED: &str = "EBB_REQUIRE_MANAGED";

/// How long the processes that served programs which have ended are waited for: they have to give their
/// memory back, which takes some 0.1 s a gigabyte.
const HELPERS: Duration = Duration::from_secs(10);

/// The library that is loaded into every program of the tree.
const PRELOAD: &str = "libebb_preload.so";

/// Runs the command; the exit status is the program's own.
///
/// # Errors
/// Whatever keeps it from being started; nothing has been changed then.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let setup = setup::setup(&args)?;
    let program = match find(&args)? {
        Ok(program) => program,
        Err(error) => {
            eprintln!("ebb: {error}");
            return Ok(error.status().into());
        }
    };
    doctor::must_work()?;
    let library = preload_library()?;
    let mut stats_file = args.stats.as_deref().map(StatsFile::open).transpose()?;

    // Before the supervisor: whatever thread it starts must not take our signals.
    let signals = wait::prepare().context("cannot take signals")?;
    let mut supervisor = Supervisor::new(setup)?;
    let mut command = Command::new(&program.path);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    load_into(&mut command, &library)?;
    command.env(CONTROL, supervisor.control_value());
    // The preload library heeds it where programs of the tree start others (`refuse`).
    command.env_remove(REQUIRE_MANAGED);
    if args.require_managed {
        command.env(REQUIRE_MANAGED, "1");
    }
    let start = Instant::now();
    let running = match Running::start(command, signals) {
        Ok(running) => running,
        Err(error) => return Ok(not_started(&program.path, &error)),
    };
    // The program has started, so this is none of its.
    ebb_sys::thread::prompt();
    let mut told = program.kind != Kind::Managed;
    let end = running
        .wait(&mut supervisor, |tree| {
            told = told || tell_of_unmanaged(tree)
        })
        .context("lost sight of the program")?;
    let mut report = |supervisor: &Supervisor| {
        let Some(file) = &mut stats_file else { return };
        let totals = supervisor.totals();
        let stats = stats::stats(&args.command, &totals, end, start.elapsed());
        // The program has run: what becomes of its figures does not change how it ended.
        if let Err(error) = file.write(&stats) {
            eprintln!("ebb: --stats: {error:#}");
        }
    };
    // Of a dead program's last words some may still be on their way.
    supervisor.turn()?;
    supervisor.see_helpers_off(HELPERS)?;
    report(&supervisor);
    if supervisor.has_processes() && background::split() == Ok(Side::Back) {
        stay_behind(&mut supervisor, &running)?;
        report(&supervisor);
    }
    Ok(end.status().into())
}

/// The program has ended, processes it started live on: they are supervised as long as they do.
/// Whoever waits for the end of our output waits for them alone.
fn stay_behind(supervisor: &mut Supervisor, running: &Running) -> Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    while supervisor.has_processes() {
        supervisor.step(Duration::from_secs(1))?;
        running.pass_on_to_all(supervisor);
    }
    supervisor.see_helpers_off(HELPERS)?;
    Ok(())
}

/// Whether a program that the command started cannot be managed; says so. Once is enough: who starts one
/// mostly starts many.
fn tell_of_unmanaged(supervisor: &mut Supervisor) -> bool {
    while let Some(pid) = supervisor.unjoined() {
        if let Some((path, reason)) = program::unmanaged(pid) {
            // Nobody may read that any more.
            let _ = writeln!(
                std::io::stderr(),
                "ebb: the memory of {} (process {pid}) cannot be managed: {reason}; it stays in RAM and \
                 counts. Of others like it nothing is said",
                path.display()
            );
            return true;
        }
    }
    false
}

/// The program, with a word to the user if its memory cannot be managed.
fn find(args: &RunArgs) -> Result<Result<Program, NotExecutable>> {
    let path = std::env::var_os("PATH");
    let program = match program::find(&args.command[0], path.as_deref()) {
        Ok(program) => program,
        Err(error) => return Ok(Err(error)),
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
    Ok(Ok(program))
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
