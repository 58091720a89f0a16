//! The shared table: its words, how it is laid out, how it is mapped.
//!
//! One memfd holds the [`Table`]; a second one per device holds its leases, so that a device
//! can come later and huge ones cost only what is touched. The words that others scan (the
//! states of all slots) lie together; what belongs to one process lies in its own pages, which
//! stay untouched, and free of cost, until the slot is first used.
//!
//! # States of a slot
//! ```text
//! FREE ──join──────────────▶ JOINED ──start_paging──▶ PAGING
//!  └──reserve_child──▶ RESERVED ──join──▶ JOINED or, if the parent paged, PAGING
//! any ──reap (supervisor), cancel_child (parent) or bury_dead (any member)──▶ FREE
//! ```
//! Counters and latencies of a slot are never reset when it is used again: totals over the
//! tree are sums over all slots.

use crate::histogram::Histogram;
use crate::lease::{LeaseHeader, Leases, SLOT_WORDS, row_words};
use crate::limits::{LimitWords, Limits};
use crate::{MAX_DEVICES, MAX_SLOTS};
use ebb_engine::CLUSTER_SLOTS;
use ebb_engine::counters::Counters;
use ebb_engine::slots::DeviceChoice;
use ebb_sys::proc;
use ebb_sys::shm::{Area, Shared};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};

const MAGIC: u64 = u64::from_be_bytes(*b"ebbtree\0");
/// Raised with every change of layout or meaning.
pub(crate) const VERSION: u32 = 7;

/// A process's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotNumber(pub(crate) u16);

impl SlotNumber {
    pub(crate) fn new(n: usize) -> Option<Self> {
        (n < MAX_SLOTS).then_some(Self(n as u16))
    }

    /// As an array position.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..MAX_SLOTS as u16).map(Self)
    }
}

impl fmt::Display for SlotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a slot is used for.
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

/// State, and for a reserved slot who reserved it, in one word, so that a process killed
/// between the two cannot leave one without the other. With it, how often the slot has been
/// taken: whoever remembers something about a slot can tell that it is another's by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateWord {
    pub state: SlotState,
    pub parent: Option<SlotNumber>,
    /// The parent pages, so the child is charged from before it is born.
    pub charges: bool,
    /// Modulo 2^14; kept by the table.
    pub taken: u32,
}

const TAKEN_SHIFT: u32 = 18;
const TAKEN_MASK: u32 = (1 << (32 - TAKEN_SHIFT)) - 1;
const _: () = assert!(MAX_SLOTS < 1 << (TAKEN_SHIFT - 8));

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

    fn pack(self) -> u32 {
        let state = match self.state {
            SlotState::Free => 0,
            SlotState::Reserved => 1,
            SlotState::Joined => 2,
            SlotState::Paging => 3,
        };
        let parent = self.parent.map_or(0, |slot| slot.0 as u32 + 1);
        state | (self.charges as u32) << 2 | parent << 8 | self.taken << TAKEN_SHIFT
    }

    fn unpack(word: u32) -> Self {
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

/// Whether the tree has to page yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything fits; nobody pages.
    Watching,
    /// The budget is near: members page. There is no way back.
    Paging,
}

/// How a page came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Never touched before, or all zero.
    Zero,
    /// Still in memory.
    Cache,
    /// Out of the compressed pool.
    Pool,
    /// Read from a device.
    Device,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Zero, Way::Cache, Way::Pool, Way::Device];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Zero => "zero",
            Way::Cache => "cache",
            Way::Pool => "pool",
            Way::Device => "device",
        }
    }
}

/// How pages of the pool are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// No pool: pages go to devices as they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd(Zstd),
    /// LZ4 at first; idle pages again with Zstandard, in the background.
    Lz4ThenZstd(Zstd),
}

/// How Zstandard compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zstd {
    /// Its level.
    pub level: i32,
    /// Whether with a dictionary trained on the program's own pages.
    pub dictionary: bool,
}

/// How the run was configured; the same for every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Of the pool.
    pub codec: Codec,
    /// Whether what goes to devices is encrypted, with [`Member::key`](crate::Member::key).
    pub encrypt: bool,
    /// Page from the first instant instead of when the budget is near (tests, benchmarks).
    pub eager: bool,
    /// Which of several devices is tried first.
    pub choice: DeviceChoice,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: Codec::Lz4,
            encrypt: true,
            eager: false,
            choice: DeviceChoice::default(),
        }
    }
}

