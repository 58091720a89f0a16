//! `ebb size`: how much memory a program needs, and how long it would take with less.
//!
//! The program runs under `ebb run` in less memory than it has, half of it where nothing else is asked for. Pages that
//! come back tell how much more memory would have kept them, and the waits for them how much time that would have
//! spared ([`budgets`]). Beside that, accessed bits tell how much the program touches within a time ([`touched`]).
//!
//! Not here: the counting of waits, which every tree does (`ebb_tree`, refaults).

mod budgets;
pub mod cost;
mod picture;
mod report;
mod touched;

use crate::ask::{Figures, ask, stats_of};
use crate::available::Available;
use crate::cli::{RunArgs, SizeArgs};
use crate::figures::pace;
use crate::outer::Outer;
use crate::run::{self, Companion};
use crate::say;
use crate::setup::SMALLEST;
use crate::wait::End;
use anyhow::Result;
use ebb_tree::{LimitChange, Request, StatsShown};
use report::{Form, Report};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use touched::{Touches, Watch};

/// The first budget where none is given: smaller programs need no answer.
const FIRST: u64 = 64 << 20;
/// How often the budget follows the program.
const FOLLOW: Duration = Duration::from_millis(100);
const LEAST: Duration = Duration::from_millis(1);
/// How long the end of a program that runs already may go unnoticed: windows are longer.
const STEP: Duration = Duration::from_secs(1);

/// Runs a program, or looks at one that runs, and says how much memory it needs.
///
/// # Errors
/// It cannot be started, or is in no tree.
pub fn size(args: SizeArgs) -> Result<ExitCode> {
    let interval = match args.interval.as_deref() {
        Some(text) => pace("--interval", text)?,
        None => Duration::from_secs(1),
    };
    let form = Form::new(&args)?;
    match args.pid {
        Some(pid) => running(pid, interval, form),
        None => Ok(started(args, interval, form)?.repeat()),
    }
}

