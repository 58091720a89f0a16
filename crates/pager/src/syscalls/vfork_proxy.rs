//! Which calls a child that shares this memory makes itself, and which the keeper makes for it: see
//! [`vfork_calls`](crate::process::vfork_calls).

use crate::pager::Pager;
use crate::process::outcome::Outcome;
use crate::process::vfork_calls::MemoryCall;
use ebb_sys::paging::Kernel;
use std::time::Duration;

/// How long a keeper may take to join the tree. On a crowded machine that may be seconds.
const JOINED: Duration = Duration::from_secs(10);
/// How often one who waits for it sees whether it lives.
const LOOK: Duration = Duration::from_millis(20);

/// The executor of a call.
pub enum Executor {
    /// The calling thread, and tells the pager.
    Here,
    /// The calling thread, as it is.
    Direct,
    /// The keeper has.
    Done(Outcome<usize>),
}

/// The executor of such a child's call. Moved memory would be registered no more: lost pages would read as zeros
/// there.
fn orphaned_call(call: &MemoryCall) -> Executor {
    const MOVES: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    match *call {
        MemoryCall::Remap { flags, .. } if flags & MOVES != 0 => Executor::Done(Err(libc::ENOMEM)),
        _ => Executor::Direct,
    }
}

impl<K: Kernel> Pager<K> {
    /// The executor of this call of the calling thread's.
    pub fn executor(&'static self, call: MemoryCall) -> Executor {
        if !self.wanted() {
            return Executor::Direct;
        }
        if !self.is_child() {
            return Executor::Here;
        }
        loop {
            if self.vfork_calls.is_served(&self.kernel) {
                if let Some(outcome) = self
                    .vfork_calls
                    .ask(&self.kernel, call, || self.wake_keeper())
                {
                    return Executor::Done(outcome);
                }
            } else if self.lifecycle.is_keeperless() {
                // Nothing of it will ever be paged.
                return Executor::Direct;
            } else if self.vfork_calls.has_paged() {
                return orphaned_call(&call);
            } else if self.vfork_calls.note_unmanaged(&call, self.known_break()) {
                return Executor::Direct;
            }
        }
    }

    /// Whether the calling thread is of a child whose parent is dead, and its pager with it, while pages were out.
    pub fn is_orphaned(&self) -> bool {
        self.vfork_calls.has_paged() && self.is_child() && !self.vfork_calls.is_served(&self.kernel)
    }

    /// Whether the calling thread is of a child that shares this process's memory.
    pub fn is_child(&self) -> bool {
        self.vfork_calls.is_child(&self.kernel)
    }

    /// A child that shares this memory, and lives beside this process, is about to be made. A keeper makes its memory
    /// calls. The child cannot start one, which would end with it. So this process has a keeper, however small it is.
    pub fn prepare_sharing(&'static self) {
        if !self.wanted() || self.is_child() {
            return;
        }
        self.start_first_keeper();
        let begin = self.kernel.now();
        while !self.vfork_calls.is_served(&self.kernel)
            && self.lifecycle.had_keeper()
            && self.kernel.helper_lives()
            && self.kernel.now() - begin < JOINED
        {
            let seen = self.admission.changes();
            if !self.vfork_calls.is_served(&self.kernel) {
                self.admission.wait_change(&self.kernel, seen, LOOK);
            }
        }
    }

    fn wake_keeper(&self) {
        let member = self.member();
        if let Some(member) = member {
            member.wake_self();
        }
    }
}
