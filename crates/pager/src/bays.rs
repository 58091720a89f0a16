//! The staging area: frames outside the program's ranges, in bays of `UNIT` pages.
//!
//! Reclaim *moves* pages of a unit to the same positions of an empty bay: from then on nobody
//! can write them. When they are stored, the frames stay: the next loads are decompressed into
//! them and moved into place. So in steady state pages go round without the kernel allocating,
//! zeroing or freeing one.
//!
//! A bay is on exactly one list, named by its state:
//!
//! ```text
//! Empty --begin--> Capturing --captured--> Staged (oldest first) --store--> Free --take--> Lent
//!   ^                  |                     |                               |              |
//!   +- nothing moved --+----- all remapped --+                               +-- give back -+
//!   +------------------------------------- placed, or gone ---------------------------------+
//! ```
//!
//! A bay that is being captured into belongs to one thread, which moves the pages without the lock.
//! Frames taken for a load are *lent* until their pages are in place, those given back until the
//! system has them: meanwhile another thread may take others of the same bay, but nobody captures
//! over them.
//!
//! Frames are free to be taken once their whole bay is; those *spent* before wait for its other
//! pages.
//!
//! Invariants: frames = Σ popcount(bay.present) = staged + spent + free; `staged ⊆ present`; present and
//! lent are disjoint; a bay is Empty or Capturing iff nothing is present or lent, Lent iff all that
//! is left is lent; Σ popcount(bay.lent) ≥ leaving.

use crate::map::{Frame, Mask, PageNumber, UNIT, UNIT_BYTES, UnitNumber};
use ebb_engine::{EntryId, PAGE_SIZE};
use std::collections::VecDeque;

/// A bay's position in the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BayIndex(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Empty,
    /// On no list: a thread moves pages into it.
    Capturing,
    Staged,
    Free,
    /// On no list: all its frames are lent.
    Lent,
}

struct Bay {
    state: State,
    /// Frames that have a page behind them.
    present: Mask,
    /// Frames out for a load.
    lent: Mask,
    /// Of those present, the ones that hold a captured page; none while Free.
    staged: Mask,
    unit: UnitNumber,
    /// A thread stores what is staged here.
    storing: bool,
    /// For captured pages, the entry that may still hold the same content.
    kept: [Option<EntryId>; UNIT],
}

/// All frames. Plain data under the pager's lock; the pages behind belong to whoever took them.
pub struct Bays {
    base: usize,
    /// There is room for so many.
    count: usize,
    /// Those used so far: the table takes memory as it is used.
    bays: Vec<Bay>,
    empty: Vec<BayIndex>,
    free: Vec<BayIndex>,
    staged: VecDeque<BayIndex>,
    free_frames: usize,
    staged_frames: usize,
    spent_frames: usize,
    leaving: usize,
}

/// A run of free frames that a load may fill.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Address of the first.
    pub address: usize,
    /// How many.
    pub frames: usize,
}

/// The longest run of ones: (start, length).
fn longest_run(mask: Mask) -> (usize, usize) {
    let (mut best, mut at) = ((0, 0), 0);
    while at < 64 && mask >> at != 0 {
        at += (mask >> at).trailing_zeros() as usize;
        let len = (!(mask >> at)).trailing_zeros() as usize;
        if len > best.1 {
            best = (at, len);
        }
        at += len;
    }
    best
}

/// The places of a unit that a mask names.
pub fn places(mask: Mask) -> impl Iterator<Item = usize> {
    (0..UNIT).filter(move |i| mask & 1 << i != 0)
}

/// Splits a mask into runs of ones, (start, length).
pub fn runs(mask: Mask) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= 64 || mask >> at == 0 {
            return None;
        }
        let start = at + (mask >> at).trailing_zeros() as usize;
        let len = (!(mask >> start)).trailing_zeros() as usize;
        at = start + len;
        Some((start, len))
    })
}

/// `len` ones from `start` on.
pub const fn ones(start: usize, len: usize) -> Mask {
    if len >= 64 {
        !0
    } else {
        ((1 << len) - 1) << start
    }
}

impl Bays {
    /// Lays `count` bays over the reserved memory at `base`.
    pub fn new(base: usize, count: usize) -> Self {
        Self {
            base,
            count,
            bays: Vec::with_capacity(count),
            empty: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
            staged: VecDeque::with_capacity(count),
            free_frames: 0,
            staged_frames: 0,
            spent_frames: 0,
            leaving: 0,
        }
    }

