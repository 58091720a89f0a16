//! A process's slot: its number, the word that says what it is used for, the part of the table that is
//! the process's own.

use super::device::Share;
use super::limits::LimitWords;
use super::refaults::Refaults;
use crate::histogram::Histogram;
use crate::{MAX_DEVICES, MAX_MEMBERS};
use ebb_engine::counters::Counters;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};

/// A process's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotNumber(pub(crate) u16);

impl SlotNumber {
    pub(crate) fn new(n: usize) -> Option<Self> {
        (n < MAX_MEMBERS).then_some(Self(n as u16))
    }

    /// As an array position.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..MAX_MEMBERS as u16).map(Self)
    }
}

/// The slot reserved for a child about to be forked, and the taking of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildSlot {
    pub(crate) slot: SlotNumber,
    pub(crate) taken: u32,
}

impl ChildSlot {
    /// Its number.
    pub fn number(self) -> SlotNumber {
        self.slot
    }
}

impl fmt::Display for SlotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// Taken for a child about to be forked, or forked and not yet joined.
    Reserved,
    /// A process that does not page yet: the supervisor measures it.
    Joined,
    /// A process that pages: it charges for itself.
    Paging,
}

/// State, and who reserved the slot as long as its process has not reached the supervisor, in one word. So a process
/// killed between the two cannot leave one without the other. With it, how often the slot has been
/// taken: whoever remembers something about a slot can tell that it is another's by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateWord {
    pub state: SlotState,
    pub parent: Option<SlotNumber>,
    /// Flag: the parent pages, so the child is charged from before it is born.
    pub charges: bool,
    /// Modulo 2^14; kept by the table.
    pub taken: u32,
}

const TAKEN_SHIFT: u32 = 18;
pub(super) const TAKEN_MASK: u32 = (1 << (32 - TAKEN_SHIFT)) - 1;
const _: () = assert!(MAX_MEMBERS < 1 << (TAKEN_SHIFT - 8));

impl StateWord {
    pub const FREE: Self = Self::of(SlotState::Free);

    pub const fn of(state: SlotState) -> Self {
        Self {
            state,
            parent: None,
            charges: false,
            taken: 0,
        }
    }

    pub const fn reserved(parent: Option<SlotNumber>, charges: bool) -> Self {
        Self {
            state: SlotState::Reserved,
            parent,
            charges,
            taken: 0,
        }
    }

    /// Whether the process charges for itself and is not to be measured.
    pub fn is_charging(self) -> bool {
        match self.state {
            SlotState::Paging => true,
            SlotState::Reserved => self.charges,
            SlotState::Free | SlotState::Joined => false,
        }
    }

    pub(super) fn pack(self) -> u32 {
        let state = match self.state {
            SlotState::Free => 0,
            SlotState::Reserved => 1,
            SlotState::Joined => 2,
            SlotState::Paging => 3,
        };
        let parent = self.parent.map_or(0, |slot| slot.0 as u32 + 1);
        state | (self.charges as u32) << 2 | parent << 8 | self.taken << TAKEN_SHIFT
    }

