//! A managed process's side.
//!
//! # Program and helper
//! The program's process itself may hold the connection, or a *helper*. A helper is a process of ours that
//! shares the program's memory and nothing else, and does all paging for it. A helper passes a pidfd of the
//! program when it joins. The member is the program's process in any case: its number is the one that
//! stands in the table ([`program_pid`](Member::program_pid)), whoever of the two calls.
//!
//! # Threads and forks
//! Functions on the shared table may be called from any thread. Those that use a descriptor
//! ([`join`](Member::join), [`rejoin`](Member::rejoin), [`supervised`](Member::supervised), [`message`](Member::message), `attach`,
//! [`start_paging`](Member::start_paging), [`send_userfaultfd`](Member::send_userfaultfd)) belong on the threads that share the descriptor
//! table in which the process joined.
//!
//! Around a fork, with nothing else of this process acquiring, releasing or charging:
//! ```text
//! parent, before:  child = member.reserve_child(alone)
//! parent, after:   member.child_forked(child, pid)   or member.cancel_child(child)
//! child, first:    member.child_started(child)       no system call but getpid and a stat
//! child, later:    member.rejoin(control, program)   on its new service thread, or in its helper
//! ```

mod devices;
mod held;
mod join;
mod limits;
mod reap_orphans;

pub use devices::{Device, DeviceQuestion};
pub use join::JoinError;
pub use limits::PagesOfMember;

use crate::histogram::Histogram;
use crate::protocol::{self, HelperExit, Settings};
use crate::table::{
    AgeCutoff, Asked, ChildSlot, Config, Mode, Named, ReclaimRequest, SlotNumber, SlotState,
    StateWord, Table, Way, start_threshold,
};
use ebb_engine::counters::Counters;
use ebb_sys::kept_fd::KeptFd;
use ebb_sys::paging::MemoryDescriptors;
use held::Held;
use join::{JoinRequest, number_of, request_join};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// This process's membership in its tree.
pub struct Member {
    pub(crate) table: &'static Table,
    /// Our slot; another in a forked child. Shared with the lenders.
    pub(crate) me: Arc<AtomicU32>,
    /// The taking of it that is ours, by number.
    taken: AtomicU32,
    pub(crate) held: Held,
    pub(crate) connection: KeptFd,
    settings: Settings,
    /// The number of the last question for devices.
    asked: AtomicU32,
    /// The program's process, as it sees itself.
    program: AtomicU32,
    /// Flag: the numbers that it sees are those of the table's PID namespace.
    home: AtomicBool,
    /// The descriptors, from a welcome until they are taken.
    memory: Mutex<Option<MemoryDescriptors>>,
}

impl Member {
    /// Joins the tree that `control`, the value of EBB_CONTROL, names. `reserved` is for a
    /// forked child that kept nothing of its parent's membership; one that did calls
    /// [`rejoin`](Self::rejoin). In a helper, `program` is a pidfd of the process whose memory it shares;
    /// without, this process is the program's.
    ///
    /// # Errors
    /// See [`JoinError`]. No retry helps but for [`JoinError::Protocol`] "no answer in time".
    pub fn join(
        control: &str,
        reserved: Option<ChildSlot>,
        program: Option<BorrowedFd<'_>>,
    ) -> Result<Self, JoinError> {
        let pid = number_of(program)?;
        let welcome = request_join(&JoinRequest {
            control,
            uid: rustix::process::geteuid().as_raw(),
            reserved,
            program,
            pid,
        })?;
        let fd = welcome.table.ok_or(JoinError::Protocol(
            "no table; raise the limit on open files",
        ))?;
        let table = Table::map(fd.as_fd()).map_err(JoinError::Map)?;
        // A helper was made by its program: it is no further out.
        let home = table.arrive();
        let connection = KeptFd::default();
        connection.keep(welcome.connection);
        let me = Arc::new(AtomicU32::new(welcome.slot.0 as u32));
        Ok(Self {
            table,
            me,
            taken: AtomicU32::new(table.state(welcome.slot).taken),
            held: Held::default(),
            connection,
            settings: welcome.settings,
            asked: AtomicU32::new(0),
            program: AtomicU32::new(pid),
            home: AtomicBool::new(home),
            memory: Mutex::new(welcome.memory),
        })
    }