    /// Frames that hold nothing: free, about to be, or on their way back to the system.
    pub fn unused_frames(&self) -> usize {
        self.free_frames + self.spent_frames + self.leaving
    }

    /// Frames ready to be filled: those of bays that hold nothing any more.
    pub fn free_frames(&self) -> usize {
        self.free_frames
    }

    /// Frames that hold captured pages.
    pub fn staged_frames(&self) -> usize {
        self.staged_frames
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.bays.len() * (size_of::<Bay>() + 3 * size_of::<BayIndex>())
    }

    /// Address of a bay.
    pub fn address(&self, bay: BayIndex) -> usize {
        self.base + bay.0 as usize * UNIT_BYTES
    }

    /// Address of a frame.
    pub fn frame_address(&self, frame: Frame) -> usize {
        self.base + frame.0 as usize * PAGE_SIZE
    }

    /// The frame at a position of a bay.
    pub fn frame(bay: BayIndex, within: usize) -> Frame {
        Frame(bay.0 * UNIT as u32 + within as u32)
    }

    /// An empty bay to capture pages of `unit` into, if one is left. It is the caller's until
    /// `captured`.
    pub fn begin_capture(&mut self, unit: UnitNumber) -> Option<BayIndex> {
        let bay = self.empty.pop().or_else(|| self.another())?;
        let b = &mut self.bays[bay.0 as usize];
        (b.state, b.unit) = (State::Capturing, unit);
        Some(bay)
    }

    /// A bay not used yet, on no list.
    fn another(&mut self) -> Option<BayIndex> {
        if self.bays.len() == self.count {
            return None;
        }
        self.bays.push(Bay {
            state: State::Empty,
            present: 0,
            lent: 0,
            staged: 0,
            unit: UnitNumber(0),
            storing: false,
            kept: [None; UNIT],
        });
        Some(BayIndex(self.bays.len() as u32 - 1))
    }

    /// Ends a capture: pages `mask` of the unit are in the bay now.
    pub fn captured(&mut self, bay: BayIndex, mask: Mask, kept: [Option<EntryId>; UNIT]) {
        let b = &mut self.bays[bay.0 as usize];
        debug_assert!(b.state == State::Capturing && b.present | b.lent == 0);
        if mask == 0 {
            b.state = State::Empty;
            self.empty.push(bay);
            return;
        }
        *b = Bay {
            state: State::Staged,
            present: mask,
            lent: 0,
            staged: mask,
            unit: b.unit,
            storing: false,
            kept,
        };
        self.staged.push_back(bay);
        self.staged_frames += mask.count_ones() as usize;
    }

    /// The bay staged longest ago that nobody stores.
    pub fn oldest_staged(&self) -> Option<BayIndex> {
        let free = |bay: &&BayIndex| !self.bays[bay.0 as usize].storing;
        self.staged.iter().find(free).copied()
    }

    /// The same, to be stored by the caller, until `end_store`.
    pub fn begin_store(&mut self) -> Option<BayIndex> {
        let bay = self.oldest_staged()?;
        self.bays[bay.0 as usize].storing = true;
        Some(bay)
    }

    /// The caller stores the bay no longer.
    pub fn end_store(&mut self, bay: BayIndex) {
        self.bays[bay.0 as usize].storing = false;
    }

    /// The bay staged longest ago has to wait until all others had their turn.
    pub fn pass_over(&mut self, bay: BayIndex) {
        if self.staged.front() == Some(&bay) {
            self.staged.rotate_left(1);
        }
    }

    /// The unit whose pages a staged bay holds, and which.
    pub fn staged_of(&self, bay: BayIndex) -> (UnitNumber, Mask) {
        let b = &self.bays[bay.0 as usize];
        (b.unit, b.staged)
    }

    /// The entry that may still hold what a captured page holds.
    pub fn kept(&self, frame: Frame) -> Option<EntryId> {
        self.bays[frame.0 as usize / UNIT].kept[frame.0 as usize % UNIT]
    }

    /// The page in `frame` was mapped again: the frame is gone.
    pub fn remapped(&mut self, frame: Frame) {
        let bay = BayIndex(frame.0 / UNIT as u32);
        let bit = 1 << (frame.0 as usize % UNIT);
        let b = &mut self.bays[bay.0 as usize];
        debug_assert!(b.staged & bit != 0);
        b.staged &= !bit;
        b.present &= !bit;
        self.staged_frames -= 1;
        if b.staged == 0 {
            self.leave_staged(bay);
        }
    }

