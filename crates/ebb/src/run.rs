//! `ebb run`: a program and all it starts, within a memory budget.

use crate::cli::{RunArgs, Switch};
use crate::exhausted::{self, Hooks};
use crate::library::Library;
use crate::metrics::{Listener, Serving};
use crate::outer::CONTROL;
use crate::program::{self, Kind, NotExecutable, Program};
use crate::progress::Progress;
use crate::stats::{self, StatsFile};
use crate::system_kills::SystemKills;
use crate::wait::{self, End, Running};
use crate::wrap::Wrap;
use crate::{FAILED, defaults, doctor, say, setup, summary};
use anyhow::{Context, Result, bail};
use ebb_sys::daemon::{self, Side};
use ebb_sys::descriptors::Inherited;
use ebb_tree::{StatsShown, Supervisor};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const REQUIRE_MANAGED: &str = "EBB_REQUIRE_MANAGED";

/// Time in which helpers of ended programs may end: they give their memory back, which takes some 0.1 s a
/// gigabyte.
const HELPERS: Duration = Duration::from_secs(10);
/// The longest that processes left behind are waited for at a time; and before, until the process that left them has
/// ended.
const PACE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(20);

/// Runs the command, and ends as the program has ended.
///
/// # Errors
/// The command cannot be started; nothing has been changed then.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    Ok(run_beside(args, &mut Alone)?.repeat())
}

/// A companion of a program's run.
pub trait Companion {
    /// The program runs.
    fn begun(&mut self);
    /// It has ended; so is the companion's thread to end, which may have asked the supervisor something: it gets its
    /// answer by `turn`.
    fn stop(&mut self, turn: &mut dyn FnMut());
    /// It has ended, with these figures, after this time.
    fn ended(&mut self, stats: &StatsShown, ran: Duration);
}

/// Nobody does.
struct Alone;

impl Companion for Alone {
    fn begun(&mut self) {}
    fn stop(&mut self, _: &mut dyn FnMut()) {}
    fn ended(&mut self, _: &StatsShown, _: Duration) {}
}

/// Runs the command with a companion; returns how it ended.
///
/// # Errors
/// As [`run`].
pub fn run_beside(mut args: RunArgs, companion: &mut dyn Companion) -> Result<End> {
    let inherited = Inherited::note();
    let filled = defaults::fill(&mut args)?;
    doctor::needs_proc()?;
    let (mut setup, pending_header) =
        setup::setup(&args).map_err(|error| defaults::named(error, &filled))?;
    let program = match find(&args)? {
        Ok(program) => program,
        Err(error) => {
            say::now(&format!("ebb: {error}"));
            return Ok(End::Exited(error.status()));
        }
    };
    doctor::must_work()?;
    let library = Library::find()?;
    warn_if_unmanaged(&program, &library);
    let metrics = args.metrics.as_deref().map(Listener::bind).transpose()?;
    let mut stats_file = args.stats.as_deref().map(StatsFile::open).transpose()?;

    // Before the supervisor: threads that it starts must not take our signals.
    let signals = wait::prepare().context("cannot take signals")?;
    let (notices, hooks) = exhausted::notices(args.on_exhausted.clone(), signals.inherited());
    setup.notices = Some(notices);
    let mut supervisor = Supervisor::new(setup)?;
    let serve = |listener: Listener| listener.serve(supervisor.control_value());
    let serving = metrics.map(serve).transpose()?;
    let mut command = command(&args, &program, &library);
    command.env(CONTROL, supervisor.control_value());
    for device in pending_header {
        device.write()?;
    }
    let kills = SystemKills::begin();
    let start = Instant::now();
    let wrap = args.wrap.then(|| Wrap::begin(&mut command)).transpose()?;
    let mut running = match Running::start(command, signals, wrap) {
        Ok(running) => running,
        Err(error) => return Ok(not_started(&program.path, &error)),
    };
    // The program has these now, and it inherits nothing of the rest.
    inherited.close();
    ebb_sys::thread::prompt();
    supervisor.raise_descriptor_limit();
    companion.begun();
    let end = until_end(&mut running, &mut supervisor, program.kind == Kind::Managed)?;
    let ran = start.elapsed();
    kills.tell();
    let mut report = |supervisor: &Supervisor| {
        let Some(file) = &mut stats_file else { return };
        let totals = supervisor.totals();
        let stats = stats::stats(&args.command, &totals, end, start.elapsed());
        // The program has run: figures that cannot be written do not change its end.
        if let Err(error) = file.write(&stats) {
            say::line(&format!("ebb: --stats: {error:#}"));
        }
    };
    await_helpers(&mut supervisor)?;
    report(&supervisor);
    let stats = supervisor.stats();
    summarize(&args, &stats);
    companion.ended(&stats, ran);
    companion.stop(&mut || drop(supervisor.turn()));
    leave_processes(&mut supervisor, &running, &hooks, serving, &mut report, end)
}

/// Supervises until the program has ended.
fn until_end(running: &mut Running, supervisor: &mut Supervisor, managed: bool) -> Result<End> {
    let mut warned = !managed;
    let end = running.wait(supervisor, |tree| {
        warned = warned || report_unmanaged(tree);
        say::kept();
    });
    say::kept();
    end.context("lost sight of the program")
}

