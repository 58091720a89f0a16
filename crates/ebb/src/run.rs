//! `ebb run`: a program and all it starts, within a memory budget.

use crate::cli::RunArgs;
use crate::library::Library;
use crate::program::{self, Kind, NotExecutable, Program};
use crate::stats::{self, StatsFile};
use crate::wait::{self, Running};
use crate::{FAILED, doctor, setup};
use anyhow::{Context, Result, bail};
use ebb_sys::background::{self, Side};
use ebb_tree::Supervisor;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Names the supervisor to the processes of the tree.
const CONTROL: &str = "EBB_CONTROL";
const REQUIRE_MANAGED: &str = "EBB_REQUIRE_MANAGED";

/// How long the processes that served programs which have ended are waited for: they have to give their
/// memory back, which takes some 0.1 s a gigabyte.
const HELPERS: Duration = Duration::from_secs(10);

/// Runs the command; the exit status is the program's own.
///
/// # Errors
/// Whatever keeps it from being started; nothing has been changed then.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let (setup, unmarked) = setup::setup(&args)?;
    let program = match find(&args)? {
        Ok(program) => program,
        Err(error) => {
            eprintln!("ebb: {error}");
            return Ok(error.status().into());
        }
    };
    doctor::must_work()?;
    let library = Library::find()?;
    tell_if_unmanaged(&program, &library);
    let mut stats_file = args.stats.as_deref().map(StatsFile::open).transpose()?;

    // Before the supervisor: whatever thread it starts must not take our signals.
    let signals = wait::prepare().context("cannot take signals")?;
    let mut supervisor = Supervisor::new(setup)?;
    let mut command = Command::new(&program.path);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    if !library.withheld_from(&program.kind) {
        library.put_into(&mut command);
    }
    command.env(CONTROL, supervisor.control_value());
    // The preload library heeds it where programs of the tree start others (`refuse`).
    command.env_remove(REQUIRE_MANAGED);
    if args.require_managed {
        command.env(REQUIRE_MANAGED, "1");
    }
    for device in unmarked {
        device.mark()?;
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

/// The program, unless its memory would have to be managed and cannot be.
fn find(args: &RunArgs) -> Result<Result<Program, NotExecutable>> {
    let path = std::env::var_os("PATH");
    let program = match program::find(&args.command[0], path.as_deref()) {
        Ok(program) => program,
        Err(error) => return Ok(Err(error)),
    };
    if let Kind::Unmanaged(reason) = &program.kind
        && args.require_managed
    {
        bail!(
            "the memory of {} cannot be managed: {reason}; without --require-managed it runs unmanaged",
            program.path.display()
        );
    }
    Ok(Ok(program))
}

/// A word to the user about a program that gets the library in vain, or not at all.
fn tell_if_unmanaged(program: &Program, library: &Library) {
    let Kind::Unmanaged(reason) = &program.kind else {
        return;
    };
    let others = match library.withheld_from(&program.kind) {
        true => "and so does that of programs it starts",
        false => "programs it starts are managed",
    };
    eprintln!(
        "ebb: the memory of {} cannot be managed: {reason}; it stays in RAM, {others}",
        program.path.display()
    );
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