    /// The captured page in `frame` was stored or dropped: the frame is free once its whole bay is.
    pub fn stored(&mut self, frame: Frame) {
        let bay = BayIndex(frame.0 / UNIT as u32);
        let b = &mut self.bays[bay.0 as usize];
        debug_assert!(b.staged & 1 << (frame.0 as usize % UNIT) != 0);
        b.staged &= !(1 << (frame.0 as usize % UNIT));
        self.staged_frames -= 1;
        self.spent_frames += 1;
        if b.staged == 0 {
            self.leave_staged(bay);
        }
    }

    /// The entry kept for a captured page is gone.
    pub fn forget_kept(&mut self, frame: Frame) {
        self.bays[frame.0 as usize / UNIT].kept[frame.0 as usize % UNIT] = None;
    }

    fn leave_staged(&mut self, bay: BayIndex) {
        let at = self
            .staged
            .iter()
            .position(|b| *b == bay)
            .expect("a staged bay is on the staged list");
        self.staged.remove(at);
        let b = &mut self.bays[bay.0 as usize];
        let frames = b.present.count_ones() as usize;
        self.spent_frames -= frames;
        self.free_frames += frames;
        if frames == 0 {
            b.state = State::Empty;
            self.empty.push(bay);
        } else {
            b.state = State::Free;
            self.free.push(bay);
        }
    }

    /// Takes a run of free frames: `want` if there is one, else the longest of the bays looked at.
    /// Looks at few bays, so it is quick.
    pub fn take(&mut self, want: usize) -> Option<Taken> {
        const LOOK: usize = 8;
        let from = self.free.len().saturating_sub(LOOK);
        let mut best: Option<(usize, usize, usize)> = None; // place in the list, start, length
        for (i, bay) in self.free[from..].iter().enumerate().rev() {
            let (start, len) = longest_run(self.bays[bay.0 as usize].present);
            // The tightest run that is long enough, else the longest.
            let better = best.is_none_or(|(_, _, l)| {
                if l >= want {
                    len >= want && len < l
                } else {
                    len > l
                }
            });
            if better {
                best = Some((from + i, start, len));
            }
        }
        let (place, start, len) = best.filter(|(_, _, len)| *len > 0)?;
        let frames = len.min(want);
        let bay = self.free[place];
        let address = self.address(bay) + start * PAGE_SIZE;
        let b = &mut self.bays[bay.0 as usize];
        b.present &= !ones(start, frames);
        b.lent |= ones(start, frames);
        self.free_frames -= frames;
        if b.present == 0 {
            b.state = State::Lent;
            self.free.swap_remove(place);
        }
        Some(Taken { address, frames })
    }

    /// The pages of lent frames are in place, or dropped: the frames are gone.
    pub fn placed(&mut self, taken: Taken) {
        let index = (taken.address - self.base) / PAGE_SIZE;
        self.returned(
            BayIndex((index / UNIT) as u32),
            ones(index % UNIT, taken.frames),
        );
    }

    fn returned(&mut self, bay: BayIndex, mask: Mask) {
        let b = &mut self.bays[bay.0 as usize];
        debug_assert!(b.lent & mask == mask);
        b.lent &= !mask;
        if b.state == State::Lent && b.lent == 0 {
            b.state = State::Empty;
            self.empty.push(bay);
        }
    }

    /// Takes the frames of a free bay out, to be given back to the system: which bay and frames.
    /// They count as `leaving` until `gone`.
    pub fn give_back(&mut self) -> Option<(BayIndex, Mask)> {
        let bay = self.free.pop()?;
        let b = &mut self.bays[bay.0 as usize];
        let frames = std::mem::take(&mut b.present);
        b.lent |= frames;
        b.state = State::Lent;
        self.free_frames -= frames.count_ones() as usize;
        self.leaving += frames.count_ones() as usize;
        Some((bay, frames))
    }

    /// The system has the frames that `give_back` took out.
    pub fn gone(&mut self, bay: BayIndex, frames: Mask) {
        self.leaving -= frames.count_ones() as usize;
        self.returned(bay, frames);
    }