/// A program of a tree that runs: what is known after each window, until the last one or its end.
fn running(mut pid: u32, interval: Duration, mut form: Form) -> Result<ExitCode> {
    let first = stats_of(&mut pid)?;
    let factor = factor();
    follow(first, Watch::new(interval), factor, &mut form, || {
        stats_of(&mut pid)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reports from the figures that `ask` gets. Its error is the end of the watch: the last figures are written then, too.
fn follow(
    mut stats: StatsShown,
    mut watch: Watch,
    factor: f64,
    form: &mut Form,
    mut ask: impl FnMut() -> Result<StatsShown>,
) -> Result<()> {
    let mut is_written = false;
    while let Some(wait) = watch.due_in() {
        thread::sleep(wait.clamp(LEAST, STEP));
        let Ok(next) = ask() else { break };
        (stats, is_written) = (next, false);
        if watch.look(&members(&stats)) {
            let report = Report::of(&stats, ran(&stats), factor, watch.touches());
            is_written = form.write_so_far(&report)?;
        }
    }
    if !is_written {
        form.write(&Report::of(&stats, ran(&stats), factor, watch.touches()))?;
    }
    Ok(())
}

/// See [`cost`]. Without the trial the waits count as they were measured.
fn factor() -> f64 {
    cost::factor().unwrap_or(1.0)
}

fn ran(stats: &StatsShown) -> Duration {
    Duration::from_nanos(stats.ran_ns)
}

fn members(stats: &StatsShown) -> Vec<u32> {
    stats.members.iter().map(|member| member.pid).collect()
}

/// A command: it runs, and the report comes at its end.
fn started(args: SizeArgs, interval: Duration, form: Form) -> Result<End> {
    let mut run = RunArgs::of(args.command);
    let follows = args.memory.is_none().then(first_budget);
    run.memory = args.memory.or(follows.map(|bytes| bytes.to_string()));
    (run.swap, run.pool) = (args.swap, args.pool);
    let shared = Shared::default();
    thread::scope(|scope| {
        let begin = || scope.spawn(|| attend(interval, follows, &shared));
        let mut companion = Reporter {
            begin: &begin,
            thread: None,
            shared: &shared,
            follows: follows.is_some(),
            form: Some(form),
        };
        let end = run::run_beside(run, &mut companion);
        shared.ended.store(true, SeqCst);
        end
    })
}

/// [`FIRST`], or what there is.
fn first_budget() -> u64 {
    let outer = Outer::here();
    let available = Available::here(outer.as_ref().map(Outer::available));
    FIRST.min(available.total).max(SMALLEST)
}

/// The findings of the thread beside the run, and the word that ends it.
#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    touches: Mutex<Touches>,
}

impl Shared {
    fn touches(&self) -> MutexGuard<'_, Touches> {
        self.touches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts that thread, and writes the report.
struct Reporter<'a, 'scope> {
    begin: &'a dyn Fn() -> ScopedJoinHandle<'scope, ()>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
    shared: &'a Shared,
    /// Flag: the budget followed what the programs had.
    follows: bool,
    /// The form, until the report is written: who reads it from a pipe waits for its end.
    form: Option<Form>,
}

impl Companion for Reporter<'_, '_> {
    fn begun(&mut self) {
        self.thread = Some((self.begin)());
    }

    fn stop(&mut self, turn: &mut dyn FnMut()) {
        self.shared.ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                turn();
                thread::sleep(LEAST);
            }
        }
    }

    fn ended(&mut self, stats: &StatsShown, ran: Duration) {
        self.shared.ended.store(true, SeqCst);
        let mut stats = stats.clone();
        if self.follows {
            // These changes are the way to measure, and not the user's.
            stats.past_budget_bytes = None;
        }
        let report = Report::of(&stats, ran, factor(), &self.shared.touches());
        // The program has run: a report that cannot be written does not change its end.
        let form = self.form.take();
        if let Some(Err(error)) = form.map(|mut form| form.write(&report)) {
            say::now(&format!("ebb: {error:#}"));
        }
    }
}

/// The longest that a supervisor in this process is waited for.
const ANSWERS: Duration = Duration::from_secs(60);

/// While the command runs: lets the budget follow what the programs have, from this one on, and watches what they touch.
fn attend(interval: Duration, mut follows: Option<u64>, shared: &Shared) {
    let mut watch = Watch::new(interval);
    while !shared.ended.load(SeqCst) {
        thread::sleep(FOLLOW.min(watch.due_in().unwrap_or(FOLLOW).max(LEAST)));
        // Its supervisor is this process, and answers when it is done with something else.
        let figures = Figures::ask(std::process::id());
        let Ok(stats) = figures.and_then(|mut figures| figures.within(ANSWERS)) else {
            continue;
        };
        let half = stats.peak_had_bytes / 2;
        if let Some(budget) = &mut follows
            // In steps: each change is work for all processes.
            && half > *budget + *budget / 16
            && raise(half).is_ok()
        {
            *budget = half;
        }
        if watch.look(&members(&stats)) {
            *shared.touches() = watch.touches().clone();
        }
        if watch.due_in().is_none() {
            watch.again();
        }
    }
}

fn raise(bytes: u64) -> Result<String> {
    let change = LimitChange {
        memory: Some(bytes.to_string()),
        ..LimitChange::default()
    };
    ask(std::process::id(), &Request::Limit(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use anyhow::bail;
    use clap::Parser;
    use ebb_tree::MemberShown;
    use std::cell::Cell;
    use std::fs;
    use std::time::Instant;

    /// The second window lasts 2 seconds, the third 12.
    #[test]
    fn a_program_that_ends_within_a_window_is_told_of_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        let words = ["ebb", "size", "1", "-o", path.to_str().unwrap()];
        let Verb::Size(args) = Cli::parse_from(words).verb else {
            panic!("another verb");
        };
        let mut form = Form::new(&args).unwrap();
        let start = Instant::now();
        let asked = Cell::new(0);
        // The first figures, those at which bits are cleared, of the first window, and a second later.
        let ask = || {
            asked.set(asked.get() + 1);
            if asked.get() > 4 {
                bail!("it has ended");
            }
            Ok(StatsShown {
                peak_had_bytes: asked.get() << 20,
                members: vec![us()],
                ..StatsShown::default()
            })
        };
        let watch = Watch::new(Duration::from_millis(200));
        follow(ask().unwrap(), watch, 1.0, &mut form, ask).unwrap();
        assert!(start.elapsed() < Duration::from_secs(8));
        let reports = fs::read_to_string(path).unwrap();
        assert!(reports.contains("The programs had 4M"), "{reports}");
    }

    fn us() -> MemberShown {
        MemberShown {
            pid: std::process::id(),
            name: "us".into(),
            used_bytes: 0,
            pool_bytes: 0,
            faults: [].into(),
            waited_ns: 0,
            some_ns: 0,
            full_ns: 0,
        }
    }
}
