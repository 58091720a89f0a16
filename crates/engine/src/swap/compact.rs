//! Compaction: objects of the emptiest windows move into holes of their class, so that
//! windows run empty and their memory goes back.

use super::Swap;
use crate::pool::{OWNER_STRIDE, Victim};
use crate::vswap::{Handle, Location, Word};
use crate::{EntryId, MAX_ENTRIES};

impl Swap {
    /// Empties one window, if there is slack worth it; whether it did anything.
    /// `pressed`: memory is short, so any window that can be emptied will do.
    pub(super) fn compact_step(&self, pressed: bool) -> bool {
        let Some(victim) = self.pool.victim(pressed) else {
            return false;
        };
        let mut moved = 0;
        for &(object, owner) in victim.objects() {
            moved += usize::from(self.move_object(&victim, object, owner));
        }
        self.pool.spare(&victim);
        moved > 0
    }

    /// Moves one object; which of the entries that end in `owner` has it is found by asking.
    fn move_object(&self, victim: &Victim, object: u8, owner: u32) -> bool {
        let handle = Handle::new(victim.window, object);
        let candidates = (owner..=MAX_ENTRIES).step_by(OWNER_STRIDE as usize);
        for candidate in candidates.map(EntryId) {
            let Some(mut locked) = self.space.lock_if_used(candidate) else {
                continue;
            };
            let word = locked.word();
            if word.location() != Location::Pool(handle) || word.busy() {
                continue;
            }
            let Some(new) = self.pool.copy_object(handle, candidate) else {
                return false;
            };
            locked.set(word.moved_to(Word::pool(new, 0)));
            drop(locked);
            self.pool.remove(handle);
            return true;
        }
        false
    }
}