    /// Pages of a captured unit, for a caller that walks the staged bays.
    pub fn page_of(&self, frame: Frame) -> PageNumber {
        self.bays[frame.0 as usize / UNIT]
            .unit
            .first()
            .plus(frame.0 as usize % UNIT)
    }

    /// Every invariant of the head comment.
    pub fn check(&self) {
        let (mut free, mut spent, mut staged, mut lent) = (0, 0, 0, 0);
        for b in &self.bays {
            assert_eq!((b.staged & !b.present, b.lent & b.present), (0, 0));
            let bare = matches!(b.state, State::Empty | State::Capturing);
            assert_eq!(bare, b.present | b.lent == 0);
            assert!(!b.storing || b.state == State::Staged);
            assert_eq!(b.state == State::Lent, b.present == 0 && b.lent != 0);
            staged += b.staged.count_ones() as usize;
            let unused = (b.present & !b.staged).count_ones() as usize;
            match b.state {
                State::Staged => spent += unused,
                _ => free += unused,
            }
            lent += b.lent.count_ones() as usize;
        }
        assert!(lent >= self.leaving);
        assert_eq!(
            (free, spent, staged),
            (self.free_frames, self.spent_frames, self.staged_frames)
        );
        for (list, state) in [(&self.empty, State::Empty), (&self.free, State::Free)] {
            assert!(list.iter().all(|b| self.bays[b.0 as usize].state == state));
        }
        assert!(
            self.staged
                .iter()
                .all(|b| self.bays[b.0 as usize].state == State::Staged)
        );
        let unlisted = |b: &&Bay| matches!(b.state, State::Lent | State::Capturing);
        assert_eq!(
            self.empty.len()
                + self.free.len()
                + self.staged.len()
                + self.bays.iter().filter(unlisted).count(),
            self.bays.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_that_is_being_stored_is_nobody_elses() {
        let mut bays = Bays::new(0x10000, 2);
        for unit in [3, 4] {
            let bay = bays.begin_capture(UnitNumber(unit)).unwrap();
            bays.captured(bay, 1, [None; UNIT]);
        }
        let first = bays.begin_store().unwrap();
        let second = bays.begin_store().unwrap();
        assert!(first != second && bays.begin_store().is_none());
        bays.check();
        bays.end_store(first);
        assert_eq!(bays.begin_store(), Some(first));
        bays.end_store(first);
        bays.stored(Bays::frame(first, 0));
        bays.end_store(second);
        bays.check();
        assert_eq!(bays.oldest_staged(), Some(second));
    }

    #[test]
    fn a_bay_goes_round() {
        let mut bays = Bays::new(0x10000, 4);
        let bay = bays.begin_capture(UnitNumber(9)).unwrap();
        bays.check();
        bays.captured(bay, 0b1011_0110, [None; UNIT]);
        bays.check();
        assert_eq!(bays.staged_frames(), 5);
        bays.remapped(Bays::frame(bay, 1));
        for i in [2, 4, 5] {
            bays.stored(Bays::frame(bay, i));
            bays.check();
        }
        // None can be had while the bay holds a page, so none counts.
        assert_eq!((bays.free_frames(), bays.unused_frames()), (0, 3));
        assert!(bays.take(1).is_none() && bays.give_back().is_none());
        bays.stored(Bays::frame(bay, 7));
        bays.check();
        assert_eq!((bays.free_frames(), bays.staged_frames()), (4, 0));
        let t = bays.take(2).unwrap();
        assert_eq!(
            (t.frames, t.address),
            (2, bays.address(bay) + 4 * PAGE_SIZE)
        );
        bays.check();
        bays.take(1).unwrap();
        bays.check();
        let (left, frames) = bays.give_back().unwrap();
        bays.check();
        assert_eq!((left, frames.count_ones(), bays.leaving), (bay, 1, 1));
        bays.gone(left, frames);
        bays.check();
        assert_eq!(
            (bays.free_frames(), bays.empty.len()),
            (0, 0),
            "the bay waits for what is lent"
        );
        bays.placed(t);
        bays.check();
        assert_eq!(bays.empty.len(), 0);
    }

    #[test]
    fn runs_split_masks() {
        assert_eq!(
            runs(0b1011_0110).collect::<Vec<_>>(),
            [(1, 2), (4, 2), (7, 1)]
        );
        assert_eq!(runs(!0).collect::<Vec<_>>(), [(0, 64)]);
        assert_eq!(longest_run(0b0111_0011), (4, 3));
    }
}
