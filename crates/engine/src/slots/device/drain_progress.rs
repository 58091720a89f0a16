//! How far a drain of a device has come.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// How far a drain has come. A drain goes round the device, so that each step costs what it moves. Pages
/// that could not be moved, or came later, are met in the next round.
#[derive(Default)]
pub(in crate::slots) struct DrainProgress {
    /// Flag: it was seen that all has a place, and nothing was allocated since.
    pub begun: AtomicBool,
    /// The slot at which the next step begins; 0: a round does.
    pub next: AtomicU32,
    /// Flag: an earlier step of this round moved something, or put it off.
    moved: AtomicBool,
    /// Flag: an earlier step of this round failed.
    failed: AtomicBool,
}

/// The result of a whole round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::slots) enum Round {
    /// Some pages were moved or put off, or none was there.
    Moved,
    /// Pages were there, and none could be moved.
    Failed,
}

impl DrainProgress {
    /// After a step: what the round has come to, if it has ended. `moved` says whether the step moved pages or put
    /// some off.
    pub fn ended(&self, moved: bool, failed: bool) -> Option<Round> {
        let over = self.next.load(Relaxed) == 0;
        let moved = self.moved.load(Relaxed) || moved;
        let failed = self.failed.load(Relaxed) || failed;
        self.moved.store(moved && !over, Relaxed);
        self.failed.store(failed && !over, Relaxed);
        over.then_some(match failed && !moved {
            true => Round::Failed,
            false => Round::Moved,
        })
    }
}