    /// A tree of this process alone, of `budget` pages and without a supervisor: for tests and simulations of
    /// a pager.
    ///
    /// # Errors
    /// The table cannot be made.
    pub fn alone(budget: u64, config: Config) -> Result<Self, Errno> {
        let (table, _fd) = Table::create(budget, config)?;
        let slot = table.take_slot(StateWord::of(SlotState::Joined));
        let slot = slot.ok_or(Errno::NOSPC)?;
        // Children that it forks are its relatives, as a supervisor would have it.
        let family = table.next_family.fetch_add(1, SeqCst) + 1;
        table.slot(slot).family.store(family, SeqCst);
        Ok(Self::unsupervised(table, slot, config))
    }

    /// A member with slot `me` and no connection.
    fn unsupervised(table: &'static Table, me: SlotNumber, config: Config) -> Self {
        Self {
            table,
            me: Arc::new(AtomicU32::new(me.0 as u32)),
            taken: AtomicU32::new(table.state(me).taken),
            held: Held::default(),
            connection: KeptFd::default(),
            settings: Settings {
                config,
                user: rustix::process::geteuid().as_raw(),
                serves_other_users: false,
            },
            asked: AtomicU32::new(0),
            program: AtomicU32::new(std::process::id()),
            home: AtomicBool::new(table.arrive()),
            memory: Mutex::default(),
        }
    }

    /// In a tree without a supervisor: messages go to this socket.
    pub fn tell(&self, connection: OwnedFd) {
        self.connection.keep(connection);
    }

    /// In a forked child, after [`child_started`](Self::child_started), on its new service
    /// thread or in its helper: connects to the supervisor. It holds the leases that the parent held, but
    /// none of the descriptors: [`attach`](Self::attach) those again. `program` as for
    /// [`join`](Self::join).
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn rejoin(&self, control: &str, program: Option<BorrowedFd<'_>>) -> Result<(), JoinError> {
        let pid = number_of(program)?;
        self.program.store(pid, Relaxed);
        let place = ChildSlot {
            slot: self.slot(),
            taken: self.taken.load(Relaxed),
        };
        if program.is_some() {
            // Its program may be further out.
            let named = Named::by(std::process::id(), self.table.arrive());
            // Without a supervisor too: see `reap_orphans`. Not where the place was taken back, and is another's.
            if self.table.is_kept(place) {
                self.table.slot(place.slot).name_helper(place.taken, named);
            }
        }
        let welcome = request_join(&JoinRequest {
            control,
            // The program may be another's by now, which the supervisor has to say.
            uid: self.user(),
            reserved: Some(place),
            program,
            pid,
        })?;
        if welcome.slot != self.slot() {
            return Err(JoinError::Protocol("another slot than the reserved one"));
        }
        self.connection.keep(welcome.connection);
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = welcome.memory;
        Ok(())
    }

