//! Recompression, in the background. Two walks through the entries do it, block by block of them:
//!
//! - pages that have been in the pool for long are compressed again with the denser codec, where the
//!   pool is configured so, those of neighbouring entries together ([`super::block`]). Loading such a page
//!   is slower; that is why the youngest quarter of a group's clusters stays as it is.
//! - the rest of blocks is *packed again*, as the pages that left go on taking room: in a cluster that
//!   has lost a fifth of its pages so, and in any when memory is short. If blocks are of no use, as
//!   pages come back alone, each page for itself, and sooner. Objects that a fork froze stay as they
//!   are.

use super::background::Background;
use super::block::GATHERED;
use super::coders::Scratch;
use super::{CodecKind, Swap};
use crate::BLOCK_PAGES;
use crate::codec::Codec;
use crate::entries::{CLUSTER_ENTRIES, Dense, EntryWord, Group, Handle, Location, Locked, Vacated};
use crate::pool::{MAX_OBJECT, Object};
use crate::{Cpu, EntryId, PAGE_SIZE};
use std::ops::Range;
use std::sync::Arc;

/// Pages compressed in one step: some hundred microseconds.
const PAGES: usize = 16;
/// Blocks of entries looked at in one step, whether or not there is anything to gain.
const BLOCKS: usize = 64;
/// Cluster numbers looked at in one step.
const LOOKS: u32 = 64;
/// One page that left a block for so many that are out is worth looking for what is left.
const WORTH_SHARE: usize = 16;

/// The pages that are compressed again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Cold pages, more densely.
    Cold,
    /// The rest of blocks that lost pages.
    Left,
}

/// The least that is worth it, as a share of the bytes before: for a slower load an eighth.
const COLD_GAIN: (usize, usize) = (7, 8);
/// For memory of pages that are gone, which more of them will be, anything.
const LEFT_GAIN: (usize, usize) = (31, 32);

/// An object of pages of a block of entries that are compressed again.
#[derive(Clone)]
struct Found {
    /// The entries that name it, as bits.
    mask: u8,
    /// Pages that left it.
    left: u16,
    codec: Codec,
    /// The place where its bytes are in the room.
    at: Range<usize>,
}

/// The work to do for a block of entries.
struct Task {
    what: What,
    objects: Vec<Found>,
    /// The words as they were left in the entries whose pages are in them: busy.
    busy: [Option<EntryWord>; BLOCK_PAGES],
    /// Pages that left the blocks that these entries name, whether or not they are among the objects.
    left: u16,
    /// Flag: objects that a fork froze stay as they are.
    frozen: bool,
}

impl Task {
    /// Bytes of the objects.
    fn bytes(&self) -> usize {
        self.objects.iter().map(|found| found.at.len()).sum()
    }

    /// The entries whose pages are in the objects.
    fn mask(&self) -> u8 {
        self.objects.iter().fold(0, |mask, found| mask | found.mask)
    }
}

/// The entries of a block that are in a mask.
fn each(mask: u8) -> impl Iterator<Item = usize> {
    (0..BLOCK_PAGES).filter(move |k| mask & 1 << k != 0)
}

/// An object that was made of pages found.
struct Made {
    /// The entries whose pages are in it.
    mask: u8,
    codec: Codec,
    /// The place where it is in the room.
    at: Range<usize>,
}

/// The work done for a block of entries.
#[derive(Default)]
struct Done {
    /// Pages that were compressed.
    tried: usize,
    /// Pages that left its blocks and whose room these take still.
    left: u16,
    /// Flag: a fork froze some.
    frozen: bool,
}

