//! Memory that outlives its process. A child of `vfork` that has not executed anything yet runs on in it
//! when its parent is killed, and nobody is left to bring swapped-out pages back.
//!
//! With the last descriptor of a userfaultfd its memory would cease to be registered, and what is out read
//! as zeros. So every member that pages has [given](crate::Member::send_userfaultfd) us a second one, which is kept until
//! nobody uses the memory any more, if there are descriptors enough. Nothing is read from it while the member
//! lives: its own threads do.
//! They may end before others of its threads, as it is killed in the midst of a system call: whose faults then
//! wait for us are being killed.
//!
//! After its death, pages that are present and only protected are set free. Missing pages are lost, as are
//! the keys to them: a thread that touches one gets SIGBUS, or EFAULT from a system call. Pages that were
//! never written count as lost too: nothing tells them apart.
//!
//! The descriptor comes from a process that may mean harm, and this thread is the tree's only one. So one is
//! [taken](take) only where nobody who reads it waits, reads say so each time, and one that its giver has made
//! others wait for since is forgotten.
//!
//! Not here: bringing pages back. And without a supervisor there is none of this.

use super::{Supervisor, Token};
use ebb_sys::memory::PAGE;
use ebb_sys::userfaultfd::{self, Fault, Userfaultfd};
use rustix::event::epoll;
use std::os::fd::{AsRawFd, OwnedFd};

/// Memory whose process has ended.
pub(super) struct OrphanMemory {
    /// The process.
    pid: u32,
    userfaultfd: Userfaultfd,
    /// Flag: the user knows that pages of it are lost.
    warned: bool,
}

/// Descriptors left to processes that join.
const SPARE: u64 = 64;

/// How often faults are read in a row: who faults without end does not keep the tick from its time.
const ROUNDS: usize = 64;

/// What comes of a descriptor that a member gave us.
pub(super) enum Given {
    Kept(Userfaultfd),
    /// There are not enough descriptors beside this one. They have the lowest number that is free.
    TooMany,
    /// It is none that a member of ours gives.
    Unfit,
}

pub(super) fn take(descriptor: OwnedFd) -> Given {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|most| descriptor.as_raw_fd() as u64 + SPARE >= most) {
        return Given::TooMany;
    }
    Userfaultfd::given(descriptor).map_or(Given::Unfit, Given::Kept)
}

impl OrphanMemory {
    /// Answers who waits; whether pages were lost to them.
    fn serve(&self) -> bool {
        let mut lost = false;
        let mut buffer = [Fault::default(); userfaultfd::BATCH];
        for _ in 0..ROUNDS {
            let Ok(faults @ [_, ..]) = self.userfaultfd.read_given(&mut buffer) else {
                break;
            };
            for fault in faults {
                // Refused: there by now, no longer mapped, or changing: looked at again if it still faults.
                if fault.protected {
                    let _ = self.userfaultfd.protect(fault.page(), PAGE, false);
                } else {
                    lost = true;
                    let _ = self.userfaultfd.poison(fault.page(), PAGE);
                }
                let _ = self.userfaultfd.wake(fault.page(), PAGE);
            }
        }
        lost
    }
}

impl Supervisor {
    /// The process `pid`, whose `faults` these are, has ended, or become another program.
    pub(super) fn keep_orphan_memory(&mut self, pid: u32, userfaultfd: Userfaultfd) {
        if !userfaultfd.is_used() {
            return;
        }
        let n = self.next_orphan_memory;
        self.next_orphan_memory = n.wrapping_add(1);
        // Refused: who waits is answered at the next walk.
        let token = Token::OrphanMemory(n).pack();
        let _ = epoll::add(&self.epoll, &userfaultfd, token, epoll::EventFlags::IN);
        // Faults that its own threads had read, and did not come to serve.
        let _ = userfaultfd.wake_all();
        let warned = false;
        self.orphan_memory.insert(
            n,
            OrphanMemory {
                pid,
                userfaultfd,
                warned,
            },
        );
    }

    /// Somebody waits for a page.
    pub(super) fn serve_orphan_memory(&mut self, n: u32) {
        let Some(memory) = self.orphan_memory.get_mut(&n) else {
            return;
        };
        if !memory.userfaultfd.is_nonblocking() {
            // It would count as readable for ever.
            self.forget_orphan_memory(n);
            return;
        }
        if memory.serve() && !std::mem::replace(&mut memory.warned, true) {
            let pid = memory.pid;
            self.notice(&format!(
                "process {pid} has ended while another ran in its memory (a child of vfork that had not \
                 executed anything yet): what was swapped out of it is lost, and who touches that gets \
                 SIGBUS; end children of vfork before their parent"
            ));
        }
    }

    /// Others may hold its file yet: the queue forgets it only if it is told to.
    fn forget_orphan_memory(&mut self, n: u32) {
        if let Some(memory) = self.orphan_memory.remove(&n) {
            let _ = epoll::delete(&self.epoll, &memory.userfaultfd);
        }
    }

    /// Forgets memory that nobody uses any more, and answers whoever was not warned of.
    pub(super) fn check_orphan_memory(&mut self) {
        let numbers: Vec<u32> = self.orphan_memory.keys().copied().collect();
        for n in numbers {
            match self.orphan_memory[&n].userfaultfd.is_used() {
                true => self.serve_orphan_memory(n),
                false => self.forget_orphan_memory(n),
            }
        }
    }
}
