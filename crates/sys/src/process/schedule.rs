//! How urgently a thread competes for its processor.

use crate::kernel::raw;
use crate::{Errno, proc};
use std::ffi::c_long;
use std::ops::ControlFlow;

/// How a thread competes for its processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Like any other.
    Normal,
    /// Only when nobody else wants the processor; a processor that runs nothing else counts as
    /// idle when the scheduler looks for a place for a woken thread.
    Idle,
}

/// Sets how thread `id` competes.
pub fn set_urgency(id: u32, urgency: Urgency) -> Result<(), Errno> {
    let policy = match urgency {
        Urgency::Normal => libc::SCHED_OTHER,
        Urgency::Idle => libc::SCHED_IDLE,
    };
    let param = libc::sched_param { sched_priority: 0 };
    let args = [
        id.into(),
        policy.into(),
        &raw const param as c_long,
        0,
        0,
        0,
    ];
    // SAFETY: a valid parameter block.
    unsafe { raw::checked(libc::SYS_sched_setscheduler, args) }.map(|_| ())
}

/// Has transfers of the calling thread keep the priority that they have now. Without it the kernel derives that from
/// the thread's urgency. Schedulers of devices hold back transfers of idle class while there are others, of any program:
/// mq-deadline for up to 10 s (`prio_aging_expire`).
pub fn keep_transfer_priority() {
    const THREAD: c_long = 1;
    const CLASS_SHIFT: u32 = 13;
    /// Class "best effort", at the level of a nice value of 0.
    const USUAL: c_long = 2 << CLASS_SHIFT | 4;
    // SAFETY: no pointers.
    unsafe {
        let now = raw::call(libc::SYS_ioprio_get, [THREAD, 0, 0, 0, 0, 0]);
        // An older kernel says that there is none.
        let kept = if now >> CLASS_SHIFT > 0 { now } else { USUAL };
        let set = |priority| raw::call(libc::SYS_ioprio_set, [THREAD, 0, priority, 0, 0, 0]);
        // That of a real-time thread takes privilege.
        if set(kept) != 0 {
            set(USUAL);
        }
    }
}

/// Whether the calling thread is of idle urgency, and so gives way to every other of its control group that wants
/// its processor.
pub fn gives_way() -> bool {
    // SAFETY: it touches no memory.
    let policy = unsafe { raw::call(libc::SYS_sched_getscheduler, [0; 6]) };
    policy & !c_long::from(libc::SCHED_RESET_ON_FORK) == c_long::from(libc::SCHED_IDLE)
}

/// Has each thread of a process compete like any other; one for which that is refused stays as it is.
pub fn compete(pid: u32) {
    let _ = proc::each_thread(pid, |thread| {
        let _ = set_urgency(thread, Urgency::Normal);
        ControlFlow::<()>::Continue(())
    });
}

/// The nice value of precedence.
const PRECEDENCE: i32 = -10;

/// Asks that the calling thread, which works for fractions of a millisecond at a time, get its turn soon on
/// a crowded machine. It asks for a short slice, and for precedence where that is permitted. Processes that
/// it starts have neither. Refused where the kernel is older, and then nothing changes.
pub fn prompt() {
    const RESET_ON_FORK: u64 = 1;
    let now = nice();
    if !set_short_slice(PRECEDENCE.min(now), RESET_ON_FORK) {
        set_short_slice(now, RESET_ON_FORK);
    }
}

/// Asks for the short slice alone, which threads that it starts have too.
pub fn short_slice() {
    set_short_slice(nice(), 0);
}

fn nice() -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Whether it was permitted.
fn set_short_slice(nice: i32, flags: u64) -> bool {
    const SLICE_NS: u64 = 100_000;
    /// `struct sched_attr` in its first version; the libc crate has none.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags,
        nice,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    let args = [0, &raw const attributes as c_long, 0, 0, 0, 0];
    // SAFETY: a valid block of the size that it names.
    unsafe { raw::call(libc::SYS_sched_setattr, args) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const IDLE: c_long = libc::SCHED_IDLE as c_long;

    fn policy(id: u32) -> c_long {
        // SAFETY: no pointers.
        unsafe { raw::call(libc::SYS_sched_getscheduler, [id.into(), 0, 0, 0, 0, 0]) }
    }

    #[test]
    fn transfers_of_a_thread_of_idle_urgency_are_like_any_others() {
        // SAFETY: no pointers.
        let class = || unsafe { raw::call(libc::SYS_ioprio_get, [1, 0, 0, 0, 0, 0]) >> 13 };
        const BEST_EFFORT: c_long = 2;
        std::thread::spawn(move || {
            keep_transfer_priority();
            set_urgency(0, Urgency::Idle).expect("anyone may give way");
            assert_eq!(class(), BEST_EFFORT);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_process_of_idle_urgency_competes() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let lowered = [set_urgency(id, Urgency::Idle).is_ok(), policy(id) == IDLE];
        compete(id);
        let raised = policy(id) == c_long::from(libc::SCHED_OTHER);
        // Not everybody may.
        let lowered_again = set_urgency(id, Urgency::Idle).is_ok();
        let able = set_urgency(id, Urgency::Normal).is_ok();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((lowered, lowered_again), ([true; 2], true));
        assert_eq!(raised, able);
    }
}