/// Where the program has left processes, a copy of this one supervises them, and goes on `serving`. Returns
/// in both how they are to end.
fn leave_processes(
    supervisor: &mut Supervisor,
    running: &Running,
    hooks: &Hooks,
    mut serving: Option<Serving>,
    report: &mut dyn FnMut(&Supervisor),
    end: End,
) -> Result<End> {
    if let Err(error) = hooks.wait(running, supervisor) {
        say::line(&format!("ebb: --on-exhausted: not waited for: {error}"));
    }
    wait::reap_children();
    if !supervisor.has_processes() {
        say::rest();
        return Ok(end);
    }
    supervisor.leave_stderr();
    // Only a process of one thread can be split. Devices come last: in a turn one may be asked for.
    if let Some(serving) = &mut serving {
        serving.stop(&mut || drop(supervisor.turn()));
    }
    supervisor.stop_opening();
    match daemon::split() {
        Ok(Side::Background) => {
            supervisor.takes_over();
            if let Some(Err(error)) = serving.as_mut().map(Serving::again) {
                say::line(&format!("ebb: {error:#}"));
            }
            stay_behind(supervisor, running)?;
            report(supervisor);
            // Of what was started since.
            let _ = hooks.wait(running, supervisor);
            // Nobody waits for it.
            return Ok(End::Exited(0));
        }
        Ok(Side::Foreground(copy)) => {
            supervisor.hands_over(copy);
            serving.iter_mut().for_each(Serving::leave);
            say::rest();
        }
        Err(error) => {
            say::now(&format!(
                "ebb: processes are left behind, and nobody supervises them from now on ({error}): no program that \
                 they start is managed; end them"
            ));
        }
    }
    Ok(end)
}

/// The program's command, as it was given.
fn command(args: &RunArgs, program: &Program, library: &Library) -> Command {
    let mut command = Command::new(&program.path);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    if !library.withheld_from(&program.kind) {
        library.put_into(&mut command);
    }
    // The preload library obeys it where programs of the tree start others.
    command.env_remove(REQUIRE_MANAGED);
    if args.require_managed {
        command.env(REQUIRE_MANAGED, "1");
    }
    command
}

/// Waits until the memory of ended programs is given back, and says so where that takes a while.
fn await_helpers(supervisor: &mut Supervisor) -> std::io::Result<()> {
    // Some of a dead program's messages may still be on their way.
    supervisor.turn()?;
    let mut progress = Progress::new();
    let mut reported = 0;
    supervisor.wait_for_helpers(HELPERS, |helpers, waited| {
        if waited.as_secs() > reported {
            reported = waited.as_secs();
            progress.show(&format!(
                "the memory of {helpers} processes that have ended is given back: {reported} s so far"
            ));
        }
    })?;
    say::kept();
    Ok(())
}

/// Says what the programs had, where somebody reads it.
fn summarize(args: &RunArgs, stats: &StatsShown) {
    if summary::wanted(args, stats) {
        for line in summary::lines(stats) {
            say::line(&format!("ebb: {line}"));
        }
    }
}

/// Supervises the processes that the ended program leaves, as long as they live. Readers of our output wait for
/// them alone.
fn stay_behind(supervisor: &mut Supervisor, running: &Running) -> Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    say::leave();
    let mut carries_on = false;
    while supervisor.still_has_processes() {
        carries_on = carries_on || supervisor.carries_on()?;
        supervisor.step(if carries_on { PACE } else { SOON })?;
        running.pass_on_to_all(supervisor);
        wait::reap_children();
    }
    supervisor.wait_for_helpers(HELPERS, |_, _| ())?;
    Ok(())
}

/// Says which program of the tree cannot be managed; true if there is one. Once is enough: a program that starts
/// one mostly starts many.
fn report_unmanaged(supervisor: &mut Supervisor) -> bool {
    while let Some(pid) = supervisor.unjoined() {
        if let Some((path, reason)) = program::unmanaged(pid) {
            say::line(&format!(
                "ebb: the memory of {} (process {pid}) cannot be managed: {reason}; it stays in RAM and \
                 counts. Of others like it nothing is said",
                path.display()
            ));
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
        Err(NotExecutable::NotFound(_)) if is_for_summary(args) => {
            let word = args.command[0].display();
            bail!("{word} is no command: after --summary write it with a `=`: --summary={word}");
        }
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

/// Whether the command's first word belongs to `--summary`.
fn is_for_summary(args: &RunArgs) -> bool {
    let is_switch = ["on", "off"].iter().any(|word| args.command[0] == *word);
    args.summary == Some(Switch::On) && is_switch
}

/// Warns of a program that gets the library in vain, or not at all.
fn warn_if_unmanaged(program: &Program, library: &Library) {
    let Kind::Unmanaged(reason) = &program.kind else {
        return;
    };
    let others = match library.is_lost_behind(&program.kind) {
        true => "and so does that of programs it starts",
        false => "programs it starts are managed",
    };
    say::now(&format!(
        "ebb: the memory of {} cannot be managed: {reason}; it stays in RAM, {others}",
        program.path.display()
    ));
}

fn not_started(path: &Path, error: &std::io::Error) -> End {
    let is_missing = error.raw_os_error() == Some(libc::ENOENT);
    let loader = is_missing.then(|| program::missing_loader(path)).flatten();
    let why = loader.unwrap_or_else(|| error.to_string());
    say::now(&format!("ebb: cannot execute {}: {why}", path.display()));
    End::Exited(match error.raw_os_error() {
        Some(libc::ENOENT) => 127,
        Some(
            libc::EACCES | libc::ENOEXEC | libc::EPERM | libc::ETXTBSY | libc::E2BIG | libc::ELOOP,
        ) => 126,
        _ => FAILED,
    })
}