    /// After joining: the descriptors of its memory that this process was given, as it is of another user.
    pub fn take_memory_descriptors(&self) -> Option<MemoryDescriptors> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take()
    }

    /// Whether a child of a member that became another user can be served.
    pub fn serves_other_users(&self) -> bool {
        self.settings.serves_other_users
    }

    /// The number of the program's process, as it sees itself.
    pub fn program_pid(&self) -> u32 {
        self.program.load(Relaxed)
    }

    /// From a helper that ends while its program may live on: the program needs it no more. Without this
    /// the supervisor ends the program, whose memory nobody serves any more.
    pub fn announce_exit(&self, why: HelperExit) {
        self.connection
            .send_for_certain(&protocol::helper_exit(why));
    }

    /// Our slot.
    pub fn slot(&self) -> SlotNumber {
        // Only numbers made from a `SlotNumber` are stored.
        SlotNumber(self.me.load(Relaxed) as u16)
    }

    /// The state of our slot.
    pub fn state(&self) -> SlotState {
        self.table.state(self.slot()).state
    }

    /// The tree's user.
    pub fn user(&self) -> u32 {
        self.settings.user
    }

    /// How the run was configured.
    pub fn config(&self) -> Config {
        self.settings.config
    }

    /// The budget of the tree, in pages.
    pub fn budget(&self) -> u64 {
        self.table.budget.load(Relaxed).max(0) as u64
    }

    /// The limit of all charges of paging members, in pages.
    pub fn limit(&self) -> u64 {
        self.table.limit.0.load(Relaxed).max(0) as u64
    }

    /// Pages of the tree that are not charged to paging members, of which the limit leaves less than the budget.
    pub fn outside(&self) -> u64 {
        self.table.outside().max(0) as u64
    }

    /// All charges of paging members, in pages.
    pub fn charged(&self) -> u64 {
        self.table.charged.0.load(Relaxed).max(0) as u64
    }

    /// The charge of this process, in pages.
    pub fn own_charge(&self) -> u64 {
        self.table.slot(self.slot()).charged.load(Relaxed).max(0) as u64
    }

    /// Whether to page.
    pub fn mode(&self) -> Mode {
        self.table.mode()
    }

    /// Whether `pages` of a process that does not page yet are reason enough for it to.
    pub fn overdue(&self, pages: u64) -> bool {
        signed(pages) >= start_threshold(signed(self.budget()))
    }

    /// Whether a process that does not page yet shall wait until it does, before it grows further.
    pub fn delays_growth(&self) -> bool {
        self.table.delays_growth()
    }

    /// Whether this process, which has so many pages and does not page yet, may have `more` of them now.
    pub fn lets_grow(&self, has: u64, more: u64) -> bool {
        self.table.lets_grow(self.slot(), signed(has), signed(more))
    }

    /// Whether this process, which has so many pages and does not page yet, asks for `more` at once than there is room for.
    pub fn outgrows(&self, has: u64, more: u64) -> bool {
        self.table.outgrows(self.slot(), signed(has), signed(more))
    }

    /// Charges `pages` if they fit. If not, [`wait`](Self::wait) returns when there is room
    /// or may be. Every call writes lines shared by all processes: keep a stock and call
    /// for dozens of pages at a time.
    pub fn try_charge(&self, pages: u64) -> bool {
        self.table.try_charge(self.slot(), signed(pages))
    }

    /// Charges `pages` whether they fit or not.
    pub fn charge_forced(&self, pages: u64) {
        self.table.charge_forced(self.slot(), signed(pages));
    }

    /// Gives `pages` of this process's charge back.
    pub fn uncharge(&self, pages: u64) {
        self.table.uncharge(self.slot(), signed(pages));
    }

    /// From now on this process charges for itself, beginning with `pages`, and the
    /// supervisor measures it no more.
    pub fn start_paging(&self, pages: u64) {
        self.table.start_paging(self.slot(), signed(pages));
        self.connection.send(&protocol::POKE_PACKET);
    }

    /// Gives the supervisor the userfaultfd of this process, to keep for as long as its memory is used.
    /// While a process holds it, swapped-out pages do not read as zeros: neither for processes that outlive
    /// us in our memory (a child of `vfork`), nor for our own threads while we die. Whether it went; one
    /// that did not costs that, and nothing else.
    pub fn send_userfaultfd(&self, faults: impl AsFd) -> bool {
        let sent = |connection| {
            protocol::send(connection, &protocol::USERFAULTFD_PACKET, &[faults.as_fd()])
        };
        self.connection.get().is_some_and(|c| sent(c).is_ok())
    }

    /// Whether no other process of the tree pages.
    pub fn pages_alone(&self) -> bool {
        self.table.paging().nth(1).is_none()
    }

    /// Whether other processes live that may share pages with this one since a fork.
    pub fn has_relatives(&self) -> bool {
        let me = self.slot();
        self.table.relatives(me).any(|n| n != me)
    }

    /// Gives back `pages` of this process's charge for pages that it shared with its relatives and shares
    /// no more. It has copied them, and has charged the copies, or has dropped them while others keep them.
    /// Since when, `rollups` says. Every call writes lines shared by all processes.
    pub fn unshare(&self, pages: u64, rollups: u32) {
        self.table.unshare(self.slot(), signed(pages), rollups);
    }

    /// Members may share so many pages fewer than was measured.
    pub fn doubt(&self, pages: u64) {
        self.table.doubted.fetch_add(signed(pages), SeqCst);
    }

    /// Changes when what members share is measured.
    pub fn rollups(&self) -> u32 {
        self.table.rollups.load(SeqCst)
    }

    /// Publishes when (CLOCK_MONOTONIC nanoseconds) the coldest page this process could give
    /// up was last known used; 0: there is none. Others ask the process with the coldest. Most pages that it evicts come back
    /// after `return_time_ns`; 0: most do not.
    pub fn publish_oldest(&self, since_ns: u64, return_time_ns: u64) {
        let slot = self.table.slot(self.slot());
        slot.return_time_ns.store(return_time_ns, Relaxed);
        slot.coldest.store(since_ns, Relaxed);
    }

    /// Says that a page was loaded from a device at `ns` (CLOCK_MONOTONIC): others stand back then.
    pub fn report_load(&self, ns: u64) {
        self.table.report_load(ns);
    }

    /// When a page was loaded from a device last, about, in the whole tree.
    pub fn last_load_ns(&self) -> u64 {
        self.table.last_load_ns(ebb_sys::clock::monotonic_ns())
    }

    /// Asks the process with the coldest pages (the largest, if none has published how cold
    /// they are) to give up at least `pages`.
    pub fn ask_reclaim(&self, pages: u64) -> Asked {
        self.table.ask_reclaim(self.slot(), pages)
    }

    /// Asks the two other processes with the coldest pages to give up at least `pages` each, if
    /// those are old enough. Returns whom first.
    pub fn ask_colder(&self, before: AgeCutoff, pages: u64) -> Asked {
        self.table.ask_colder(self.slot(), before, pages)
    }

    /// Pages that others asked this process to give up, taken over by the caller. If any are, [`has_given`](Self::has_given)
    /// follows.
    pub fn take_reclaim_request(&self) -> ReclaimRequest {
        self.table.take_request(self.slot())
    }

    /// This process has given what it took over, or as much as it could.
    pub fn has_given(&self) {
        self.table.has_given(self.slot());
    }

    /// Whether others ask this process to give up pages.
    pub fn is_asked(&self) -> bool {
        self.table.is_asked(self.slot())
    }

    /// Sleeps until there is news after `seen` (0 at first) or the time is over; returns what
    /// to pass as `seen` next. News: a request to reclaim, another mode or limit, or room
    /// after a charge was refused. May return early.
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) -> u32 {
        self.table.wait(self.slot(), seen, timeout)
    }

    /// The same, and also until another word of this process's memory, which is waited for by its address, is
    /// not what it was seen to be.
    pub fn wait_beside(
        &self,
        seen: u32,
        timeout: Duration,
        (word, value): (&AtomicU32, u32),
    ) -> u32 {
        self.table
            .wait_beside(self.slot(), seen, timeout, (word, value, true))
    }

    /// Wakes this process's own [`wait`](Self::wait)ers.
    pub fn wake_self(&self) {
        self.table.wake(self.slot());
    }

    /// Our counters.
    pub fn counters(&self) -> &'static Counters {
        &self.table.slots[self.slot().index()].counters.0
    }

    /// Where to record how long faults took, by the way their page came in.
    pub fn latency(&self, way: Way) -> &'static Histogram {
        &self.table.slots[self.slot().index()].latency[way as usize]
    }

    /// A thread waited so long for a page that as many frames more as its `rank` would have kept.
    pub fn refaulted(&self, rank: usize, waited_ns: u64) {
        let slot = &self.table.slots[self.slot().index()];
        slot.refaults.add(rank as u64, waited_ns);
    }

    /// The line that the process ends with; with no lock held. As [`message`](Self::message), but not dropped where the
    /// system has no memory for it.
    pub fn last_message(&self, text: &str) {
        let mut packet = [0; protocol::MAX_PACKET];
        let packet = protocol::message(text, &mut packet);
        self.connection.send_for_certain(packet);
    }

    /// A line on the supervisor's standard error, prefixed with our name and pid. Dropped if
    /// the supervisor is gone or cannot keep up.
    pub fn message(&self, text: &str) {
        let mut packet = [0; protocol::MAX_PACKET];
        self.connection.send(protocol::message(text, &mut packet));
    }

    /// Before a fork, in a process of `pages` that does not page: whether the budget holds all that
    /// the child might copy, beside all that others might. If so, that is kept for it until the
    /// supervisor has seen the child.
    pub fn fork_fits(&self, pages: u64) -> bool {
        self.table.fork_fits(self.slot(), signed(pages))
    }

    /// Whether a fork may wait for the tree to page: the supervisor has looked since one did so in vain. One that is gone
    /// or stopped limits nobody.
    pub fn may_request_paging(&self) -> bool {
        self.table.unanswered.load(SeqCst) == 0
    }

    /// A fork waits for the tree to page, which does not begin.
    pub fn waits_in_vain(&self) {
        self.table.unanswered.store(1, SeqCst);
    }

    /// The tree shall begin to page: a fork waits for it.
    pub fn request_paging(&self) {
        self.table.paging_request.store(1, SeqCst);
        self.wake_self();
    }

    /// Tells the supervisor at once if somebody wants the tree to page; or those who wait that there is none. On the thread
    /// that joined.
    pub fn forward_paging_request(&self) {
        if self.table.paging_request.load(SeqCst) == 0 {
            return;
        }
        match self.supervised() {
            true => _ = self.connection.send(&protocol::POKE_PACKET),
            false => self.waits_in_vain(),
        }
    }

    /// Whether there is a place for a child, which [`reserve_child`](Self::reserve_child) may find;
    /// if not, the supervisor tells the user, once.
    pub fn has_free_slot(&self) -> bool {
        let has = self.table.has_free_slot();
        if !has {
            self.table.crowded.store(self.program_pid(), SeqCst);
        }
        has
    }

    /// Before a fork, in the parent: a slot for the child. From now on the child is a reader of all
    /// clusters that we own or read, so that there is no window. If this process pages, its whole charge is
    /// charged once more for the child, with credit for all of it. Excepted are `alone` pages, which the
    /// child does not inherit. None if all slots are taken.
    pub fn reserve_child(&self, alone: u64) -> Option<ChildSlot> {
        let me = self.slot();
        let charges = self.table.state(me).is_charging();
        let child = self
            .table
            .take_slot(StateWord::reserved(Some(me), charges))?;
        let slot = self.table.slot(child);
        slot.family
            .store(self.table.slot(me).family.load(SeqCst), SeqCst);
        slot.limits.set(self.table.slot(me).limits.get());
        self.held
            .each(|leases| leases.inherit(me.index(), child.index()));
        if charges {
            self.table.charge_for_child(me, child, signed(alone));
        }
        Some(ChildSlot {
            slot: child,
            taken: self.table.state(child).taken,
        })
    }

    /// After a fork, in the parent. `pid` 0: not known, or the fork may have failed; the
    /// supervisor then finds out by itself whether there is a child.
    pub fn child_forked(&self, child: ChildSlot, pid: u32) {
        let named = if pid == 0 {
            Named::Unnamed
        } else {
            Named::by(pid, self.home.load(Relaxed))
        };
        self.table.slot(child.slot).name(child.taken, named, true);
    }

    /// How long the helper of a program that has ended may wait for children that need what it has; none: there are
    /// none.
    pub fn waits_for_children(&self) -> Option<Duration> {
        self.table.waits_for_children(self.slot())
    }

    /// Whether the supervisor is there. On the thread that joined.
    pub fn supervised(&self) -> bool {
        let Some(connection) = self.connection.get() else {
            return false;
        };
        let how = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let ended = net::recv(connection, &mut [0; 1][..], how);
        !matches!(ended, Ok((_, 0)) | Err(Errno::CONNRESET))
    }

    /// In the parent, if the fork failed.
    pub fn cancel_child(&self, child: ChildSlot) {
        self.held
            .each(|leases| leases.forget_reader(child.slot.index()));
        self.table.clear_charges(Some(self.slot()), child.slot);
        self.table.set_state(child.slot, StateWord::FREE);
    }

    /// After a fork, first thing in the child: from now on we are `child`, and so are our
    /// lenders. The connection is the parent's: forgotten. On a thread of the program, not of a helper. False: the place
    /// was taken back, and may be another's. What the child reads on devices is protected by nobody then.
    #[must_use]
    pub fn child_started(&self, child: ChildSlot) -> bool {
        self.connection.forget();
        self.me.store(child.slot.0 as u32, Relaxed);
        self.taken.store(child.taken, Relaxed);
        let home = self.table.arrive();
        self.home.store(home, Relaxed);
        let pid = std::process::id();
        self.program.store(pid, Relaxed);
        // Our parent may be dead already, before it could write our pid.
        let named = Named::by(pid, home);
        self.table.slot(child.slot).name(child.taken, named, false);
        self.table.is_kept(child)
    }
}