/// By their numbers in the packed configuration.
const CHOICES: [DeviceChoice; 3] = [
    DeviceChoice::PerNode,
    DeviceChoice::Activation,
    DeviceChoice::EqualTurns,
];

impl Config {
    fn pack(self) -> u64 {
        let plain = Zstd {
            level: 0,
            dictionary: false,
        };
        let (codec, zstd) = match self.codec {
            Codec::None => (0, plain),
            Codec::Lz4 => (1, plain),
            Codec::Zstd(zstd) => (2, zstd),
            Codec::Lz4ThenZstd(zstd) => (3, zstd),
        };
        let choice = CHOICES.iter().position(|choice| *choice == self.choice);
        codec
            | (self.encrypt as u64) << 8
            | (self.eager as u64) << 9
            | (zstd.dictionary as u64) << 10
            | (choice.unwrap_or(0) as u64) << 16
            | (zstd.level as u32 as u64) << 32
    }

    fn unpack(word: u64) -> Self {
        let zstd = Zstd {
            level: (word >> 32) as i32,
            dictionary: word >> 10 & 1 == 1,
        };
        let codec = match word as u8 {
            0 => Codec::None,
            2 => Codec::Zstd(zstd),
            3 => Codec::Lz4ThenZstd(zstd),
            _ => Codec::Lz4,
        };
        Self {
            codec,
            encrypt: word >> 8 & 1 == 1,
            eager: word >> 9 & 1 == 1,
            choice: CHOICES
                .get((word >> 16 & 0xff) as usize)
                .copied()
                .unwrap_or_default(),
        }
    }
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// The part of the table that belongs to one process.
#[repr(C, align(4096))]
pub(crate) struct Slot {
    /// Its pid as the parent or it itself knows it, 0 if not known; above it, to which taking
    /// of the slot it belongs, because a parent may be late to write it.
    pid: AtomicU64,
    /// The number of the process that buries this one, which is dead; 0: nobody. Above it as above.
    pub burier: AtomicU64,
    /// Woken on requests, on a new limit or mode, on room for the hungry.
    pub futex: AtomicU32,
    /// Processes related by fork without exec have the same number.
    pub family: AtomicU64,
    /// Pages this process has charged.
    pub charged: AtomicI64,
    /// Pages of those that another process of the family has charged as well.
    pub credit: AtomicI64,
    /// Pages the supervisor counts for it as long as it does not page.
    pub measured: AtomicI64,
    /// Steps on the shared sums begun and done: equal when none is under way.
    pub begun: AtomicU64,
    pub done: AtomicU64,
    /// Monotonic time at which its coldest page was last known used; 0: it has none to give.
    pub coldest: AtomicU64,
    /// Pages that others ask it to give up.
    pub request: AtomicU64,
    /// Devices whose descriptors it holds, one bit a row. Set by the supervisor when it sends
    /// them, cleared by the process when it has closed them.
    pub attached: AtomicU32,
    /// Its own, beside the tree's.
    pub limits: LimitWords,
    /// Bytes that its pool holds.
    pub pool: AtomicU64,
    pub shares: [Share; MAX_DEVICES],
    pub counters: Line<Counters>,
    pub latency: [Histogram; 4],
}

/// In place of a pid: the child has been forked, and its parent does not know which it is.
const UNNAMED: u32 = u32::MAX;

/// What is known of the process that a slot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// Perhaps not forked yet.
    Unborn,
    /// Forked, or dead already.
    Unnamed,
    Pid(u32),
}

impl Slot {
    /// The slot begins a new life, of a process not known yet.
    pub fn forget_pid(&self, taken: u32) {
        self.pid.store((taken as u64) << 32, SeqCst);
    }

