//! When the pager itself fails: closed. No page may be left to read as zeros, so the process is ended,
//! with a word to the user; the rest of the tree goes on.
//!
//! A panic of ours is such a failure. It is not left to abort: that would run the program's handler of SIGABRT. On a
//! thread of ours the handler would wait for itself as soon as it touches a page that is out. And threads of ours
//! have no standard error to say why.

use crate::process::base::Base;
use crate::process::context::Context;
use ebb_sys::paging::Kernel;
use ebb_sys::program::Gone;
use ebb_tree::{HelperExit, Member};
use std::panic::PanicHookInfo;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The message of a panic of ours.
pub fn described(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("a panic");
    let place = panic.location().map(|at| format!(" ({at})"));
    format!(
        "ebb itself failed: {what}{}. The process is ended, as nobody can serve its memory any more; \
         please report this",
        place.unwrap_or_default()
    )
}

/// How the helper ends with a program that is gone.
fn exit_with(gone: Gone) -> HelperExit {
    match gone {
        Gone::Dead => HelperExit::Ends,
        Gone::Other => HelperExit::Exec,
    }
}

impl<K: Kernel> Base<K> {
    /// Says why and kills the program, or the child of `vfork` that calls; returns on a task of ours alone.
    pub fn kill(&self, member: Option<&Member>, why: &str) {
        if self.kernel.is_own_thread() {
            if let Some(member) = member
                && self.lifecycle.tells_why()
            {
                member.last_message(why);
            }
            return self.kernel.kill_program();
        }
        // The connection is not in the descriptor table of a thread of the program.
        self.kernel
            .write_standard_error(format!("ebb: {why}\n").as_bytes());
        self.kernel.die()
    }

    /// On a task of ours, of a process that does not page: the helper ends.
    pub fn leave(&self, member: Option<&Member>, why: HelperExit) -> ! {
        if let Some(member) = member {
            member.announce_exit(why);
        }
        self.kernel.end_helper()
    }

    /// Ends with the program, if that has ended or has become another.
    pub fn leave_with_program(&self, member: &Member) {
        if let Some(gone) = self.kernel.program_is_gone() {
            self.leave(Some(member), exit_with(gone));
        }
    }
}

impl<K: Kernel> Context<K> {
    /// Says why and ends the process.
    pub fn fail(&self, why: &str) -> ! {
        self.base.kill(Some(self.member), why);
        self.leave(HelperExit::Ends)
    }

    /// On a task of ours: the helper ends, as there is no program any more, or none that it could serve.
    pub fn leave(&self, why: HelperExit) -> ! {
        // The memory goes with the last of the tasks: none may wait for a processor now.
        self.services.rescue();
        self.swap_space.devices.wipe_keys();
        self.base.leave(Some(self.member), why)
    }

    /// Ends with the program, if that has ended or has become another.
    pub fn leave_with_program(&self) {
        if let Some(gone) = self.kernel.program_is_gone() {
            if self.base.lifecycle.is_auditing() {
                // The audit waits for a lock that idle work may hold.
                self.services.rescue();
                self.audit();
            }
            self.wait_for_children();
            self.leave(exit_with(gone));
        }
    }

    /// A child that cannot reach the supervisor takes devices, and `/proc`, from this helper: it has them before it
    /// pages. Nobody is waited for long, as the dead program's memory stays meanwhile.
    fn wait_for_children(&self) {
        let begin = self.kernel.now();
        let waited = || self.kernel.now() - begin;
        while self
            .member
            .waits_for_children()
            .is_some_and(|wait| waited() < wait)
        {
            self.kernel.sleep(Duration::from_millis(1));
        }
    }

    /// On a task of ours that has nothing to do any more: waits for the end of the helper, which another one ends.
    pub fn await_end(&self) -> ! {
        let never = AtomicU32::new(0);
        loop {
            self.kernel.wait_word(&never, 0, None);
        }
    }
}