impl Swap {
    /// One step towards denser pages; whether there was anything to compress.
    pub(super) fn recompress_step(&self, cpu: Cpu, background: &mut Background) -> bool {
        if !matches!(self.config.codec, CodecKind::Lz4ThenZstd { .. }) {
            return false;
        }
        let walk = &mut background.recompress;
        let Some(cluster) = self.space.find_cold(walk.cluster, LOOKS) else {
            walk.enter(self.space.wrap(walk.cluster + LOOKS));
            return false;
        };
        walk.enter(cluster);
        // Pages that gain nothing stay as they are: it must not begin with them again.
        let first = EntryId(cluster * CLUSTER_ENTRIES as u32);
        let mut done = 0;
        while (walk.at as usize) < CLUSTER_ENTRIES {
            if done >= PAGES {
                return true;
            }
            let block = first.plus(walk.at).block();
            let each = if self.blocks.is_wanted() {
                BLOCK_PAGES
            } else {
                1
            };
            for k in (0..BLOCK_PAGES).step_by(each) {
                let which = k..k + each;
                let (what, together) = (What::Cold, each > 1);
                let step = self.recompress(cpu, block, which, what, together);
                done += step.tried;
                walk.frozen |= step.frozen;
            }
            walk.at += BLOCK_PAGES as u32;
        }
        let dense = match walk.frozen {
            true => Dense::ButFrozen,
            false => Dense::Yes,
        };
        walk.enter(cluster + 1);
        if let Some(mut locked) = self.space.lock_if_used(first) {
            locked.set_dense(dense);
        }
        true
    }

    /// One step of packing what is left of blocks, if there is enough to gain; whether there was anything to do.
    /// `pressed`: memory is short, so any block that can be made smaller will do.
    pub(super) fn repack_step(&self, cpu: Cpu, background: &mut Background, pressed: bool) -> bool {
        let left = self.space.left();
        if left == 0 || !pressed && left < self.space.used() / WORTH_SHARE {
            return false;
        }
        let walk = &mut background.repack;
        // Where blocks are of no use their pages are taken apart, which they will be in the end.
        let together = self.blocks.are_useful();
        let share = match (pressed, together) {
            (true, _) => u32::MAX,
            (false, true) => 4,
            (false, false) => 8,
        };
        let looks = if pressed { u32::MAX } else { LOOKS };
        let find = |from: u32| self.space.find_left(from, looks, share);
        let again = || if pressed { find(0) } else { None };
        let Some(cluster) = find(walk.cluster).or_else(again) else {
            walk.enter(self.space.wrap(walk.cluster.saturating_add(looks)));
            return false;
        };
        walk.enter(cluster);
        let first = EntryId(cluster * CLUSTER_ENTRIES as u32);
        let (mut tried, mut looked) = (0, 0);
        while (walk.at as usize) < CLUSTER_ENTRIES {
            if tried >= PAGES || looked >= BLOCKS {
                return true;
            }
            let block = first.plus(walk.at).block();
            let done = self.recompress(cpu, block, 0..BLOCK_PAGES, What::Left, together);
            looked += 1;
            tried += done.tried;
            walk.left += done.left;
            walk.at += BLOCK_PAGES as u32;
        }
        let unpackable = walk.left;
        walk.enter(cluster + 1);
        // It must not come back for ever to what gains nothing.
        let Some(mut locked) = self.space.lock_if_used(first) else {
            return true;
        };
        let before = locked.left();
        locked.set_unpackable(unpackable);
        tried > 0 || locked.left() != before
    }

    /// Compresses pages of `which` of a block of entries again, together, if there is something to gain.
    fn recompress(
        &self,
        cpu: Cpu,
        block: [EntryId; BLOCK_PAGES],
        which: Range<usize>,
        what: What,
        together: bool,
    ) -> Done {
        let mut scratch = self.coders.take(cpu);
        let Some(mut locked) = self.space.lock_if_used(block[0]) else {
            return Done::default();
        };
        let task = self.find(&mut locked, &mut scratch, block, which, what);
        if task.objects.is_empty() {
            return Done {
                tried: 0,
                left: task.left,
                frozen: task.frozen,
            };
        }
        for (&entry, busy) in block.iter().zip(task.busy) {
            if let Some(busy) = busy {
                locked.seek(entry);
                locked.set(busy);
            }
        }
        let group = locked.cluster().group().clone();
        drop(locked);
        let made = self
            .gather(&mut scratch, block, &task)
            .map_or(Vec::new(), |()| pack(&mut scratch, &task, together));
        let gained = self.rename_entries(cpu, &scratch, block, &task, &group, &made);
        Done {
            tried: task.mask().count_ones() as usize,
            left: task.left - gained,
            frozen: task.frozen,
        }
    }

