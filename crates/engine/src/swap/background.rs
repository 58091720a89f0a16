//! The state of background work between its steps, and its owner: one thread at a time.

use super::coders::Scratch;
use super::write_batch::BATCH;
use crate::entries::{EntryWord, SlotPlace, Visit};
use crate::env::IoError;
use crate::locks::none_held;
use crate::shrinker::Shrinker;
use crate::slots::ExtentList;
use crate::sync::{Condvar, Mutex, lock, notify_all, wait_at_most};
use crate::{EntryId, PAGE_SIZE, PageBytes};
use std::time::Duration;

/// Clusters looked through for one batch.
pub const VISITS: usize = 16;
/// The longest wait of a store for another thread's step. A transfer of a batch takes less on any device
/// that is not slower than writing the page at once would be.
const LONG: Duration = Duration::from_millis(4);

/// The slot for the state of background work between its steps: taken out by the thread that works, and
/// put back. Nothing is locked meanwhile.
pub struct BackgroundSlot {
    state: Mutex<BackgroundState>,
    changed: Condvar,
}

struct BackgroundState {
    background: Option<Box<Background>>,
    /// Steps done, and who waits for the next to be.
    steps: u64,
    waiting: u32,
}

impl BackgroundSlot {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(BackgroundState {
                background: Some(Box::new(Background::new())),
                steps: 0,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// After a fork, in the child: what a thread of the parent had taken stayed there.
    pub fn replace_if_taken(&self) {
        let mut state = lock(&self.state);
        state
            .background
            .get_or_insert_with(|| Box::new(Background::new()));
        state.waiting = 0;
    }

    pub(super) fn take(&self) -> Option<Box<Background>> {
        lock(&self.state).background.take()
    }

    pub(super) fn put_back(&self, background: Box<Background>) {
        let mut state = lock(&self.state);
        state.background = Some(background);
        self.tell(state);
    }

    /// The one who works has done a step, and goes on.
    pub(super) fn step_done(&self) {
        self.tell(lock(&self.state));
    }

    fn tell(&self, mut state: crate::sync::MutexGuard<'_, BackgroundState>) {
        state.steps += 1;
        if state.waiting > 0 {
            notify_all(&self.changed);
        }
    }

    /// Waits until the working thread has done its step. False if that takes long: a device hangs, or
    /// that thread, being idle work, has no processor. It waits for nobody who stores.
    pub(super) fn await_step(&self) -> bool {
        none_held();
        let mut state = lock(&self.state);
        let steps = state.steps;
        let mut soon = true;
        state.waiting += 1;
        while soon && state.background.is_none() && state.steps == steps {
            (state, soon) = wait_at_most(&self.changed, &self.state, state, LONG);
        }
        state.waiting -= 1;
        soon
    }
}

/// The state of background work between its steps.
pub struct Background {
    pub shrinker: Shrinker,
    /// Room for a batch, page-aligned from `offset`; made when first needed.
    pub staging: Vec<u8>,
    pub offset: usize,
    /// Flag: the staging was used since it was last looked at.
    used: bool,
    /// The most pages of a batch.
    batch: usize,
    pub picks: Vec<Pick>,
    /// The visits of clusters in which they were found, each with how many there were before.
    pub visits: Vec<(Visit, usize)>,
    pub extents: ExtentList,
    pub recompress: Walk,
    pub repack: Walk,
    /// Objects that had been put into the pool when there was nothing else to do.
    pub puts: u64,
    /// The coder for pages in blocks; made when there are such to write.
    pub scratch: Option<Box<Scratch>>,
}

#[derive(Clone, Copy)]
pub struct Pick {
    pub entry: EntryId,
    /// The word as it was left in the entry: busy.
    pub word: EntryWord,
    pub raw: bool,
    /// Flag: its page is in a block, and not in the staging yet.
    pub packed: bool,
    /// The checksum of the bytes written, where they are not those in the pool.
    pub checksum: Option<u64>,
    pub slot: Option<SlotPlace>,
    pub result: Result<(), IoError>,
}

impl Pick {
    /// Where its page was written to.
    pub(super) fn written(&self) -> Option<SlotPlace> {
        self.slot.filter(|_| self.result.is_ok())
    }
}

/// The outcome of a turn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Pages moved to devices.
    pub written: usize,
    /// Copies of resident pages given up.
    pub dropped: usize,
    /// Pages that got their second chance.
    pub spared: usize,
}

impl Turn {
    /// Pages that the pool holds no more.
    pub const fn moved(&self) -> usize {
        self.written + self.dropped
    }
}

impl Background {
    pub fn new() -> Self {
        Self {
            shrinker: Shrinker::default(),
            staging: Vec::new(),
            offset: 0,
            used: false,
            batch: BATCH,
            picks: Vec::new(),
            visits: Vec::new(),
            extents: ExtentList::default(),
            recompress: Walk::default(),
            repack: Walk::default(),
            puts: 0,
            scratch: None,
        }
    }

    /// Makes the room for a batch of so many pages; how many bytes it took.
    pub(super) fn prepare(&mut self, batch: usize) -> usize {
        self.used = true;
        self.batch = batch;
        if !self.staging.is_empty() {
            return 0;
        }
        self.staging = vec![0; (BATCH + 1) * PAGE_SIZE];
        self.offset = self.staging.as_ptr().align_offset(PAGE_SIZE);
        self.picks = Vec::with_capacity(BATCH);
        self.visits = Vec::with_capacity(VISITS);
        self.extents = ExtentList::new();
        self.staging.len()
    }

    /// Whether the batch has as many pages as it may have.
    pub(super) fn is_full(&self) -> bool {
        self.picks.len() >= self.batch
    }

    /// Frees the room for a batch, if there was none since the last call; how many bytes that are.
    pub(super) fn free_idle(&mut self) -> usize {
        if std::mem::take(&mut self.used) {
            return 0;
        }
        let bytes = std::mem::take(&mut self.staging).len();
        self.picks = Vec::new();
        self.visits = Vec::new();
        self.extents = ExtentList::default();
        bytes
    }

    pub(super) fn page(&mut self, i: usize) -> &mut PageBytes {
        let at = self.offset + i * PAGE_SIZE;
        (&mut self.staging[at..at + PAGE_SIZE])
            .try_into()
            .unwrap_or_else(|_| unreachable!())
    }
}

/// Where a walk through the entries goes on.
#[derive(Default)]
pub struct Walk {
    pub cluster: u32,
    /// The entry in it.
    pub at: u32,
    /// Pages that left its blocks, and that packing again did not get rid of.
    pub left: u16,
    /// Flag: there are objects that a fork froze.
    pub frozen: bool,
}

impl Walk {
    /// Goes to a cluster: from its beginning, or where it was there.
    pub(super) fn enter(&mut self, cluster: u32) {
        if cluster != self.cluster {
            *self = Self {
                cluster,
                ..Self::default()
            };
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Arc;

    /// Whether the step or all of the work ends first, and before or after the look.
    #[test]
    fn loom_who_waits_for_a_step_is_told() {
        loom::model(|| {
            let background_slot = Arc::new(BackgroundSlot::new());
            let taken = background_slot.take().expect("nobody else works");
            let other = background_slot.clone();
            let waiter = loom::thread::spawn(move || {
                other.await_step();
                other.take().is_some()
            });
            background_slot.step_done();
            background_slot.put_back(taken);
            waiter.join().expect("it was told");
        });
    }
}
