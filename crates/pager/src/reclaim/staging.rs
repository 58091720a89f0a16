//! The staging area: frames outside the program's ranges, in bays of `UNIT` pages.
//!
//! Reclaim *moves* pages here: from then on nobody can write them. Pages that leave one after the
//! other lie side by side, wherever they come from, so that they are stored together and dropped as
//! one run. A frame holds one page in its life: once that is stored it goes back to the system, which
//! keeps what somebody still refers to (`pinned`).
//!
//! A bay is in one state, and on the list of that name:
//!
//! ```text
//! Empty --begin--> Open --close--> Staged (oldest first) --store--> Unused --leave--> Taken
//!   ^               |                |                                                 |
//!   +- nothing left +--- nothing left +------------------------- released -----------------+
//! ```
//!
//! One bay at a time is open. A capture takes a *run* in it: frames in a row that are its own until the pages are
//! there, moved without the lock. The bay may close meanwhile, but is not stored before they are. One that is for a
//! single capture closes as it is begun.
//!
//! Frames are *unused* when what they held was stored or dropped, and wait for the others of their bay.
//!
//! Invariants: frames = Σ popcount(bay.present) = staged + unused; `clean ⊆ staged ⊆ present`, which lies
//! below `filled`; ready = Σ popcount(present) of Unused bays; a bay is Empty iff nothing is present and
//! no capture under way, unless it is open; Unused and Taken: nothing staged and no capture under way.

use crate::map::mask::ones;
use crate::map::page_map::{Frame, Mask, PageNumber, UNIT, UNIT_BYTES};
use ebb_engine::{EntryId, PAGE_SIZE};
use std::collections::VecDeque;

/// A bay's position in the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BayIndex(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BayState {
    Empty,
    Open,
    Staged,
    Unused,
    Taken,
}

struct Bay {
    state: BayState,
    /// Frames given to captures so far.
    filled: usize,
    /// Captures that move pages here now.
    captures: u32,
    /// Flag: a thread stores what is staged here.
    storing: bool,
    /// Frames that have a page behind them.
    present: Mask,
    /// The ones, of those, that hold a captured page.
    staged: Mask,
    /// The captured page that each frame holds, or held.
    pages: [PageNumber; UNIT],
    /// The ones, of those staged, whose page kept its entry; and the entries.
    clean: Mask,
    copies: [EntryId; UNIT],
}

impl Bay {
    const EMPTY: Self = Self {
        state: BayState::Empty,
        filled: 0,
        captures: 0,
        storing: false,
        present: 0,
        staged: 0,
        pages: [PageNumber(0); UNIT],
        clean: 0,
        copies: [EntryId(0); UNIT],
    };
}

/// All frames. Plain data under the pager's lock; the pages behind belong to whoever captured them.
pub struct Staging {
    base: usize,
    /// The capacity.
    count: usize,
    /// Entries used so far: the table takes memory as it is used.
    bays: Vec<Bay>,
    empty: Vec<BayIndex>,
    open: Option<BayIndex>,
    staged: VecDeque<BayIndex>,
    unused: Vec<BayIndex>,
    staged_frames: usize,
    unused_frames: usize,
    takeable_frames: usize,
}

/// Frames in a row that a capture moves pages to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRun {
    pub bay: BayIndex,
    /// The first one's place among the bay's frames.
    start: usize,
    frames: usize,
}

impl FrameRun {
    /// The `i`th of them.
    pub fn frame(self, i: usize) -> Frame {
        Staging::frame(self.bay, self.start + i)
    }
}

impl Staging {
    /// Of a process that does not page: no frames.
    pub const fn none() -> Self {
        Self {
            base: 0,
            count: 0,
            bays: Vec::new(),
            empty: Vec::new(),
            open: None,
            staged: VecDeque::new(),
            unused: Vec::new(),
            staged_frames: 0,
            unused_frames: 0,
            takeable_frames: 0,
        }
    }

    /// Whether there is no staging area.
    pub fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Lays `count` bays over the reserved memory at `base`.
    pub fn new(base: usize, count: usize) -> Self {
        Self {
            base,
            count,
            bays: Vec::with_capacity(count),
            empty: Vec::new(),
            open: None,
            staged: VecDeque::new(),
            unused: Vec::new(),
            staged_frames: 0,
            unused_frames: 0,
            takeable_frames: 0,
        }
    }