    /// Writes who the slot is for, unless it is another's by now, or more is known already.
    /// `Pid` of the parent is worth more than the child's own, which may be of another
    /// namespace: it `overrules`.
    pub fn name(&self, taken: u32, named: Named, overrules: bool) {
        let (pid, known) = match named {
            Named::Unborn => return,
            Named::Unnamed => (UNNAMED, 0),
            Named::Pid(pid) => (pid, if overrules { u32::MAX } else { 0 }),
        };
        let new = (taken as u64) << 32 | pid as u64;
        // Refused: nothing to do then.
        let _ = self.pid.fetch_update(SeqCst, SeqCst, |old| {
            let is = old as u32;
            let less = is <= known || is == UNNAMED;
            (old >> 32 == taken as u64 && less).then_some(new)
        });
    }

    /// Who the slot is for, as far as it was said since it was taken.
    pub fn named(&self, taken: u32) -> Named {
        let word = self.pid.load(SeqCst);
        match word as u32 {
            pid if pid == 0 || word >> 32 != taken as u64 => Named::Unborn,
            UNNAMED => Named::Unnamed,
            pid => Named::Pid(pid),
        }
    }
}

/// What the tree does with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Pages go there.
    On,
    /// The same; every process that holds it says what it would want in order to leave.
    Asked,
    /// What is there moves elsewhere; then the device goes.
    Leaving,
}

/// A device as every member sees it.
#[repr(C)]
pub(crate) struct DeviceRow {
    /// 0: the row is free. Else four times the device's serial number, plus its [`DeviceState`].
    stamp: AtomicU64,
    /// Device facts, as words.
    pub facts: [AtomicU64; 3],
    /// Bit 16: given; low 16 bits: priority.
    pub priority: AtomicU32,
    pub clusters: AtomicU32,
}

/// What a process has on a device, by its own word.
#[repr(C)]
pub(crate) struct Share {
    /// Slots in use, those of its forked relatives included that it reads.
    pub used: AtomicU32,
    /// Write errors that it met.
    pub errors: AtomicU32,
    /// What it says beside that. Bits 0..32: pages; 32..34: which [`Answer`] they belong to, if any;
    /// 34: it takes no room there any more, for errors; 35..: the change of the devices that it
    /// answers.
    said: AtomicU64,
}

/// What a process answers that is to leave a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Asked: so many pages would find no place in what is its own, its clusters on other devices
    /// and its memory. Nothing was moved.
    Wants(u32),
    /// So many pages have no place.
    NoRoom(u32),
    /// So many pages can be neither read nor written elsewhere.
    Stuck(u32),
}

impl Share {
    const OUT: u64 = 1 << 34;
    const CHANGE: u32 = 35;

    /// An answer comes with the number of the last change of the devices that the process has seen.
    pub fn tell(&self, used: u32, errors: u32, out: bool, answer: Option<(u64, Answer)>) {
        let (change, kind, pages) = match answer {
            None => (0, 0, 0),
            Some((change, Answer::Wants(pages))) => (change, 1, pages),
            Some((change, Answer::NoRoom(pages))) => (change, 2, pages),
            Some((change, Answer::Stuck(pages))) => (change, 3, pages),
        };
        self.used.store(used, Relaxed);
        self.errors.store(errors, Relaxed);
        let out = if out { Self::OUT } else { 0 };
        let said = change << Self::CHANGE | out | kind << 32 | u64::from(pages);
        self.said.store(said, SeqCst);
    }

    /// Whether the process takes no room there any more.
    pub fn is_out(&self) -> bool {
        self.said.load(SeqCst) & Self::OUT != 0
    }

    /// What the process answers to a change of the devices, or to a later one.
    pub fn answer_to(&self, change: u64) -> Option<Answer> {
        let said = self.said.load(SeqCst);
        // Both modulo what fits: no answer lies half of that behind.
        let ahead = (said >> Self::CHANGE << Self::CHANGE).wrapping_sub(change << Self::CHANGE);
        let pages = said as u32;
        match said >> 32 & 3 {
            _ if ahead >> 63 == 1 => None,
            1 => Some(Answer::Wants(pages)),
            2 => Some(Answer::NoRoom(pages)),
            3 => Some(Answer::Stuck(pages)),
            _ => None,
        }
    }
}

