//! Compaction. Objects of the emptiest windows move into holes of their class, so that windows run empty
//! and their memory goes back; or to the front of their own window, so that the pages behind go back.

use super::Swap;
use crate::BLOCK_PAGES;
use crate::entries::{EntryWord, Handle, Location};
use crate::pool::{MAX_OBJECT, OWNER_STRIDE, Worth};
use crate::{EntryId, MAX_ENTRIES};

impl Swap {
    /// Empties or squeezes one window, if the slack is worth it; whether that was of use.
    pub(super) fn compact_step(&self, worth: Worth) -> bool {
        self.empty_window(worth) || self.squeeze_window(worth)
    }

    fn empty_window(&self, worth: Worth) -> bool {
        let Some(victim) = self.pool.victim(worth) else {
            return false;
        };
        let mut moved = 0;
        let mut room = Box::new([0; MAX_OBJECT]);
        for &(object, owner) in victim.objects() {
            let old = Handle::new(victim.window, object);
            if self.rename(old, owner, |entry| {
                self.pool.copy_object(old, entry, &mut room)
            }) {
                self.pool.remove(old);
                moved += 1;
            }
        }
        self.pool.spare(&victim);
        moved > 0
    }

    fn squeeze_window(&self, worth: Worth) -> bool {
        let Some(victim) = self.pool.squeezable(worth) else {
            return false;
        };
        let mut low = 0;
        for &(object, owner) in victim.objects().iter().rev() {
            let Some(hole) = self.pool.hole_below(&victim, low, object) else {
                break;
            };
            low = hole;
            let old = Handle::new(victim.window, object);
            self.rename(old, owner, |_| self.pool.shift(&victim, object, hole));
        }
        let bytes = self.pool.trim(&victim);
        self.pool.spare(&victim);
        bytes > 0
    }

    /// Lets the entries that name an object, one or those of a block, name the object that `place` makes
    /// of it, under the lock of their cluster; whether they do. `place` is told the owner. Which of the
    /// entries that end in `owner` that is, is found by asking.
    fn rename(
        &self,
        old: Handle,
        owner: u32,
        mut place: impl FnMut(EntryId) -> Option<Handle>,
    ) -> bool {
        let candidates = (owner..=MAX_ENTRIES).step_by(OWNER_STRIDE as usize);
        for candidate in candidates.map(EntryId) {
            let Some(mut locked) = self.space.lock_if_used(candidate) else {
                continue;
            };
            let block = candidate.block();
            let (mut named, mut busy) = ([false; BLOCK_PAGES], false);
            for (&entry, named) in block.iter().zip(&mut named) {
                locked.seek(entry);
                let word = locked.word();
                *named = word.location() == Location::Pool(old);
                busy |= *named && word.busy();
            }
            if named == [false; BLOCK_PAGES] {
                continue;
            }
            // Another moves one of them.
            if busy {
                return false;
            }
            let Some(new) = place(candidate) else {
                return false;
            };
            for (&entry, _) in block.iter().zip(named).filter(|(_, named)| *named) {
                locked.seek(entry);
                locked.set(locked.word().moved_to(EntryWord::pool(new, 0)));
            }
            return true;
        }
        false
    }
}
