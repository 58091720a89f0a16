//! The pages of a writeback batch: choosing the coldest of a group, and copying them out of the pool.

use super::Swap;
use super::background::{Background, Pick, Turn, VISITS};
use super::coders::Scratch;
use super::slot_format::seal;
use super::write_batch::BATCH;
use crate::codec::Codec;
use crate::entries::{CLUSTER_ENTRIES, EntryWord, Group, Handle, Location, Locked, Vacated};
use crate::env::IoError;
use crate::{EntryId, PAGE_SIZE, PageBytes};
use std::sync::Arc;

impl Swap {
    /// Decompresses picked pages that are in blocks. One that is gone, or is not what was stored, which a
    /// load will say, stays packed.
    pub(super) fn take_out_of_blocks(&self, background: &mut Background) {
        if !background.picks.iter().any(|pick| pick.packed) {
            return;
        }
        // One of its own: it may be a store that makes room, which has its processor's.
        let kept = background.scratch.take();
        let mut scratch = kept.unwrap_or_else(|| self.coders.make());
        scratch.forget();
        for i in 0..background.picks.len() {
            let Pick {
                entry,
                word,
                packed,
                ..
            } = background.picks[i];
            if !packed {
                continue;
            }
            let mut page = [0; PAGE_SIZE];
            if self
                .read_out(&mut scratch, entry, word, &mut page)
                .is_none()
            {
                continue;
            }
            let pick = &mut background.picks[i];
            pick.packed = false;
            pick.checksum = Some(self.env.checksums.of(Codec::Raw, &page));
            *background.page(i) = page;
        }
        background.scratch = Some(scratch);
    }

    /// The page of an entry, if its word is still this one and names the pool.
    fn read_out(
        &self,
        scratch: &mut Scratch,
        entry: EntryId,
        word: EntryWord,
        out: &mut PageBytes,
    ) -> Option<()> {
        if let Some(page) = scratch.page(entry, word) {
            *out = *page;
            return Some(());
        }
        let locked = self.space.lock_if_used(entry)?;
        let Location::Pool(handle) = word.location() else {
            return None;
        };
        if locked.word() != word {
            return None;
        }
        let (len, codec) = self.pool.read(handle, &mut scratch.data.0);
        drop(locked);
        self.decode(scratch, (codec, 0..len), (entry, word), out)
    }

    /// Finds a group's coldest pages, copies them, and marks them busy; how many.
    pub(super) fn pick(
        &self,
        background: &mut Background,
        group: &Arc<Group>,
        turn: &mut Turn,
    ) -> usize {
        let before = background.picks.len();
        for _ in 0..VISITS {
            let Some(mut locked) = self.space.next_in_clock(group) else {
                break;
            };
            let first = background.picks.len();
            let mut dropped = DroppedCopies::new();
            let stopped = self.pick_in_cluster(background, &mut locked, &mut dropped, turn);
            if stopped {
                locked.resume_in_clock();
            } else {
                locked.keep_in_clock();
            }
            let visit = locked.visit().map(|visit| (visit, first));
            background.visits.extend(visit);
            drop(locked);
            turn.dropped += dropped.free(self, group);
            if stopped || background.is_full() {
                break;
            }
        }
        background.picks.len() - before
    }

    /// Goes through the entries of a cluster, from the one asked for on, until the batch is full. Whether
    /// there are more.
    fn pick_in_cluster(
        &self,
        background: &mut Background,
        locked: &mut Locked<'_>,
        dropped: &mut DroppedCopies,
        turn: &mut Turn,
    ) -> bool {
        for at in locked.at()..CLUSTER_ENTRIES {
            locked.seek_at(at);
            let word = locked.word();
            let Location::Pool(handle) = word.location() else {
                continue;
            };
            if word.busy() {
                continue;
            }
            if word.referenced() {
                locked.set(word.with_referenced(false));
                turn.spared += 1;
            } else if word.cached() {
                dropped.give_up(self, locked, handle);
            } else {
                self.copy_out(background, locked, handle);
            }
            if background.is_full() || dropped.is_full() {
                locked.seek_at(at + 1);
                return at + 1 < CLUSTER_ENTRIES;
            }
        }
        false
    }

    /// Copies the page of the entry asked for into the batch, and marks it busy.
    fn copy_out(&self, background: &mut Background, locked: &mut Locked<'_>, handle: Handle) {
        let slot = background.page(background.picks.len());
        let (len, codec) = self.pool.read(handle, slot);
        if matches!(codec, Codec::Lz4 | Codec::Zstd) {
            seal(slot, codec, len);
        }
        let word = locked.word().with_busy(true);
        locked.set(word);
        background.picks.push(Pick {
            entry: locked.entry(),
            word,
            raw: matches!(codec, Codec::Raw | Codec::Block),
            packed: codec == Codec::Block,
            checksum: None,
            slot: None,
            result: Err(IoError::Device),
        });
    }

    /// Gives up copies of resident pages, due or not, of the first of these groups in which it finds some; how many.
    /// None if none of them has any.
    pub(super) fn give_up_any_copies<'a>(
        &self,
        groups: impl Iterator<Item = &'a Arc<Group>>,
    ) -> Option<usize> {
        let mut gave = None;
        for group in groups {
            // One that was not looked through may have some.
            gave = gave.max(self.give_up_copies(group));
            if gave > Some(0) {
                break;
            }
        }
        gave
    }

    /// Looks on along a group's pages for copies of resident ones, and gives up those of a cluster, if
    /// they are due or not; how many. None if there are none: it has been all around.
    fn give_up_copies(&self, group: &Arc<Group>) -> Option<usize> {
        let mut ends = 0;
        for _ in 0..VISITS {
            let Some(mut locked) = self.space.look_along_clock(group) else {
                ends += 1;
                if ends == 2 {
                    return None;
                }
                continue;
            };
            let mut dropped = DroppedCopies::new();
            for at in 0..CLUSTER_ENTRIES {
                locked.seek_at(at);
                let word = locked.word();
                if let Location::Pool(handle) = word.location()
                    && word.cached()
                    && !word.busy()
                    && !dropped.is_full()
                {
                    dropped.give_up(self, &mut locked, handle);
                }
            }
            drop(locked);
            let n = dropped.free(self, group);
            if n > 0 {
                return Some(n);
            }
        }
        Some(0)
    }
}

/// Copies of resident pages that were given up: their objects are freed once the lock of their entries
/// is let go.
struct DroppedCopies {
    objects: [Option<Handle>; BATCH],
    len: usize,
}

impl DroppedCopies {
    const fn new() -> Self {
        Self {
            objects: [None; BATCH],
            len: 0,
        }
    }

    const fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Gives up the copy of the entry asked for; its object is to be freed if no other page is in it.
    fn give_up(&mut self, swap: &Swap, locked: &mut Locked<'_>, handle: Handle) {
        let vacated = locked.replace(locked.word().dropped());
        swap.count_left(locked, vacated);
        match vacated {
            Vacated::Place(_) => self.objects[self.len] = Some(handle),
            Vacated::StillNamed => swap.pool.count_extra_refs(-1),
        }
        self.len += 1;
    }

    /// Frees the objects, with no lock held; how many copies were given up.
    fn free(self, swap: &Swap, group: &Group) -> usize {
        for handle in self.objects.into_iter().flatten() {
            swap.free_object(group, handle);
        }
        self.len
    }
}
