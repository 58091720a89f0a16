//! The keeper: the thread that does everything that need not happen inside a fault.
//!
//! While the tree still fits its budget it only waits. When the tree starts paging it takes the
//! process under management ([`mod@adopt`]), then: has new ranges registered ([`register`]), measures what
//! the pager does not manage and divides the process's part of the budget ([`budget`]), gives memory
//! to other processes of the tree ([`give`]), lets the engine work in the background, and rescues starved
//! service threads.

use crate::devices::processors::cpu;
use crate::devices::swap_space;
use crate::devices::swap_space::SwapSpace;
use crate::fork::rest;
use crate::keeper::adopt;
use crate::keeper::cpu_contention::CpuContention;
use crate::keeper::drain_capacity::Memory;
use crate::process::failure;
use crate::process::failure::leave_with_program;
use crate::process::fork_stage;
use crate::process::lifecycle;
use crate::process::lifecycle::KEEPER_TASK;
use crate::process::lifecycle::checking;
use crate::process::lifecycle::now_ms;
use crate::process::paging::Process;
use crate::process::shared_pages::before_give_back;
use crate::process::state::lock_service;
use crate::process::worker::Worker;
use crate::syscalls::admission;
use crate::syscalls::execute;
use crate::syscalls::user_change;
use crate::syscalls::vfork_proxy;
use ebb_sys::program::{self};
use ebb_sys::{heap::InternalHeap, proc, thread, user};
use ebb_tree::{JoinError, Leaving, Member, Mode};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How often the keeper looks while faults are being served. Not more often: each time it goes
/// back to sleep, its processor is idle anew and the scheduler moves the program's thread there.
const BUSY: Duration = Duration::from_millis(20);
/// While a memory call of a child's has to be made again: what a transit takes.
const OWING: Duration = Duration::from_micros(50);
/// While pages move from a device that is to go.
const MOVING: Duration = Duration::from_millis(1);
/// For how long a process that was asked for memory and had none to give is not asked again before
/// others: relatives that have the same pages all have them for old.
const HAD_NONE: Duration = Duration::from_millis(500);
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
    let Some(control) = lifecycle::control().filter(|_| watched) else {
        give_up();
        failure::leave(None, Leaving::Unmanaged)
    };
    let inherited = fork_stage::inherited();
    // `KEEPER_TASK` is the parent's yet.
    proc::find_directory(inherited.map(|_| KEEPER_TASK.load(SeqCst)));
    let process = match inherited {
        Some(parent) => take_over(parent, control),
        None => join(control),
    };
    vfork_proxy::start();
    fork_stage::CHILD_READY.store(1, SeqCst);
    ebb_sys::futex::wake(&fork_stage::CHILD_READY, i32::MAX, false);
    tend(process)
}

/// The keeper has nothing to do here: nothing will be paged.
fn give_up() {
    lifecycle::keeper_ends();
    vfork_proxy::stop();
    admission::notify();
}

/// In the child of a process that pages, whose program waits until this is done.
fn take_over(parent: &'static Process, control: &str) -> &'static Process {
    let (member, devices) = (parent.member, &parent.swap_space.devices);
    let attached = match member.rejoin(control, program::pidfd()) {
        Ok(()) => devices.reattach(member),
        // The supervisor is gone, and what it gives the parent has too.
        Err(JoinError::Connect(_)) => {
            let keeper = KEEPER_TASK.load(SeqCst);
            devices.reattach_from(member, |fd| {
                proc::reopen(keeper, fd).map_err(|e| e.to_string())
            })
        }
        Err(e) => Err(e.to_string()),
    };
    match attached.and_then(|()| adopt::adopt(member, parent.swap_space, true)) {
        Ok(process) => process,
        Err(why) => {
            fork_stage::child_fails(why);
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
        give_up();
        failure::leave(None, Leaving::Unmanaged)
    };
    let member: &'static Member = Box::leak(Box::new(member));
    fork_stage::WATCHING.store(std::ptr::from_ref(member).cast_mut(), SeqCst);
    admission::notify();
    vfork_proxy::start();
    let mut seen = 0;
    while member.mode() != Mode::Paging {
        seen = wait(member, seen, QUIET);
        vfork_proxy::serve(execute::execute);
        member.pass_wish_on();
    }
    let adopted = swap_space::open(member, before_give_back)
        .and_then(|e| adopt::adopt(member, e, false).inspect_err(|_| e.devices.abandon(member)));
    fork_stage::WATCHING.store(std::ptr::null_mut(), SeqCst);
    match adopted {
        Ok(process) => {
            admission::notify();
            process
        }
        Err(why) => {
            member.message(&format!(
                "process {} runs unmanaged, its memory stays in RAM: {why}; \
                 `ebb doctor` says what is low or missing here",
                program::pid()
            ));
            give_up();
            failure::leave(Some(member), Leaving::Unmanaged)
        }
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
    user::follow();
    seen
}

/// The keeper's work, for ever.
pub fn tend(process: &'static Process) -> ! {
    KEEPER_TASK.store(thread::id(), SeqCst);
    let mut supervised = Instant::now();
    let mut worker = Worker::new();
    let (mut seen, mut served, mut moving, mut owing) = (0, 0, false, false);
    let mut crowd = CpuContention::new();
    let mut measured = Instant::now();
    let mut heard = Instant::now();
    let checking = checking();
    user_change::follow(process);
    let fails_after = process.swap_space.devices.faults().keeper_after;
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
        user_change::follow(process);
        process.behind.store(false, SeqCst);
        rest::attend(process, &mut worker);
        owing = vfork_proxy::serve(execute::execute);
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
                if state
                    .had_none_since
                    .is_none_or(|since| since.elapsed() > HAD_NONE)
                {
                    state.had_none_since = None;
                    process.publish_oldest(&state);
                }
            }
        }
        if supervised.elapsed() > SUPERVISED {
            supervised = Instant::now();
            process.report_released();
            InternalHeap::give_back();
            if process.member.supervised() {
                process.entrust();
            } else {
                process.member.bury_dead();
            }
        }
        let mut wanted = process.member.take_reclaim_request();
        let refused = process.system_refused.swap(false, SeqCst);
        if refused {
            wanted = wanted.max(REFUSED);
        }
        if wanted > 0 {
            let before = process.counters().evicted.get();
            let charged = lock_service().charge.charged();
            process.shed(&mut worker, wanted as i64);
            let mut state = lock_service();
            let gave = process.counters().evicted.get() - before;
            state.peer_reclaim.gave(gave);
            if gave > 0 || state.charge.charged() < charged {
                state.had_none_since = None;
                process.publish_oldest(&state);
            } else {
                state.had_none_since = Some(Instant::now());
                process.member.publish_oldest(0);
                process.tell_pool(&mut state);
            }
            drop(state);
            if refused {
                // What it gave up may be somebody else's by now, and nobody but it gives up more.
                process.wake_again(&mut worker);
            } else {
                process.serve_again(&mut worker);
            }
        }
        let gate = crate::process::paging::gate(process);
        let SwapSpace { devices, swap } = process.swap_space;
        let mut memory = Memory {
            process,
            worker: &mut worker,
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
        process.serve_again(&mut worker);
    }
}
