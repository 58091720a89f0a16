//! The keeper: the thread that does everything that need not happen inside a fault.
//!
//! While the tree still fits its budget it only waits. When the tree starts paging it takes the
//! process under management ([`mod@adopt`]), then: has new ranges registered ([`register`]), measures what
//! the pager does not manage and divides the process's part of the budget ([`budget`]), gives memory
//! to other processes of the tree ([`give`]), lets the engine work in the background, and rescues starved
//! service threads.

mod adopt;
mod budget;
mod crowd;
mod give;
mod register;

use crate::embed::{self, Embedded};
use crate::errand;
use crate::failure;
use crate::fork;
use crate::growth;
use crate::hooks;
use crate::process::{Process, cpu};
use crate::refuge::Memory;
use crate::resolve::Desk;
use crate::state::lock_service;
use adopt::adopt;
use crowd::Crowd;
use ebb_sys::program::{self, Gone};
use ebb_sys::{credentials, heap::InternalHeap, proc, thread};
use ebb_tree::{HelperExit, JoinError, Member, Mode};
pub use register::{ANSWERED, join_again, set_apart};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The keeper's task, by its number in the system: a forked child finds its parent's.
static KEEPER: AtomicU32 = AtomicU32::new(0);

/// How often the keeper looks while faults are being served. Not more often: each time it goes
/// back to sleep, its processor is idle anew and the scheduler moves the program's thread there.
const BUSY: Duration = Duration::from_millis(20);
/// While a memory call of a child's has to be made again: what a transit takes.
const OWING: Duration = Duration::from_micros(50);
/// While pages move from a device that is to go.
const MOVING: Duration = Duration::from_millis(1);
/// For how long a process that was asked for memory and had none to give is not asked again before
/// others: relatives that have the same pages all have them for old.
const SPARED: Duration = Duration::from_millis(500);
/// Pages that go when the system has none for us.
const REFUSED: u64 = 256;
/// How often it is seen whether the supervisor is there.
const SUPERVISED: Duration = Duration::from_millis(200);
/// While nothing happens.
const QUIET: Duration = Duration::from_millis(250);

/// The keeper's entry point: the first task of a helper.
pub extern "C" fn run(_: usize) -> ! {
    // Without a supervisor there is nobody to account to: the program runs as it would without us.
    let watched = program::watch().is_ok();
    let Some(control) = hooks::control().filter(|_| watched) else {
        hooks::keeper_ends();
        failure::leave(None, HelperExit::Unmanaged)
    };
    let inherited = fork::inherited();
    // `KEEPER` is the parent's yet.
    proc::find_directory(inherited.map(|_| KEEPER.load(SeqCst)));
    let process = match inherited {
        Some(parent) => take_over(parent, control),
        None => join(control),
    };
    errand::attend();
    fork::CHILD_READY.store(1, SeqCst);
    ebb_sys::futex::wake(&fork::CHILD_READY, i32::MAX, false);
    tend(process)
}

/// In the child of a process that pages, whose program waits until this is done.
fn take_over(parent: &'static Process, control: &str) -> &'static Process {
    let (member, devices) = (parent.member, &parent.embedded.devices);
    let attached = match member.rejoin(control, program::pidfd()) {
        Ok(()) => devices.reattach(member),
        // The supervisor is gone, and what it gives the parent has too.
        Err(JoinError::Connect(_)) => {
            let keeper = KEEPER.load(SeqCst);
            devices.reattach_from(member, |fd| {
                proc::reopen(keeper, fd).map_err(|e| e.to_string())
            })
        }
        Err(e) => Err(e.to_string()),
    };
    match attached.and_then(|()| adopt(member, parent.embedded, true)) {
        Ok(process) => process,
        Err(why) => {
            fork::child_fails(why);
            // Until the program has ended.
            loop {
                wait(member, 0, BUSY);
            }
        }
    }
}

/// Joins the tree, and takes the process under management when that begins to page.
fn join(control: &str) -> &'static Process {
    let Ok(member) = Member::join(control, None, program::pidfd()) else {
        hooks::keeper_ends();
        failure::leave(None, HelperExit::Unmanaged)
    };
    let member: &'static Member = Box::leak(Box::new(member));
    fork::WATCHING.store(std::ptr::from_ref(member).cast_mut(), SeqCst);
    growth::news();
    errand::attend();
    let mut seen = 0;
    while member.mode() != Mode::Paging {
        seen = wait(member, seen, QUIET);
        errand::run();
        member.forward_paging_request();
    }
    let adopted = embed::swap(member)
        .and_then(|e| adopt(member, e, false).inspect_err(|_| e.devices.abandon(member)));
    fork::WATCHING.store(std::ptr::null_mut(), SeqCst);
    match adopted {
        Ok(process) => {
            growth::news();
            process
        }
        Err(why) => {
            member.message(&format!(
                "process {} runs unmanaged, its memory stays in RAM: {why}; \
                 `ebb doctor` says what is low or missing here",
                program::pid()
            ));
            hooks::keeper_ends();
            failure::leave(Some(member), HelperExit::Unmanaged)
        }
    }
}