    pub(super) fn unpack(word: u32) -> Self {
        let state = match word & 3 {
            0 => SlotState::Free,
            1 => SlotState::Reserved,
            2 => SlotState::Joined,
            _ => SlotState::Paging,
        };
        let parent = (word as usize >> 8 & 0x3ff)
            .checked_sub(1)
            .and_then(SlotNumber::new);
        Self {
            state,
            parent,
            charges: word >> 2 & 1 == 1,
            taken: word >> TAKEN_SHIFT,
        }
    }
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// The part of the table that belongs to one process.
#[repr(C, align(4096))]
pub(crate) struct Slot {
    /// The pid as the parent or it itself knows it, 0 if not known, with [`FOREIGN`]. Above it stands the taking of
    /// the slot that it belongs to, because a parent may be late to write it.
    pid: AtomicU64,
    /// The number of the process that reaps this dead one; 0: nobody. Above it as above.
    pub reaper: AtomicU64,
    /// The number of the process that serves this one, if that is another; 0: none is known. Above it as
    /// above.
    helper: AtomicU64,
    /// Woken on requests, on a new limit or mode, on room for the waiters.
    pub futex: AtomicU32,
    /// Processes related by fork without exec have the same number.
    pub family: AtomicU64,
    /// Pages this process has charged.
    pub charged: AtomicI64,
    /// Pages of those that another process of the family has charged as well.
    pub credit: AtomicI64,
    /// Pages the supervisor counts for it as long as it does not page.
    pub measured: AtomicI64,
    /// Pages up to which it was let grow when last it asked, as long as it does not page; and when that was.
    pub let_grow: AtomicI64,
    pub let_grow_ns: AtomicU64,
    /// Steps on the shared sums begun and done: equal when none is under way.
    pub begun: AtomicU64,
    pub done: AtomicU64,
    /// Monotonic time at which its coldest page was last known used; 0: it has none to give.
    pub coldest: AtomicU64,
    /// Nanoseconds after which most of what it evicts comes back; 0: most does not.
    pub return_time_ns: AtomicU64,
    /// The request of others for pages: a packed [`ReclaimRequest`](super::ask::ReclaimRequest).
    pub request: AtomicU64,
    /// The charge that it comes down to when it has given what it took over; 0: it gives nothing now.
    pub gives_down_to: AtomicI64,
    /// Devices whose descriptors it holds, one bit a row. Set by the supervisor when it sends
    /// them, cleared by the process when it has closed them.
    pub attached: AtomicU32,
    /// The limits of its own, beside the tree's.
    pub limits: LimitWords,
    /// Bytes that its pool holds.
    pub pool: AtomicU64,
    /// Bytes of compressed pages in it, and how many pages they are.
    pub pool_data: AtomicU64,
    pub pool_pages: AtomicU64,
    /// Monotonic times: when that was said, and when it was last more than before.
    pub pool_reported_ns: AtomicU64,
    pub pool_grew_ns: AtomicU64,
    /// Monotonic time at which the oldest of it came that may go to a device; 0: there is none.
    pub pool_oldest: AtomicU64,
    /// Pages in its staging area, and pages that it has charged and cannot page.
    pub staging: AtomicU64,
    pub unmanaged: AtomicU64,
    /// Pages of it that are in the swap space alone.
    pub swapped: AtomicU64,
    pub shares: [Share; MAX_DEVICES],
    pub counters: Line<Counters>,
    pub latency: [Histogram; 4],
    pub refaults: Refaults,
}

/// For how long pages have been idle, by what is known. They have been resident for `resident` without a sign of use.
/// Pages that leave come back after `return_time`, most of them (0: most do not, or nothing is known), and those that
/// stay will be used as soon.
pub fn idle_time(resident: u64, return_time: u64) -> u64 {
    match return_time {
        0 => resident,
        _ => resident.min(return_time),
    }
}

/// A bit beside a pid, which has none so high: it was written in another PID namespace than the table's.
const FOREIGN: u32 = 1 << 31;
/// In place of a pid: the child has been forked, and its parent does not know which it is.
const UNNAMED: u32 = u32::MAX;

/// The process that a slot is for, or that serves it, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// Perhaps not forked yet.
    Unborn,
    /// Forked, or dead already.
    Unnamed,
    /// Its number in the PID namespace in which the table was made.
    Pid(u32),
    /// Its number in another one, which may be anybody's here.
    Foreign(u32),
}

impl Named {
    /// By a number that a process wrote, which is at `home` where the table was made.
    pub fn by(pid: u32, home: bool) -> Self {
        match home {
            true => Self::Pid(pid),
            false => Self::Foreign(pid),
        }
    }

    fn pack(self) -> u32 {
        match self {
            Self::Unborn => 0,
            Self::Unnamed => UNNAMED,
            Self::Pid(pid) => pid,
            Self::Foreign(pid) => pid | FOREIGN,
        }
    }

    fn unpack(word: u32) -> Self {
        match word {
            0 => Self::Unborn,
            UNNAMED => Self::Unnamed,
            foreign if foreign & FOREIGN != 0 => Self::Foreign(foreign & !FOREIGN),
            pid => Self::Pid(pid),
        }
    }
}

impl Slot {
    /// The slot begins a new life, of a process not known yet.
    pub fn forget_pid(&self, taken: u32) {
        self.pid.store((taken as u64) << 32, SeqCst);
    }