    /// Copies out the objects of the pages of `which`, under the lock of their entries, if there may be
    /// something to gain: with all entries that name one, or none of them.
    fn find(
        &self,
        locked: &mut Locked<'_>,
        scratch: &mut Scratch,
        block: [EntryId; BLOCK_PAGES],
        which: Range<usize>,
        what: What,
    ) -> Task {
        let mut task = Task {
            what,
            objects: Vec::new(),
            busy: [None; BLOCK_PAGES],
            left: 0,
            frozen: false,
        };
        let mut words = [EntryWord::FREE; BLOCK_PAGES];
        for (&entry, word) in block.iter().zip(&mut words) {
            locked.seek(entry);
            *word = locked.word();
        }
        let stays = |word: EntryWord| {
            word.busy() || what == What::Cold && (word.cached() || word.referenced())
        };
        let (mut room, mut is_worth_it) = (0, false);
        for (k, &word) in words.iter().enumerate() {
            let Location::Pool(handle) = word.location() else {
                continue;
            };
            let named = (0..BLOCK_PAGES).filter(|&other| words[other].same_place(word));
            let mask = named.fold(0u8, |mask, k| mask | 1 << k);
            if mask.trailing_zeros() as usize != k {
                continue;
            }
            let left = self.pool.pages(handle) - mask.count_ones() as u16;
            task.left += left;
            if !each(mask).any(|k| which.contains(&k))
                || each(mask).any(|k| stays(words[k]))
                || what == What::Left && left == 0
            {
                continue;
            }
            // Objects that a fork froze give nothing back, and their replacements would take more.
            if self.pool.is_frozen(handle) {
                task.frozen = true;
                continue;
            }
            // Room for all that are gathered, before the pages themselves.
            let (len, codec) = self.pool.read(handle, &mut scratch.data.0[room..GATHERED]);
            if codec == Codec::Raw || room + len > GATHERED {
                continue;
            }
            is_worth_it |= left > 0 || codec == Codec::Lz4;
            task.objects.push(Found {
                mask,
                left,
                codec,
                at: room..room + len,
            });
            room += len;
            for k in each(mask) {
                task.busy[k] = Some(words[k].with_busy(true));
            }
        }
        if !is_worth_it {
            task.objects.clear();
        }
        task
    }

    /// Decompresses the pages found, side by side, in the order of their entries; none if one is not what
    /// was stored, which a load will say.
    fn gather(
        &self,
        scratch: &mut Scratch,
        block: [EntryId; BLOCK_PAGES],
        task: &Task,
    ) -> Option<()> {
        for (n, k) in each(task.mask()).enumerate() {
            let found = task.objects.iter().find(|found| found.mask & 1 << k != 0)?;
            let named = (block[k], task.busy[k]?);
            let mut page = [0; PAGE_SIZE];
            self.decode(scratch, (found.codec, found.at.clone()), named, &mut page)?;
            *scratch.gathered(n) = page;
        }
        Some(())
    }

    /// Lets unchanged entries name what was made of their pages, and frees objects that none names any
    /// more. Returns how many of the pages that had left their blocks take no room now.
    fn rename_entries(
        &self,
        cpu: Cpu,
        scratch: &Scratch,
        block: [EntryId; BLOCK_PAGES],
        task: &Task,
        group: &Arc<Group>,
        made: &[Made],
    ) -> u16 {
        let (new, placed) = self.place_made(cpu, scratch, block, group, made, task.what);
        let mut vacated = [None::<Vacated>; BLOCK_PAGES];
        let named = |mask: u8, vacated: &[Option<Vacated>]| {
            each(mask).filter(|&k| vacated[k].is_some()).count()
        };
        if let Some(mut locked) = self.space.lock_if_used(block[0]) {
            for (k, &entry) in block.iter().enumerate() {
                let Some(busy) = task.busy[k] else {
                    continue;
                };
                locked.seek(entry);
                let as_it_was = busy.with_busy(false);
                let to = new[k].map(|new| as_it_was.rewritten_to(new));
                let repointed = locked.repoint(busy, to.unwrap_or(as_it_was));
                vacated[k] = repointed.filter(|_| to.is_some());
                if let Some(vacated) = vacated[k] {
                    self.count_left(&mut locked, vacated);
                }
            }
            // Pages in an object that was made whose entries do not name it, as they changed meanwhile.
            for &(_, mask) in &placed {
                let named = named(mask, &vacated);
                if named > 0 {
                    locked.count_left(mask.count_ones() as i32 - named as i32);
                }
            }
        }
        for (handle, mask) in placed {
            match named(mask, &vacated) {
                0 => self.free_object(group, handle),
                1 => {}
                named => self.pool.count_extra_refs(named as i64 - 1),
            }
        }
        for (entry, vacated) in block.into_iter().zip(vacated) {
            if let Some(vacated) = vacated {
                self.free_vacated(cpu, group, entry, vacated);
            }
        }
        let gone = |found: &&Found| each(found.mask).all(|k| new[k].is_some());
        task.objects
            .iter()
            .filter(gone)
            .map(|found| found.left)
            .sum()
    }