    /// Frames that hold nothing any more and that the system does not have yet.
    pub fn unused_frames(&self) -> usize {
        self.unused_frames
    }

    /// Those of them that `leave` takes.
    pub fn takeable_frames(&self) -> usize {
        self.takeable_frames
    }

    /// The others: they wait for the rest of their bay, or are on their way to the system.
    pub fn wasted_frames(&self) -> usize {
        self.unused_frames - self.takeable_frames
    }

    /// Bays with such pages that nobody stores.
    pub fn staged_bays(&self) -> usize {
        self.staged.len()
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

    fn bay(&mut self, bay: BayIndex) -> &mut Bay {
        &mut self.bays[bay.0 as usize]
    }

    /// Frames for so many pages, if there are any: in a bay with others, or in one `alone`. They are
    /// the caller's until `end_capture`.
    pub fn begin_capture(
        &mut self,
        pages: impl ExactSizeIterator<Item = PageNumber>,
        alone: bool,
    ) -> Option<FrameRun> {
        let frames = pages.len();
        // A capture that fills a bay leaves the open one for others.
        let alone = alone || frames == UNIT;
        let room = |bay: &BayIndex| UNIT - self.bays[bay.0 as usize].filled;
        let bay = match self.open.filter(|bay| !alone && room(bay) >= frames) {
            Some(bay) => bay,
            None => {
                let bay = self.empty.pop().or_else(|| self.another())?;
                *self.bay(bay) = Bay::EMPTY;
                if alone {
                    self.bay(bay).state = BayState::Staged;
                    self.staged.push_back(bay);
                } else {
                    self.close();
                    self.bay(bay).state = BayState::Open;
                    self.open = Some(bay);
                }
                bay
            }
        };
        let b = self.bay(bay);
        let start = b.filled;
        b.filled += frames;
        b.captures += 1;
        for (i, page) in (start..).zip(pages) {
            b.pages[i] = page;
        }
        if !alone && b.filled == UNIT {
            self.close();
        }
        Some(FrameRun { bay, start, frames })
    }

    /// A bay not used yet, on no list.
    fn another(&mut self) -> Option<BayIndex> {
        if self.bays.len() == self.count {
            return None;
        }
        self.bays.push(Bay::EMPTY);
        Some(BayIndex(self.bays.len() as u32 - 1))
    }

    /// Nothing more comes into the open bay: its turn to be stored comes.
    fn close(&mut self) {
        if let Some(bay) = self.open.take() {
            self.bay(bay).state = BayState::Staged;
            self.staged.push_back(bay);
            self.update_list(bay);
        }
    }

    /// Ends a capture: those of its pages that came, the first of the run as bit 0.
    pub fn end_capture(&mut self, run: FrameRun, came: Mask) {
        debug_assert!(came & !ones(0, run.frames) == 0);
        let b = self.bay(run.bay);
        let mask = came << run.start;
        debug_assert!(b.captures > 0 && b.present & mask == 0);
        b.captures -= 1;
        b.present |= mask;
        b.staged |= mask;
        self.staged_frames += came.count_ones() as usize;
        self.update_list(run.bay);
    }

    /// The bay staged longest ago that nobody stores, and to which nothing comes any more; the open
    /// one if there is no other.
    pub fn oldest_staged(&mut self) -> Option<BayIndex> {
        if !self.staged.iter().any(|bay| self.is_still(*bay)) {
            self.close();
        }
        self.staged.iter().find(|bay| self.is_still(**bay)).copied()
    }

    /// Whether nobody stores it or moves pages to it.
    fn is_still(&self, bay: BayIndex) -> bool {
        let b = &self.bays[bay.0 as usize];
        !b.storing && b.captures == 0
    }

    /// The same, to be stored by the caller, until `end_store`; rather one with pages that kept their entries, where `clean`
    /// ones come first.
    pub fn begin_store(&mut self, clean: bool) -> Option<BayIndex> {
        let is_clean =
            |bay: &&BayIndex| self.bays[bay.0 as usize].clean != 0 && self.is_still(**bay);
        let found = self.staged.iter().filter(|_| clean).find(is_clean).copied();
        let open = self
            .open
            .filter(|bay| clean && found.is_none() && is_clean(&bay));
        if open.is_some() {
            self.close();
        }
        let first = found.or(open);
        let bay = first.or_else(|| self.oldest_staged())?;
        self.bay(bay).storing = true;
        Some(bay)
    }

    /// The caller stores the bay no longer.
    pub fn end_store(&mut self, bay: BayIndex) {
        self.bay(bay).storing = false;
    }

    /// The bay staged longest ago has to wait until all others had their turn.
    pub fn rotate_past(&mut self, bay: BayIndex) {
        if self.staged.front() == Some(&bay) {
            self.staged.rotate_left(1);
        }
    }

    /// The frames of a bay that hold captured pages.
    pub fn staged_of(&self, bay: BayIndex) -> Mask {
        self.bays[bay.0 as usize].staged
    }

    /// The page in a staged frame kept its entry, which has the same content.
    pub fn keep_copy(&mut self, frame: Frame, entry: EntryId) {
        let b = self.bay(bay_of(frame));
        debug_assert!(b.staged & bit(frame) != 0);
        b.clean |= bit(frame);
        b.copies[frame.0 as usize % UNIT] = entry;
    }

    /// The entry that the page in a staged frame kept.
    pub fn copy_of(&self, frame: Frame) -> Option<EntryId> {
        let b = &self.bays[frame.0 as usize / UNIT];
        (b.clean & bit(frame) != 0).then(|| b.copies[frame.0 as usize % UNIT])
    }

    /// The same: it is the caller's from now on.
    pub fn take_copy(&mut self, frame: Frame) -> Option<EntryId> {
        let copy = self.copy_of(frame);
        self.bay(bay_of(frame)).clean &= !bit(frame);
        copy
    }

    /// The page in `frame` was mapped again: the frame is gone. The entry that the page kept is the caller's.
    pub fn remapped(&mut self, frame: Frame) -> Option<EntryId> {
        let copy = self.unstage(frame);
        self.bay(bay_of(frame)).present &= !bit(frame);
        self.update_list(bay_of(frame));
        copy
    }

    /// The captured page in `frame` was stored or dropped. The entry that it kept is the caller's.
    pub fn stored(&mut self, frame: Frame) -> Option<EntryId> {
        let copy = self.unstage(frame);
        self.unused_frames += 1;
        self.update_list(bay_of(frame));
        copy
    }

    fn unstage(&mut self, frame: Frame) -> Option<EntryId> {
        let copy = self.take_copy(frame);
        self.staged_frames -= 1;
        let b = self.bay(bay_of(frame));
        debug_assert!(b.staged & bit(frame) != 0);
        b.staged &= !bit(frame);
        copy
    }

    /// A closed bay that holds no captured page any more, and to which none comes, leaves its list.
    fn update_list(&mut self, bay: BayIndex) {
        let b = self.bay(bay);
        if b.state != BayState::Staged || b.staged != 0 || b.captures > 0 {
            return;
        }
        let frames = b.present.count_ones() as usize;
        b.state = match frames {
            0 => BayState::Empty,
            _ => BayState::Unused,
        };
        let at = self.staged.iter().position(|b| *b == bay);
        self.staged
            .remove(at.expect("a staged bay is on the staged list"));
        match frames {
            0 => self.empty.push(bay),
            _ => self.unused.push(bay),
        }
        self.takeable_frames += frames;
    }

    /// Takes out a bay whose frames are all unused, to be given back to the system: which bay and
    /// frames. They count until they are `released`.
    pub fn take(&mut self) -> Option<(BayIndex, Mask)> {
        let bay = self.unused.pop()?;
        let b = self.bay(bay);
        b.state = BayState::Taken;
        let frames = b.present;
        self.takeable_frames -= frames.count_ones() as usize;
        Some((bay, frames))
    }

    /// Unused frames of a bay that still holds pages, or is open: which bay and frames. They are to be
    /// given back, and `released`, before the lock is left.
    pub fn take_early(&mut self) -> Option<(BayIndex, Mask)> {
        if self.wasted_frames() == 0 {
            return None;
        }
        let unused = |bay: &BayIndex| {
            let b = &self.bays[bay.0 as usize];
            let frames = b.present & !b.staged;
            (frames != 0 && self.is_still(*bay)).then_some((*bay, frames))
        };
        self.open.iter().chain(&self.staged).find_map(unused)
    }

    /// The system has frames that were taken out to leave.
    pub fn released(&mut self, bay: BayIndex, frames: Mask) {
        self.unused_frames -= frames.count_ones() as usize;
        let b = self.bay(bay);
        debug_assert!(frames & !(b.present & !b.staged) == 0);
        b.present &= !frames;
        if b.state == BayState::Taken {
            debug_assert!(b.present == 0);
            b.state = BayState::Empty;
            self.empty.push(bay);
        }
    }

    /// The page that a frame holds.
    pub fn page_of(&self, frame: Frame) -> PageNumber {
        self.bays[frame.0 as usize / UNIT].pages[frame.0 as usize % UNIT]
    }

    /// Every invariant of the head comment.
    pub fn check(&self) {
        let count = |mask: Mask| mask.count_ones() as usize;
        let (mut staged, mut unused, mut ready) = (0, 0, 0);
        for b in &self.bays {
            assert_eq!((b.clean & !b.staged, b.staged & !b.present), (0, 0));
            assert_eq!(b.present & !ones(0, b.filled), 0);
            assert!(!b.storing || b.state == BayState::Staged);
            let bare = b.present == 0 && b.captures == 0;
            let over = b.staged == 0 && b.captures == 0;
            match b.state {
                BayState::Open => assert!(b.filled < UNIT),
                BayState::Empty => assert!(bare),
                BayState::Staged => assert!(!over),
                BayState::Unused | BayState::Taken => assert!(over && !bare),
            }
            staged += count(b.staged);
            unused += count(b.present & !b.staged);
            if b.state == BayState::Unused {
                ready += count(b.present);
            }
        }
        assert_eq!(
            (staged, unused, ready),
            (self.staged_frames, self.unused_frames, self.takeable_frames)
        );
        let mut listed = 0;
        let mut of = |list: &mut dyn Iterator<Item = &BayIndex>, state| {
            for bay in list {
                assert_eq!(self.bays[bay.0 as usize].state, state);
                listed += 1;
            }
        };
        of(&mut self.empty.iter(), BayState::Empty);
        of(&mut self.open.iter(), BayState::Open);
        of(&mut self.staged.iter(), BayState::Staged);
        of(&mut self.unused.iter(), BayState::Unused);
        let leaving = |b: &&Bay| b.state == BayState::Taken;
        listed += self.bays.iter().filter(leaving).count();
        assert_eq!(listed, self.bays.len());
    }
}

fn bay_of(frame: Frame) -> BayIndex {
    BayIndex(frame.0 / UNIT as u32)
}

fn bit(frame: Frame) -> Mask {
    1 << (frame.0 as usize % UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::mask::set_bits;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const BASE: usize = 0x10000;

    /// Captures pages from `first` on; those of `came` do come.
    fn capture(staging: &mut Staging, first: usize, frames: usize, came: Mask) -> FrameRun {
        let run = staging.begin_capture(named(first, frames), false).unwrap();
        staging.check();
        staging.end_capture(run, came);
        staging.check();
        run
    }

    fn named(first: usize, frames: usize) -> impl ExactSizeIterator<Item = PageNumber> {
        (first..first + frames).map(PageNumber)
    }

    #[test]
    fn a_bay_that_is_being_stored_is_nobody_elses() {
        let mut staging = Staging::new(BASE, 2);
        let first = capture(&mut staging, 0, UNIT, 1).bay;
        let second = capture(&mut staging, UNIT, 1, 1).bay;
        assert_eq!(staging.begin_store(false), Some(first));
        // The open one is left to fill while there is another.
        assert_eq!(staging.begin_store(false), Some(second));
        assert_eq!(staging.begin_store(false), None);
        staging.check();
        staging.end_store(first);
        assert_eq!(staging.begin_store(false), Some(first));
        staging.end_store(first);
        staging.stored(Staging::frame(first, 0));
        staging.end_store(second);
        staging.check();
        assert_eq!(staging.oldest_staged(), Some(second));
    }

    #[test]
    fn a_bay_goes_round() {
        let mut staging = Staging::new(BASE, 1);
        let bay = capture(&mut staging, 5, 8, 0b1011_0110).bay;
        assert_eq!(staging.staged_frames(), 5);
        assert_eq!(staging.page_of(Staging::frame(bay, 2)), PageNumber(7));
        assert_eq!(
            staging.oldest_staged(),
            Some(bay),
            "closed, as there is no other"
        );
        staging.remapped(Staging::frame(bay, 1));
        for i in [2, 4, 5] {
            staging.stored(Staging::frame(bay, i));
            staging.check();
        }
        assert_eq!((staging.takeable_frames(), staging.unused_frames()), (0, 3));
        assert!(staging.take().is_none() && staging.begin_capture(named(0, 1), false).is_none());
        staging.stored(Staging::frame(bay, 7));
        staging.check();
        assert_eq!((staging.takeable_frames(), staging.staged_frames()), (4, 0));
        assert_eq!(staging.take(), Some((bay, 0b1011_0100)));
        staging.check();
        assert_eq!((staging.takeable_frames(), staging.unused_frames()), (0, 4));
        assert!(staging.begin_capture(named(0, 1), false).is_none());
        staging.released(bay, 0b1011_0100);
        staging.check();
        assert_eq!(staging.unused_frames(), 0);
        assert_eq!(capture(&mut staging, 0, 3, 0).bay, bay);
    }

    #[test]
    fn a_capture_alone_shares_its_bay_with_nobody() {
        let mut staging = Staging::new(BASE, 3);
        let shared = capture(&mut staging, 0, 1, 1);
        let alone = staging.begin_capture(named(4, 2), true).unwrap();
        staging.check();
        let after = capture(&mut staging, 9, 1, 1);
        assert_eq!(
            staging.frame_address(alone.frame(0)),
            staging.address(alone.bay)
        );
        assert!(
            alone.bay != shared.bay && after.bay == shared.bay,
            "the open one stays so"
        );
        staging.end_capture(alone, 0b11);
        staging.check();
    }

    #[test]
    fn unused_frames_do_not_wait_for_pages_that_cannot_be_stored() {
        let mut staging = Staging::new(BASE, 2);
        let staged = capture(&mut staging, 0, UNIT, 0b1111).bay;
        let open = capture(&mut staging, UNIT, 3, 0b111).bay;
        for (bay, i) in [(staged, 1), (staged, 3), (open, 0)] {
            staging.stored(Staging::frame(bay, i));
        }
        assert_eq!((staging.take(), staging.takeable_frames()), (None, 0));
        // Not while a page is on its way there, or the bay is stored.
        let run = staging.begin_capture(named(40, 1), false).unwrap();
        assert_eq!(run.bay, open);
        assert_eq!(staging.take_early(), Some((staged, 0b1010)));
        staging.released(staged, 0b1010);
        staging.check();
        assert_eq!(staging.take_early(), None);
        staging.end_capture(run, 1);
        assert_eq!(staging.take_early(), Some((open, 0b1)));
        staging.released(open, 0b1);
        staging.check();
        assert_eq!((staging.unused_frames(), staging.staged_frames()), (0, 5));
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Begin { frames: usize, alone: bool },
        Captured { which: usize, came: Mask },
        BeginStore { clean: bool },
        Store { which: usize, keep: Mask },
        LeaveEarly,
        Remap { which: usize },
        Leave,
        Gone { which: usize },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (1..=UNIT, prop::bool::weighted(0.1))
                .prop_map(|(frames, alone)| Op::Begin { frames, alone }),
            (1..4usize, any::<bool>()).prop_map(|(frames, _)| Op::Begin {
                frames,
                alone: false
            }),
            (any::<usize>(), any::<Mask>()).prop_map(|(which, came)| Op::Captured { which, came }),
            any::<bool>().prop_map(|clean| Op::BeginStore { clean }),
            (any::<usize>(), prop_oneof![Just(0), any::<Mask>()])
                .prop_map(|(which, keep)| Op::Store { which, keep }),
            Just(Op::LeaveEarly),
            any::<usize>().prop_map(|which| Op::Remap { which }),
            Just(Op::Leave),
            any::<usize>().prop_map(|which| Op::Gone { which }),
        ]
    }

    /// Bays of the model.
    const COUNT: usize = 5;

    /// The staging area, and beside it a map from frames to the pages that wait there.
    struct Model {
        staging: Staging,
        waiting: BTreeMap<u32, PageNumber>,
        /// Frames that were given out and have not gone back.
        busy: BTreeSet<u32>,
        captures: Vec<(FrameRun, usize)>,
        leaving: Vec<(BayIndex, Mask)>,
        storing: Vec<BayIndex>,
        /// The next page to be captured.
        next: usize,
    }

    impl Model {
        fn new() -> Self {
            Self {
                staging: Staging::new(BASE, COUNT),
                waiting: BTreeMap::new(),
                busy: BTreeSet::new(),
                captures: Vec::new(),
                leaving: Vec::new(),
                storing: Vec::new(),
                next: 0,
            }
        }

        fn step(&mut self, op: Op) {
            match op {
                Op::Begin { frames, alone } => self.begin(frames, alone),
                Op::Captured { which, came } if !self.captures.is_empty() => {
                    let (run, first) = self.captures.swap_remove(which % self.captures.len());
                    let came = came & ones(0, run.frames);
                    self.staging.end_capture(run, came);
                    for i in 0..run.frames {
                        let frame = run.frame(i).0;
                        match came >> i & 1 {
                            1 => self.waits(Frame(frame), PageNumber(first + i)),
                            _ => drop(self.busy.remove(&frame)),
                        }
                    }
                }
                Op::BeginStore { clean } => {
                    let Some(bay) = self.staging.begin_store(clean) else {
                        return;
                    };
                    assert!(self.staging.staged_of(bay) != 0);
                    self.storing.push(bay);
                }
                Op::Store { which, keep } if !self.storing.is_empty() => self.store(which, keep),
                Op::Remap { which } if !self.waiting.is_empty() => self.remap(which),
                Op::Leave => self.leaving.extend(self.staging.take()),
                Op::Gone { which } if !self.leaving.is_empty() => {
                    let (bay, frames) = self.leaving.swap_remove(which % self.leaving.len());
                    self.released(bay, frames);
                }
                // Its place is used up until the bay is empty.
                Op::LeaveEarly => {
                    if let Some((bay, frames)) = self.staging.take_early() {
                        self.released(bay, frames);
                    }
                }
                Op::Captured { .. } | Op::Store { .. } | Op::Remap { .. } | Op::Gone { .. } => {}
            }
        }

        /// A page came into its frame. One in three kept its entry.
        fn waits(&mut self, frame: Frame, page: PageNumber) {
            self.waiting.insert(frame.0, page);
            if let Some(copy) = Self::copy(page) {
                self.staging.keep_copy(frame, copy);
            }
        }

        fn copy(page: PageNumber) -> Option<EntryId> {
            page.0.is_multiple_of(3).then(|| EntryId(page.0 as u32 + 1))
        }

        fn begin(&mut self, frames: usize, alone: bool) {
            let pages = named(self.next, frames);
            let Some(run) = self.staging.begin_capture(pages, alone) else {
                assert_eq!(self.staging.bays.len(), COUNT);
                assert!(self.staging.empty.is_empty());
                return;
            };
            for i in 0..frames {
                assert!(self.busy.insert(run.frame(i).0), "given out twice");
            }
            self.captures.push((run, self.next));
            self.next += frames;
        }

        fn store(&mut self, which: usize, keep: Mask) {
            let bay = self.storing.swap_remove(which % self.storing.len());
            let mask = self.staging.staged_of(bay);
            self.staging.end_store(bay);
            for i in set_bits(mask & !keep) {
                let frame = Staging::frame(bay, i);
                let page = self.staging.page_of(frame);
                assert_eq!(self.waiting.remove(&frame.0), Some(page));
                assert_eq!(self.staging.stored(frame), Self::copy(page));
                assert_eq!(self.staging.copy_of(frame), None);
            }
        }

        fn remap(&mut self, which: usize) {
            let at = which % self.waiting.len();
            let (&frame, &page) = self.waiting.iter().nth(at).unwrap();
            // Pages in transit are nobody else's.
            if self.storing.contains(&bay_of(Frame(frame))) {
                return;
            }
            assert_eq!(self.staging.page_of(Frame(frame)), page);
            assert_eq!(self.staging.remapped(Frame(frame)), Self::copy(page));
            self.waiting.remove(&frame);
            self.busy.remove(&frame);
        }

        fn released(&mut self, bay: BayIndex, frames: Mask) {
            for i in set_bits(frames) {
                let frame = Staging::frame(bay, i).0;
                assert!(self.busy.remove(&frame) && !self.waiting.contains_key(&frame));
            }
            self.staging.released(bay, frames);
        }
    }

    proptest! {
        #[test]
        fn every_captured_page_is_found_until_it_is_stored(ops in prop::collection::vec(op(), 1..200)) {
            let mut model = Model::new();
            for op in ops {
                model.step(op);
                model.staging.check();
                prop_assert_eq!(model.staging.staged_frames(), model.waiting.len());
            }
        }
    }
}