/// The shared table. Field by field: magic to validate; the sums on lines of their own because
/// all members write them; then what is scanned; then the slots.
#[repr(C, align(4096))]
pub(crate) struct Table {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU64,
    /// How often the devices have changed.
    pub changes: AtomicU64,
    config: AtomicU64,
    pub budget: AtomicI64,
    pub mode: AtomicU32,
    /// Of the whole tree.
    pub limits: LimitWords,
    pub next_family: AtomicU64,
    /// Pages that several measured processes share, and that are counted once.
    pub overlap: AtomicI64,
    /// Pages that seem to be in use, as their credit was taken on suspicion; negative: it is not
    /// known how many.
    pub suspected: AtomicI64,
    /// Pages that children might copy which the supervisor has not seen yet.
    pub forked: AtomicI64,
    /// 1: a fork waits for the tree to page.
    pub wish: AtomicU32,
    /// The number of a process that waits for a place for a child; 0: none has since the
    /// supervisor looked.
    pub crowded: AtomicU32,
    /// The PID namespace of who made the table, by its inode; 0: not known.
    pub namespace: AtomicU64,
    /// 1: processes of others have come to the tree, for good.
    pub mixed: AtomicU32,
    /// budget - outside + credit; may be negative.
    pub limit: Line<AtomicI64>,
    /// Σ charged of the slots, and what a killed process left half-done.
    pub charged: Line<AtomicI64>,
    /// The largest use so far.
    pub peak: Line<AtomicI64>,
    /// Slots that wait for room.
    pub hungry: Line<[AtomicU64; SLOT_WORDS]>,
    states: [AtomicU32; MAX_SLOTS],
    pub devices: [DeviceRow; MAX_DEVICES],
    pub slots: [Slot; MAX_SLOTS],
}

// SAFETY: `repr(C)`, and every field is an atomic or made of atomics: `Counters` is `repr(C)`
// with `repr(transparent)` wrappers of `AtomicU64`, `Histogram` is `repr(C)` of `AtomicU64`,
// `Line` adds padding that nobody reads. All of them take any bit pattern.
#[allow(unsafe_code)]
unsafe impl Shared for Table {}
// SAFETY: `repr(C)`, atomics only.
#[allow(unsafe_code)]
unsafe impl Shared for LeaseHeader {}

impl Table {
    /// Makes the table of a new tree, with every slot free.
    pub fn create(budget: u64, config: Config) -> Result<(&'static Self, OwnedFd), Errno> {
        let (area, fd) = Area::create("ebb-tree", size_of::<Self>())?;
        let table: &'static Self = area.one(0).ok_or(Errno::INVAL)?;
        let budget = i64::try_from(budget).map_err(|_| Errno::INVAL)?;
        table.budget.store(budget, SeqCst);
        table.limit.0.store(budget, SeqCst);
        table.config.store(config.pack(), SeqCst);
        table.mode.store(config.eager as u32, SeqCst);
        let namespace = proc::pid_namespace().unwrap_or(0);
        table.namespace.store(namespace, SeqCst);
        table.size.store(size_of::<Self>() as u64, SeqCst);
        table.version.store(VERSION, SeqCst);
        table.magic.store(MAGIC, SeqCst);
        Ok((table, fd))
    }

