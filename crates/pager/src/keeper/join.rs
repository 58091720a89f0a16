//! How a keeper begins: it joins the tree, or takes over from the parent's after a fork.

use crate::devices::swap_space;
use crate::fault::fault_service::FaultService;
use crate::keeper::keeper_loop::{BUSY, QUIET};
use crate::keeper::thread::Keeper;
use crate::pager::Pager;
use ebb_sys::paging::Kernel;
use ebb_tree::{HelperExit, JoinError, Member, Mode};
use std::time::Duration;

impl<K: Kernel> Pager<K> {
    /// On the first task of a helper: the keeper, from its begin to its end.
    pub fn run_keeper(&'static self) -> ! {
        // A program that fills memory with many threads is paged too late by one that waits for its turn.
        self.kernel.short_slice();
        // Without a supervisor there is nobody to account to: the program runs as it would without us.
        let watched = self.kernel.watch_program().is_ok();
        if watched {
            // Before there is a keeper nothing of the program's is out.
            self.end_on_panic();
        }
        let Some(control) = self.lifecycle.control().filter(|_| watched) else {
            self.give_up();
            self.leave(None, HelperExit::Unmanaged)
        };
        let inherited = self.take_inherited();
        // The keeper's task is the parent's yet.
        let parent_task = self.lifecycle.keeper_task();
        self.kernel.find_proc(inherited.map(|_| parent_task));
        let keeper = match inherited {
            Some(parent) => self.take_over(parent, control),
            None => self.join(control),
        };
        self.vfork_calls.start(&self.kernel);
        self.fork.child_ready(&self.kernel);
        self.run(keeper)
    }

    /// The keeper has nothing to do here: nothing will be paged.
    fn give_up(&'static self) {
        self.lifecycle.keeper_ends();
        self.vfork_calls.stop(&self.kernel);
        self.notify_growth();
    }

    /// In the child of a process that pages, whose program waits until this is done.
    fn take_over(&'static self, parent: &'static FaultService<K>, control: &str) -> Keeper<K> {
        let (member, devices) = (parent.member, &parent.swap_space.devices);
        let rejoined = member.rejoin(control, self.kernel.program_pidfd());
        let waits = || self.kernel.program_is_gone().is_none();
        let given = match rejoined.and_then(|()| devices.receive_again(member, waits)) {
            // The supervisor is gone, perhaps since its welcome: the descriptors are the parent's.
            Err(JoinError::Connect(_)) if !member.supervised() => {
                let parent_task = self.lifecycle.keeper_task();
                devices.open_again(member, |fd| {
                    let opened = self.kernel.reopen(parent_task, fd);
                    opened.map_err(|e| e.to_string())
                })
            }
            given => given.map_err(|e| e.to_string()),
        };
        let attached = given.and_then(|given| devices.reattach(member, given));
        match attached.and_then(|()| self.adopt(member, parent.swap_space, true)) {
            Ok(keeper) => keeper,
            Err(why) => {
                self.fork.child_fails(&self.kernel, why);
                // Until the program has ended.
                loop {
                    self.wait_for_news(member, 0, BUSY);
                }
            }
        }
    }

    /// Joins the tree, and takes the process under management when that begins to page.
    fn join(&'static self, control: &str) -> Keeper<K> {
        let Ok(member) = Member::join(control, None, self.kernel.program_pidfd()) else {
            self.give_up();
            self.leave(None, HelperExit::Unmanaged)
        };
        let member: &'static Member = Box::leak(Box::new(member));
        // Before the tree pages root may give up the rights that this takes (`user_change`); and those who did hold no
        // given descriptor that they could misuse meanwhile.
        let early = self.kernel.has_user(0) || !self.kernel.has_user(member.user());
        let opened = early && self.open_descriptors(member).is_ok();
        self.lifecycle.opened_descriptors(&self.kernel, opened);
        self.fork.watch(Some(member));
        self.vfork_calls.start(&self.kernel);
        self.notify_growth();
        let mut seen = 0;
        while member.mode() != Mode::Paging {
            seen = self.wait_for_news(member, seen, QUIET);
            self.serve_children();
            member.forward_paging_request();
        }
        let space = swap_space::open(&self.kernel, member, |bytes| self.before_give_back(bytes));
        let adopted = space.and_then(|space| {
            let adopted = self.adopt(member, space, false);
            adopted.inspect_err(|_| space.devices.abandon(member))
        });
        self.fork.watch(None);
        match adopted {
            Ok(keeper) => {
                self.notify_growth();
                keeper
            }
            Err(why) => {
                self.leave_with_program(member);
                member.message(&format!(
                    "process {} runs unmanaged, its memory stays in RAM: {why}; \
                     `ebb doctor` says what is low or missing here",
                    self.kernel.program()
                ));
                self.give_up();
                self.leave(Some(member), HelperExit::Unmanaged)
            }
        }
    }

    /// Opens the descriptors of this process's memory, or takes those that the supervisor gave.
    pub fn open_descriptors(&self, member: &Member) -> Result<(), String> {
        match member.take_memory_descriptors() {
            None => self.kernel.open(),
            Some(given) => self.kernel.open_given(given),
        }
    }

    /// Sleeps until there is news of the tree, or the time is over; ends with the program. The number to pass
    /// as `seen` next.
    pub fn wait_for_news(&'static self, member: &Member, seen: u32, pause: Duration) -> u32 {
        /// Where nobody tells of the program's end.
        const UNTOLD: Duration = Duration::from_millis(20);
        let word = self.kernel.program_word();
        let pause = word.map_or(pause.min(UNTOLD), |_| pause);
        let seen = self.kernel.wait_for_news(seen, pause, |most| match word {
            Some(word) => member.wait_beside(seen, most, word),
            None => member.wait(seen, Some(most)),
        });
        self.leave_with_program(member);
        self.kernel.follow_user();
        seen
    }
}