fn signed(pages: u64) -> i64 {
    // No machine has 2^62 pages; a sum of two such does not overflow.
    pages.min(1 << 62) as i64
}

#[cfg(test)]
impl Member {
    /// A member with slot `me` and no connection.
    pub(crate) fn for_test(table: &'static Table, me: SlotNumber) -> Self {
        Self::unsupervised(table, me, Config::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const NOBODY: &str = "ebb-tree-1-0-0123456789abcdef";

    /// Its parent has died, it was taken for dead as well, and its place is another's.
    #[test]
    fn a_child_whose_place_was_taken_back_names_no_helper_of_anothers() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        table.arrive();
        let me = table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        let member = Member::for_test(table, me);
        let child = member.reserve_child(0).unwrap();
        assert!(member.child_started(child));
        let this = rustix::process::getpid();
        let this = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty());
        let this = this.unwrap();
        let rejoins = || {
            // It is named without a supervisor, too.
            let rejoined = member.rejoin(NOBODY, Some(this.as_fd()));
            assert!(matches!(rejoined, Err(JoinError::Connect(_))));
        };
        let helper = |taken| table.slot(child.slot).helper(taken);
        rejoins();
        assert_eq!(helper(child.taken), Named::Pid(std::process::id()));
        table.set_state(child.slot, StateWord::FREE);
        let next = table.take_slot(StateWord::reserved(None, false));
        assert_eq!(next, Some(child.slot));
        rejoins();
        assert_eq!(helper(table.state(child.slot).taken), Named::Unborn);
        assert!(!member.child_started(child));
    }
}