    /// Maps a table that another process made.
    ///
    /// # Errors
    /// EINVAL if it is not one of this version; those of mmap.
    pub fn map(fd: BorrowedFd<'_>) -> Result<&'static Self, Errno> {
        let area = Area::map(fd)?;
        let table: &'static Self = area.one(0).ok_or(Errno::INVAL)?;
        let ours = table.magic.load(SeqCst) == MAGIC
            && table.version.load(SeqCst) == VERSION
            && table.size.load(SeqCst) == size_of::<Self>() as u64;
        if ours { Ok(table) } else { Err(Errno::INVAL) }
    }

    pub fn slot(&self, n: SlotNumber) -> &Slot {
        &self.slots[n.index()]
    }

    pub fn state(&self, n: SlotNumber) -> StateWord {
        StateWord::unpack(self.states[n.index()].load(SeqCst))
    }

    /// Changes the state of a slot that the caller has a right to: nobody else does so at
    /// the same time.
    pub fn set_state(&self, n: SlotNumber, to: StateWord) {
        let taken = self.state(n).taken;
        self.states[n.index()].store(StateWord { taken, ..to }.pack(), SeqCst);
    }

    /// Takes the first free slot.
    pub fn take_slot(&self, to: StateWord) -> Option<SlotNumber> {
        let found = SlotNumber::all().find(|n| {
            let word = self.state(*n);
            let taken = (word.taken + 1) & TAKEN_MASK;
            word.state == SlotState::Free
                && self.states[n.index()]
                    .compare_exchange(
                        word.pack(),
                        StateWord { taken, ..to }.pack(),
                        SeqCst,
                        Relaxed,
                    )
                    .is_ok()
        })?;
        let slot = self.slot(found);
        slot.forget_pid(self.state(found).taken);
        slot.burier.store(0, SeqCst);
        slot.limits.set(Limits::default());
        slot.pool.store(0, Relaxed);
        Some(found)
    }

    /// Whether there is a place for a process more.
    pub fn has_place(&self) -> bool {
        SlotNumber::all().any(|n| self.state(n).state == SlotState::Free)
    }

    /// Slots that are not free.
    pub fn taken(&self) -> impl Iterator<Item = (SlotNumber, StateWord)> + '_ {
        SlotNumber::all()
            .map(|n| (n, self.state(n)))
            .filter(|(_, word)| word.state != SlotState::Free)
    }

    pub fn mode(&self) -> Mode {
        if self.mode.load(SeqCst) == 0 {
            Mode::Watching
        } else {
            Mode::Paging
        }
    }

    pub fn config(&self) -> Config {
        Config::unpack(self.config.load(SeqCst))
    }

    /// Says that the devices have changed, and wakes every member to look; the number of the change.
    pub fn devices_changed(&self) -> u64 {
        let change = self.changes.fetch_add(1, SeqCst) + 1;
        for (n, _) in self.taken() {
            self.wake(n);
        }
        change
    }
}

impl DeviceRow {
    /// The row's device by its serial number, and what becomes of it; none if it is free.
    pub fn device(&self) -> Option<(u64, DeviceState)> {
        let stamp = self.stamp.load(SeqCst);
        let state = match stamp & 3 {
            0 => DeviceState::On,
            1 => DeviceState::Asked,
            _ => DeviceState::Leaving,
        };
        (stamp != 0).then_some((stamp >> 2, state))
    }

    /// Fills a free row.
    pub fn fill(&self, serial: u64, facts: [u64; 3], priority: Option<i16>, clusters: u32) {
        for (word, fact) in self.facts.iter().zip(facts) {
            word.store(fact, SeqCst);
        }
        let priority = priority.map_or(0, |p| 1 << 16 | p as u16 as u32);
        self.priority.store(priority, SeqCst);
        self.clusters.store(clusters, SeqCst);
        self.set_state(serial, DeviceState::On);
    }

    pub fn set_state(&self, serial: u64, state: DeviceState) {
        self.stamp.store(serial << 2 | state as u64, SeqCst);
    }

    pub fn clear(&self) {
        self.stamp.store(0, SeqCst);
    }

    pub fn facts(&self) -> [u64; 3] {
        std::array::from_fn(|i| self.facts[i].load(SeqCst))
    }

    pub fn priority(&self) -> Option<i16> {
        let word = self.priority.load(SeqCst);
        (word >> 16 & 1 == 1).then_some(word as u16 as i16)
    }
}

/// Where the parts of a lease area lie.
struct LeaseLayout {
    owner: usize,
    rows: usize,
    len: usize,
}

impl LeaseLayout {
    fn new(clusters: usize) -> Self {
        let owner = size_of::<LeaseHeader>().next_multiple_of(64);
        let rows = (owner + clusters * 4).next_multiple_of(4096);
        Self {
            owner,
            rows,
            len: rows + MAX_SLOTS * row_words(clusters) * 8,
        }
    }
}

/// Whole clusters of a device of `slots` slots; what is left over at its end is not used.
pub(crate) fn clusters_of(slots: u64) -> u32 {
    u32::try_from(slots / CLUSTER_SLOTS as u64)
        .unwrap_or(u32::MAX)
        // A slot number has 32 bits.
        .min(u32::MAX / CLUSTER_SLOTS as u32)
}