    /// Puts what was made into the pool, all of it or nothing that is to be named. Returns the new
    /// words, by entries, and the objects with their masks.
    fn place_made(
        &self,
        cpu: Cpu,
        scratch: &Scratch,
        block: [EntryId; BLOCK_PAGES],
        group: &Group,
        made: &[Made],
        what: What,
    ) -> ([Option<EntryWord>; BLOCK_PAGES], Vec<(Handle, u8)>) {
        let mut new = [None; BLOCK_PAGES];
        let mut placed: Vec<(Handle, u8)> = Vec::with_capacity(BLOCK_PAGES);
        for made in made {
            let data = &scratch.data.0[made.at.clone()];
            let owner = match made.codec {
                Codec::Block => block[0],
                _ => block[made.mask.trailing_zeros() as usize],
            };
            let (codec, pages) = (made.codec, made.mask.count_ones() as u8);
            let object = Object {
                codec,
                data,
                owner,
                pages,
            };
            let handle = match what {
                What::Cold => self.pool.insert(cpu, object),
                // It makes room, where there may be none: what it replaces goes at once.
                What::Left => self.pool.insert_beyond(cpu, object),
            };
            let Ok(handle) = handle else {
                return ([None; BLOCK_PAGES], placed);
            };
            // Before it is named: who frees it uncharges.
            group.charge(data.len() as u64);
            placed.push((handle, made.mask));
            let word = EntryWord::pool(handle, self.env.checksums.of(codec, data));
            each(made.mask).for_each(|k| new[k] = Some(word));
        }
        (new, placed)
    }
}

/// Compresses the gathered pages to the beginning of the room: together, if that gains enough, else each
/// alone, instead of those objects where that does.
fn pack(scratch: &mut Scratch, task: &Task, together: bool) -> Vec<Made> {
    let (part, whole) = match task.what {
        What::Cold => COLD_GAIN,
        What::Left => LEFT_GAIN,
    };
    let is_enough = |bytes: usize, before: usize| bytes * whole <= before * part;
    let mask = task.mask();
    let packed = (together && mask.count_ones() > 1).then(|| scratch.pack_gathered(mask));
    if let Some(len) = packed.flatten()
        && is_enough(len, task.bytes())
    {
        return vec![Made {
            mask,
            codec: Codec::Block,
            at: 0..len,
        }];
    }
    let mut made = Vec::with_capacity(BLOCK_PAGES);
    let mut end = 0;
    for found in &task.objects {
        let (before, begin) = (made.len(), end);
        let all = each(found.mask).all(|k| {
            let n = (mask & ((1 << k) - 1)).count_ones() as usize;
            let Some(len) = scratch.pack_gathered_alone(n, end) else {
                return false;
            };
            made.push(Made {
                mask: 1 << k,
                codec: Codec::Zstd,
                at: end..end + len,
            });
            end += len;
            true
        });
        if !all || !is_enough(end - begin, found.at.len()) {
            made.truncate(before);
            end = begin;
        }
    }
    made
}

const _: () = assert!(MAX_OBJECT <= GATHERED);
