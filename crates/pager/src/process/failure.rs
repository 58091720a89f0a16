//! When the pager itself fails: closed. No page may be left to read as zeros, so the process is ended,
//! with a word to the user; the rest of the tree goes on.
//!
//! A panic of ours is such a failure. It is not left to abort: that would run the program's handler of SIGABRT. On a
//! thread of ours the handler would wait for itself as soon as it touches a page that is out. And threads of ours
//! have no standard error to say why.

use crate::process::pager::{Pager, Process};
use ebb_sys::paging::Kernel;
use ebb_sys::program::Gone;
use ebb_tree::{HelperExit, Member};
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

impl<K: Kernel> Process<K> {
    /// Says why and ends the process.
    pub fn fail(&self, why: &str) -> ! {
        self.pager.end(Some(self.member), why)
    }
}

fn described(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("a panic");
    let place = panic.location().map(|at| format!(" ({at})"));
    format!(
        "ebb itself failed: {what}{}. The process is ended, as nobody can serve its memory any more; \
         please report this",
        place.unwrap_or_default()
    )
}

impl<K: Kernel> Pager<K> {
    /// From now on a panic ends the process as any failure does.
    pub fn end_on_panic(&'static self) {
        std::panic::set_hook(Box::new(|panic| self.end(self.member(), &described(panic))));
    }

    /// On a task of ours: the helper ends, as there is no program any more, or none that it could serve.
    pub fn leave(&self, member: Option<&Member>, why: HelperExit) -> ! {
        if let Some(process) = self.process() {
            // The memory goes with the last of the tasks: none may wait for a processor now.
            process.services.compete(true);
            process.swap_space.devices.wipe_keys();
        }
        if let Some(member) = member {
            member.announce_exit(why);
        }
        self.kernel.end_helper()
    }

    /// Says why and ends the process, or the child of `vfork` that calls.
    pub fn end(&self, member: Option<&Member>, why: &str) -> ! {
        if self.kernel.is_own_thread() {
            if let Some(member) = member {
                member.message(why);
            }
            self.kernel.kill_program();
            self.leave(member, HelperExit::Ends)
        }
        // The connection is not in the descriptor table of a thread of the program.
        drop(writeln!(std::io::stderr(), "ebb: {why}"));
        self.kernel.die()
    }

    /// Ends with the program, if that has ended or has become another.
    pub fn leave_with_program(&self, member: &Member) {
        let gone = self.kernel.program_is_gone();
        if gone.is_some()
            && self.lifecycle.auditing.load(SeqCst)
            && let Some(process) = self.process()
        {
            process.audit();
        }
        match gone {
            None => {}
            Some(Gone::Dead) => self.leave(Some(member), HelperExit::Ends),
            Some(Gone::Other) => self.leave(Some(member), HelperExit::Exec),
        }
    }
}

impl<K: Kernel> Process<K> {
    /// On a task of ours that has nothing to do any more: waits for the end of the helper, which another one ends.
    pub fn await_end(&self) -> ! {
        let never = AtomicU32::new(0);
        loop {
            self.kernel.wait_word(&never, 0, None);
        }
    }
}
