//! Many runs: each seed in a process of its own, what came of it, and how a failure is narrowed down.

use crate::content;
use crate::host::{LIMIT, limit_time};
use crate::plan::Plan;
use crate::run;
use crate::world::{Outcome, Shared, World};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The reason why it failed, if it did.
    pub failure: Option<String>,
    /// The sum of its trace.
    pub hash: u64,
    /// The last events.
    pub events: String,
    /// Decisions of chance.
    pub drawn: u64,
    /// Faults that were served.
    pub faults: u64,
    /// Steps.
    pub steps: u64,
    /// Seconds of a processor.
    pub seconds: f64,
}

/// How a run differs from what its plan says.
#[derive(Clone, Copy, Debug)]
pub struct Narrowed {
    /// The decisions of chance that may be out of the ordinary.
    pub window: (u64, u64),
    /// Operations of the program.
    pub operations: u64,
}

/// Runs a plan in a process of its own.
///
/// # Panics
/// The host has no process for it.
pub fn run_once(
    shared: &'static Shared,
    plan: &Plan,
    narrowed: &Narrowed,
    trace: Option<RawFd>,
) -> Report {
    content::prepare();
    shared.reset();
    let world = shared.world;
    world.seed.set(plan.seed);
    world.window.set(narrowed.window);
    world.trace_to.set(trace.map_or(0, |fd| fd + 1));
    world.driver.set(std::process::id() as i32);
    // SAFETY: this process has one thread; orphans of a run come to it.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process for a run");
    if child == 0 {
        let plan = Plan {
            operations: narrowed.operations,
            ..plan.clone()
        };
        limit_time();
        // SAFETY: forks of it need no waiting for.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        std::panic::set_hook(Box::new(move |panic| {
            let what = panic.payload_as_str().unwrap_or("a panic");
            let at = panic.location().map_or(String::new(), ToString::to_string);
            world.fail(&format!("panic at {at}: {what}"));
            if std::env::var_os("RUST_BACKTRACE").is_some() {
                let trace = std::backtrace::Backtrace::force_capture();
                eprintln!("{trace}");
            }
            world.end();
            // SAFETY: no destructor is to run.
            unsafe { libc::_exit(3) };
        }));
        run::run(shared, &plan);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    await_all(world);
    let failure = match world.outcome.get() {
        Outcome::Bad => Some(world.why()),
        Outcome::Good => None,
        Outcome::None => Some("it ended without an outcome".into()),
    };
    Report {
        failure,
        hash: world.hash.get(),
        events: world.last_events(40),
        drawn: world.drawn.get(),
        faults: world.faults.get(),
        steps: world.steps.get(),
        seconds: world.spent.load(SeqCst) as f64 / 1e9,
    }
}

/// Waits until all processes of a run have ended.
fn await_all(world: &World) {
    loop {
        let mut status = 0;
        // SAFETY: only processes of the run are children of ours.
        if unsafe { libc::waitpid(-1, &mut status, 0) } < 0 {
            return;
        }
        if libc::WIFSIGNALED(status) {
            match libc::WTERMSIG(status) {
                libc::SIGPROF => {
                    let stand = world.stand();
                    world.fail(&format!("no end after {LIMIT} s of a processor:\n{stand}"));
                }
                signal => world.fail(&format!("signal {signal} of the host")),
            }
            world.end();
        }
    }
}

/// A failure without its numbers: it is the same one again, if that is.
fn kind(failure: &str) -> &str {
    let end = failure.find(|c: char| c.is_ascii_digit());
    &failure[..end.unwrap_or(failure.len())]
}

/// Fewer operations, and fewer decisions out of the ordinary, that still fail.
pub fn narrow(shared: &'static Shared, plan: &Plan, report: &Report) -> (Narrowed, Report) {
    let mut best = Narrowed {
        window: (0, report.drawn),
        operations: plan.operations,
    };
    let mut failed = report.clone();
    let wanted = report.failure.as_deref().map(kind);
    let mut attempt = |narrowed: Narrowed, best: &mut Narrowed| {
        let report = run_once(shared, plan, &narrowed, None);
        let fails = report.failure.as_deref().map(kind) == wanted;
        if fails {
            *best = narrowed;
            failed = report;
        }
        fails
    };
    // Each bound by halves, as far as that goes.
    let mut good = 0;
    while best.operations - good > 1 + best.operations / 64 {
        let operations = good + (best.operations - good) / 2;
        let narrowed = Narrowed { operations, ..best };
        if !attempt(narrowed, &mut best) {
            good = operations;
        }
    }
    let mut good = 0;
    while best.window.1 - good > 1 + best.window.1 / 256 {
        let to = good + (best.window.1 - good) / 2;
        let window = (best.window.0, to);
        let narrowed = Narrowed { window, ..best };
        if !attempt(narrowed, &mut best) {
            good = to;
        }
    }
    let mut good = best.window.1;
    while good - best.window.0 > 1 + good / 256 {
        let from = best.window.0 + (good - best.window.0) / 2;
        let window = (from, best.window.1);
        let narrowed = Narrowed { window, ..best };
        if !attempt(narrowed, &mut best) {
            good = from;
        }
    }
    (best, failed)
}