    /// Writes who the slot is for, unless it is another's by now, or more is known already.
    /// A number of the parent's is worth more than the child's own, which may be of another
    /// namespace: it `overrules`. What means nothing where the table was made replaces nothing that does.
    pub fn name(&self, taken: u32, named: Named, overrules: bool) {
        let new = (taken as u64) << 32 | named.pack() as u64;
        // Refused: nothing to do then.
        let _ = self.pid.fetch_update(SeqCst, SeqCst, |old| {
            let less = match (Named::unpack(old as u32), named) {
                (_, Named::Unborn) => false,
                (Named::Unborn, _) | (Named::Unnamed, _) => true,
                (_, Named::Unnamed) | (Named::Pid(_), Named::Foreign(_)) => false,
                (_, Named::Pid(_) | Named::Foreign(_)) => overrules,
            };
            (old >> 32 == taken as u64 && less).then_some(new)
        });
    }

    /// For how long its coldest page has been idle at `now_ns`, by what is known; `None`: it has none to give.
    pub fn idle_ns(&self, now_ns: u64) -> Option<u64> {
        let since = self.coldest.load(Relaxed);
        let return_time = self.return_time_ns.load(Relaxed);
        (since > 0).then(|| idle_time(now_ns.saturating_sub(since), return_time))
    }

    /// Says who serves the process of the slot.
    pub fn name_helper(&self, taken: u32, named: Named) {
        let word = (taken as u64) << 32 | named.pack() as u64;
        self.helper.store(word, SeqCst);
    }

    /// The process that serves the process of the slot, if that is another. `Unborn`: none is known.
    pub fn helper(&self, taken: u32) -> Named {
        named_in(&self.helper, taken)
    }

    /// The process that the slot is for, as far as it was named since the slot was taken.
    pub fn named(&self, taken: u32) -> Named {
        named_in(&self.pid, taken)
    }
}

fn named_in(word: &AtomicU64, taken: u32) -> Named {
    let word = word.load(SeqCst);
    match word >> 32 == taken as u64 {
        true => Named::unpack(word as u32),
        false => Named::Unborn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, Table};

    #[test]
    fn a_word_carries_the_state() {
        for state in [
            SlotState::Free,
            SlotState::Reserved,
            SlotState::Joined,
            SlotState::Paging,
        ] {
            for parent in [None, SlotNumber::new(0), SlotNumber::new(511)] {
                for charges in [false, true] {
                    let word = StateWord {
                        state,
                        parent,
                        charges,
                        taken: 777,
                    };
                    assert_eq!(StateWord::unpack(word.pack()), word);
                }
            }
        }
        assert_eq!(StateWord::unpack(u32::MAX).parent, None);
    }

    #[test]
    fn a_late_name_is_not_taken_for_another_child() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let n = table.take_slot(StateWord::reserved(None, false)).unwrap();
        let taken = table.state(n).taken;
        let slot = table.slot(n);
        assert_eq!(slot.named(taken), Named::Unborn);
        slot.name(taken, Named::Unnamed, true);
        assert_eq!(slot.named(taken), Named::Unnamed);
        slot.name(taken, Named::Pid(5), false);
        slot.name(taken, Named::Unnamed, true);
        slot.name(taken, Named::Pid(6), false);
        assert_eq!(slot.named(taken), Named::Pid(5));
        slot.name(taken, Named::Pid(7), true);
        assert_eq!(slot.named(taken), Named::Pid(7));

        // A number of another namespace says less.
        slot.name(taken, Named::Foreign(8), true);
        assert_eq!(slot.named(taken), Named::Pid(7));

        table.set_state(n, StateWord::FREE);
        assert_eq!(table.take_slot(StateWord::reserved(None, false)), Some(n));
        let later = table.state(n).taken;
        slot.name(taken, Named::Pid(7), true);
        assert_eq!(slot.named(later), Named::Unborn);
        slot.name(later, Named::Foreign(1), false);
        slot.name(later, Named::Unnamed, true);
        assert_eq!(slot.named(later), Named::Foreign(1));
        slot.name(later, Named::Pid(9), true);
        assert_eq!(slot.named(later), Named::Pid(9));

        assert_eq!(slot.helper(later), Named::Unborn);
        slot.name_helper(later, Named::Foreign(2));
        assert_eq!(
            (slot.helper(taken), slot.helper(later)),
            (Named::Unborn, Named::Foreign(2))
        );
    }
}