/// Ends with the program, if that has ended or has become another.
pub fn leave_with_program(member: &Member) {
    let gone = program::is_gone();
    if gone.is_some()
        && AUDITING.load(SeqCst)
        && let Some(process) = Process::current()
    {
        process.audit();
    }
    match gone {
        None => {}
        Some(Gone::Dead) => failure::leave(Some(member), HelperExit::Ends),
        Some(Gone::Other) => failure::leave(Some(member), HelperExit::Exec),
    }
}

/// Sleeps until there is news of the tree, or the time is over; ends with the program. What to pass as `seen`
/// next.
fn wait(member: &Member, seen: u32, pause: Duration) -> u32 {
    /// Where nobody tells of the program's end.
    const UNTOLD: Duration = Duration::from_millis(20);
    let seen = match program::word() {
        Some(word) => member.wait_beside(seen, pause, word),
        None => member.wait(seen, Some(pause.min(UNTOLD))),
    };
    leave_with_program(member);
    credentials::follow();
    seen
}

static CHECKING: AtomicBool = AtomicBool::new(false);
/// For tests: memory is looked at once more when the program has let it go (`audit`).
static AUDITING: AtomicBool = AtomicBool::new(false);

/// For tests: every invariant of the pager is checked again and again while the program runs, and that
/// no thread of ours faults.
pub fn checking() -> bool {
    CHECKING.load(SeqCst)
}

/// Whether this thread is the keeper.
pub fn is(thread: u32) -> bool {
    KEEPER.load(SeqCst) == thread
}

/// Milliseconds of CLOCK_MONOTONIC, as far as pages are dated.
fn now_ms() -> u32 {
    (ebb_sys::clock::monotonic_ns() / 1_000_000) as u32
}

/// The keeper's work, for ever.
pub fn tend(process: &'static Process) -> ! {
    KEEPER.store(thread::id(), SeqCst);
    let mut supervised = Instant::now();
    let mut desk = Desk::new();
    let (mut seen, mut served, mut moving, mut owing) = (0, 0, false, false);
    let mut crowd = Crowd::new();
    let mut measured = Instant::now();
    let mut heard = Instant::now();
    let checking = checking();
    crate::user::follow(process);
    let fails_after = process.embedded.devices.faults().keeper_after;
    loop {
        let now_served = process.services.served();
        assert!(
            fails_after.is_none_or(|after| now_served < after),
            "EBB_FAULTS asks for it"
        );
        let busy = now_served != served;
        served = now_served;
        let starved = !busy && process.fault.wait(0);
        if busy || starved {
            heard = Instant::now();
            process.services.compete(crowd.look() || starved);
        }
        let pause = match () {
            _ if owing => OWING,
            _ if moving => MOVING,
            // A request may have ended the last wait before there was a fault.
            _ if heard.elapsed() < 2 * BUSY => BUSY,
            _ => QUIET,
        };
        seen = wait(process.member, seen, pause);
        crate::user::follow(process);
        process.behind.store(false, SeqCst);
        fork::attend(process, &mut desk);
        owing = errand::run();
        process.register_new();
        {
            let mut state = lock_service();
            state.queue.now_ms = now_ms();
            process.tend_sharing(&mut state);
            if measured.elapsed() > Duration::from_millis(20) {
                measured = Instant::now();
                process.measure(&mut state);
                process.share_budget(&mut state);
                if checking {
                    state.check();
                    process.check_copies(&state);
                }
                if state.spared.is_none_or(|since| since.elapsed() > SPARED) {
                    state.spared = None;
                    process.publish_oldest(&state);
                }
            }
        }
        if supervised.elapsed() > SUPERVISED {
            supervised = Instant::now();
            process.tell_of_ceded();
            InternalHeap::give_back();
            if process.member.supervised() {
                process.send_userfaultfd();
            } else {
                process.member.reap_dead();
            }
        }
        let mut wanted = process.member.take_reclaim_request();
        let refused = process.is_refused.swap(false, SeqCst);
        if refused {
            wanted = wanted.max(REFUSED);
        }
        if wanted > 0 {
            let before = process.counters().evicted.get();
            let charged = lock_service().account.charged();
            process.shed(&mut desk, wanted as i64);
            let mut state = lock_service();
            let gave = process.counters().evicted.get() - before;
            state.appetite.gave(gave);
            if gave > 0 || state.account.charged() < charged {
                state.spared = None;
                process.publish_oldest(&state);
            } else {
                state.spared = Some(Instant::now());
                process.member.publish_oldest(0);
                process.report_pool(&mut state);
            }
            drop(state);
            if refused {
                // What it gave up may be somebody else's by now, and nobody but it gives up more.
                process.wake_again(&mut desk);
            } else {
                process.serve_again(&mut desk);
            }
        }
        let gate = crate::process::gate(process);
        let Embedded { devices, swap } = process.embedded;
        let mut memory = Memory {
            process,
            desk: &mut desk,
        };
        moving = devices.tend(process.member, swap, cpu(), &mut memory);
        for _ in 0..64 {
            // Somebody may be waiting for what is asked for.
            process.swap.others_loaded(process.member.last_load_ns());
            if !process.swap.work(cpu()) || process.member.is_asked() {
                break;
            }
        }
        drop(gate);
        process.serve_again(&mut desk);
    }
}