fn leases_in(area: Area, clusters: u32) -> Result<Leases<'static>, Errno> {
    let layout = LeaseLayout::new(clusters as usize);
    let leases = || {
        Some(Leases {
            header: area.one(0)?,
            owner: area.many(layout.owner, clusters as usize)?,
            rows: area.many(layout.rows, MAX_SLOTS * row_words(clusters as usize))?,
        })
    };
    leases().ok_or(Errno::INVAL)
}

/// Makes the lease area of a device.
pub(crate) fn create_leases(clusters: u32) -> Result<(Leases<'static>, OwnedFd), Errno> {
    let (area, fd) = Area::create("ebb-leases", LeaseLayout::new(clusters as usize).len)?;
    let leases = leases_in(area, clusters)?;
    leases.init();
    Ok((leases, fd))
}

/// Maps the lease area that another process made.
pub(crate) fn map_leases(fd: BorrowedFd<'_>, clusters: u32) -> Result<Leases<'static>, Errno> {
    leases_in(Area::map(fd)?, clusters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn words_carry_everything() {
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
        let zstd = |level, dictionary| Zstd { level, dictionary };
        for codec in [
            Codec::None,
            Codec::Lz4,
            Codec::Zstd(zstd(-5, false)),
            Codec::Zstd(zstd(19, true)),
            Codec::Lz4ThenZstd(zstd(1, true)),
        ] {
            for (encrypt, eager, choice) in [
                (true, false, DeviceChoice::PerNode),
                (false, true, DeviceChoice::EqualTurns),
                (true, true, DeviceChoice::Activation),
            ] {
                let config = Config {
                    codec,
                    encrypt,
                    eager,
                    choice,
                };
                assert_eq!(Config::unpack(config.pack()), config);
            }
        }
        assert_eq!(StateWord::unpack(u32::MAX).parent, None);
    }

    #[test]
    fn a_table_of_another_version_is_refused() {
        let (table, fd) = Table::create(100, Config::default()).unwrap();
        assert!(Table::map(fd.as_fd()).is_ok());
        table.version.store(VERSION + 1, SeqCst);
        assert_eq!(Table::map(fd.as_fd()).err(), Some(Errno::INVAL));
        let (_, leases) = create_leases(10).unwrap();
        assert_eq!(Table::map(leases.as_fd()).err(), Some(Errno::INVAL));
        assert!(map_leases(leases.as_fd(), 10).is_ok());
        assert!(
            map_leases(leases.as_fd(), 1 << 20).is_err(),
            "larger than the file"
        );
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

        table.set_state(n, StateWord::FREE);
        assert_eq!(table.take_slot(StateWord::reserved(None, false)), Some(n));
        let later = table.state(n).taken;
        slot.name(taken, Named::Pid(7), true);
        assert_eq!(slot.named(later), Named::Unborn);
    }

    #[test]
    fn a_row_tells_of_its_device() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let row = &table.devices[1];
        assert_eq!(row.device(), None);
        row.fill(7, [1, 2, 3], Some(-2), 9);
        assert_eq!((row.facts(), row.priority()), ([1, 2, 3], Some(-2)));
        assert_eq!(row.device(), Some((7, DeviceState::On)));
        for state in [DeviceState::Asked, DeviceState::Leaving] {
            row.set_state(7, state);
            assert_eq!(row.device(), Some((7, state)));
        }
        row.clear();
        assert_eq!(row.device(), None);
        assert_eq!(table.devices[0].device(), None);
    }

    #[test]
    fn a_share_carries_everything() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let share = &table.slots[0].shares[0];
        for out in [false, true] {
            for answer in [Answer::Wants(4), Answer::NoRoom(5), Answer::Stuck(u32::MAX)] {
                for change in [1, 7, 1 << 29, u64::MAX] {
                    share.tell(1, 2, out, Some((change, answer)));
                    assert_eq!(share.is_out(), out);
                    // Not to what came later.
                    for (asked, said) in [
                        (change - 1, Some(answer)),
                        (change, Some(answer)),
                        (change.wrapping_add(1), None),
                    ] {
                        assert_eq!(share.answer_to(asked), said, "{change} {asked}");
                    }
                }
            }
            share.tell(1, 2, out, None);
            assert_eq!((share.is_out(), share.answer_to(0)), (out, None));
        }
    }
}
