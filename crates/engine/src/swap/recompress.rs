//! Recompression, in the background. Two walks through the entries do it, block by block of them:
//!
//! - pages that have been in the pool for long are compressed again with the denser codec, where the
//!   pool is configured so, those of neighbouring entries together ([`super::block`]). Loading such a page
//!   is slower; that is why the youngest quarter of a group's clusters stays as it is.
//! - what is left of blocks is *packed again*, as the pages that left them go on taking room: in a cluster
//!   that has lost a fifth of its pages so, and in any when memory is short. If blocks are of no use, as
//!   pages come back alone, each page for itself, and sooner. What a fork froze stays as it is.

use super::block::{GATHERED, members};
use super::coders::Scratch;
use super::writeback::Background;
use super::{CodecKind, Swap, checksum};
use crate::BLOCK_PAGES;
use crate::codec::Codec;
use crate::pool::{MAX_COMPRESSED, MAX_OBJECT, Object, STEP};
use crate::vswap::{CLUSTER_ENTRIES, Group, Handle, Location, Locked, Vacated, Word};
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

/// Where a walk through the entries goes on.
#[derive(Default)]
pub struct Walk {
    cluster: u32,
    /// The entry in it.
    at: u32,
    /// Pages that left its blocks, as far as it has seen.
    left: u16,
}

impl Walk {
    /// Goes to a cluster: from its beginning, or where it was there.
    fn enter(&mut self, cluster: u32) {
        if cluster != self.cluster {
            *self = Self {
                cluster,
                ..Self::default()
            };
        }
    }
}

/// What is compressed again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Cold pages, more densely.
    Cold,
    /// What is left of blocks that lost pages.
    Left,
}

/// The least that is worth it, as a share of the bytes before: for a slower load an eighth.
const COLD_GAIN: (usize, usize) = (7, 8);
/// For memory of pages that are gone, which more of them will be, anything.
const LEFT_GAIN: (usize, usize) = (31, 32);

/// A page of a block of entries that is compressed again.
#[derive(Clone)]
struct Member {
    /// As it was left in the entry: busy.
    busy: Word,
    codec: Codec,
    /// Where the bytes of its object are in the room; those that share one have the same.
    at: Range<usize>,
}

/// Pages of a block of entries, all of their objects' pages among them.
#[derive(Default)]
struct Found {
    members: [Option<Member>; BLOCK_PAGES],
    /// Bytes of their objects.
    bytes: usize,
    /// Whether there is something to gain.
    is_worth_it: bool,
    /// Pages that left the blocks among the objects looked at, and those of them that are members now.
    left: u16,
    tried_left: u16,
}

impl Found {
    /// Which entries of the block they are of, as bits.
    fn mask(&self) -> u8 {
        let each = self.members.iter().enumerate();
        each.fold(0, |mask, (k, member)| {
            mask | u8::from(member.is_some()) << k
        })
    }
}

/// An object that was made of pages found.
struct Made {
    /// Whose pages are in it.
    mask: u8,
    codec: Codec,
    /// Where it is in the room.
    at: Range<usize>,
}

/// What was done for a block of entries.
#[derive(Default)]
struct Done {
    /// Pages that were compressed.
    tried: usize,
    /// Pages that left blocks which it did not try to pack again.
    left: u16,
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
                done += self.recompress(cpu, block, which, what, together).tried;
            }
            walk.at += BLOCK_PAGES as u32;
        }
        walk.enter(cluster + 1);
        if let Some(mut locked) = self.space.lock_if_used(first) {
            locked.set_dense(true);
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
        let left = walk.left;
        walk.enter(cluster + 1);
        // What gained nothing counts no more: it must not come back to that for ever.
        let Some(mut locked) = self.space.lock_if_used(first) else {
            return true;
        };
        let fewer = left < locked.left();
        locked.set_left(left);
        tried > 0 || fewer
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
        let found = self.find(&mut locked, &mut scratch, block, which, what);
        if !found.is_worth_it {
            return Done {
                tried: 0,
                left: found.left,
            };
        }
        for (&entry, member) in block.iter().zip(&found.members) {
            if let Some(member) = member {
                locked.seek(entry);
                locked.set(member.busy);
            }
        }
        let group = locked.cluster().group().clone();
        drop(locked);
        let (part, whole) = match what {
            What::Cold => COLD_GAIN,
            What::Left => LEFT_GAIN,
        };
        let made = self
            .gather(&mut scratch, block, &found)
            .and_then(|()| pack(&mut scratch, found.mask(), together))
            .filter(|made| {
                let bytes: usize = made.iter().map(|made| made.at.len()).sum();
                bytes * whole <= found.bytes * part
            });
        self.rename_members(cpu, &scratch, block, &found, &group, made, what);
        Done {
            tried: found.mask().count_ones() as usize,
            left: found.left - found.tried_left,
        }
    }

    /// Copies the objects of the pages of `which` that this is for out, under the lock of their
    /// entries, and marks those, and others that share them, as found: all that share an object, or none.
    fn find(
        &self,
        locked: &mut Locked<'_>,
        scratch: &mut Scratch,
        block: [EntryId; BLOCK_PAGES],
        which: Range<usize>,
        what: What,
    ) -> Found {
        let mut found = Found::default();
        let mut words = [Word::FREE; BLOCK_PAGES];
        for (&entry, word) in block.iter().zip(&mut words) {
            locked.seek(entry);
            *word = locked.word();
        }
        let sharers = |word: Word| words.iter().filter(move |other| other.same_place(word));
        let stays =
            |word: &Word| word.busy() || what == What::Cold && (word.cached() || word.referenced());
        for (k, &word) in words.iter().enumerate() {
            let Location::Pool(handle) = word.location() else {
                continue;
            };
            let is_asked = words[which.clone()].iter().any(|one| one.same_place(word));
            if !is_asked || sharers(word).any(stays) {
                continue;
            }
            let busy = word.with_busy(true);
            let shared = words[..k].iter().position(|other| other.same_place(word));
            if let Some(shared) = shared {
                let member = found.members[shared].clone();
                found.members[k] = member.map(|member| Member { busy, ..member });
                continue;
            }
            // What a fork froze gives nothing back, and what it is replaced by would be more.
            if what == What::Left && self.pool.is_frozen(handle) {
                continue;
            }
            // Room for all that are gathered, before the pages themselves.
            let at = found.bytes;
            let (len, codec) = self.pool.read(handle, &mut scratch.data.0[at..GATHERED]);
            if codec == Codec::Raw || at + len > GATHERED {
                continue;
            }
            let left = match codec {
                Codec::Block => {
                    let members = members(&scratch.data.0[at..]);
                    // Nothing is believed before its checksum agrees.
                    members.saturating_sub(sharers(word).count() as u32) as u16
                }
                _ => 0,
            };
            found.left += left;
            if what == What::Left && left == 0 {
                continue;
            }
            found.is_worth_it |= left > 0 || codec == Codec::Lz4;
            found.tried_left += left;
            found.bytes += len;
            found.members[k] = Some(Member {
                busy,
                codec,
                at: at..at + len,
            });
        }
        found
    }

    /// Decompresses the pages found, side by side; none if one is not what was stored, which a load will
    /// say.
    fn gather(
        &self,
        scratch: &mut Scratch,
        block: [EntryId; BLOCK_PAGES],
        found: &Found,
    ) -> Option<()> {
        let each = block.iter().zip(&found.members);
        let each = each.filter_map(|(&entry, member)| Some((entry, member.as_ref()?)));
        for (n, (entry, member)) in each.enumerate() {
            let named = (entry, member.busy);
            let mut page = [0; PAGE_SIZE];
            let object = (member.codec, member.at.clone());
            self.decode(scratch, object, named, &mut page)?;
            *scratch.gathered(n) = page;
        }
        Some(())
    }

    /// Lets the entries to which nothing happened meanwhile name what was made of their pages, and frees
    /// what none names any more.
    #[allow(clippy::too_many_arguments)]
    fn rename_members(
        &self,
        cpu: Cpu,
        scratch: &Scratch,
        block: [EntryId; BLOCK_PAGES],
        found: &Found,
        group: &Arc<Group>,
        made: Option<Vec<Made>>,
        what: What,
    ) {
        // The words that will name what was made, all of it or none; and who named it in the end.
        let mut new = [None; BLOCK_PAGES];
        let mut placed: Vec<(Handle, u8)> = Vec::with_capacity(BLOCK_PAGES);
        let mut whole = made.is_some();
        for made in made.iter().flatten() {
            let data = &scratch.data.0[made.at.clone()];
            let owner = match made.codec {
                Codec::Block => block[0],
                _ => block[made.mask.trailing_zeros() as usize],
            };
            let codec = made.codec;
            let object = Object { codec, data, owner };
            let handle = match what {
                What::Cold => self.pool.insert(cpu, object),
                // It makes room, where there may be none: what it replaces goes at once.
                What::Left => self.pool.insert_beyond(cpu, object),
            };
            let Ok(handle) = handle else {
                whole = false;
                break;
            };
            // Before it is named: who frees it uncharges.
            group.charge(data.len() as u64);
            placed.push((handle, made.mask));
            let word = Word::pool(handle, checksum(codec, data));
            for (k, new) in new.iter_mut().enumerate() {
                if made.mask & 1 << k != 0 {
                    *new = Some(word);
                }
            }
        }
        let mut vacated = [None::<Vacated>; BLOCK_PAGES];
        if let Some(mut locked) = self.space.lock_if_used(block[0]) {
            let left = locked.left();
            for (k, &entry) in block.iter().enumerate() {
                let Some(member) = &found.members[k] else {
                    continue;
                };
                locked.seek(entry);
                let as_it_was = member.busy.with_busy(false);
                let to = new[k]
                    .filter(|_| whole)
                    .map(|new| as_it_was.rewritten_to(new));
                let repointed = locked.repoint(member.busy, to.unwrap_or(as_it_was));
                vacated[k] = repointed.filter(|_| to.is_some());
            }
            // Who moves to the new objects did not leave what is given up with the old ones.
            let gone = if whole { found.tried_left } else { 0 };
            locked.set_left(left.saturating_sub(gone));
        }
        for (handle, mask) in placed {
            let named = (0..BLOCK_PAGES).filter(|k| mask & 1 << k != 0 && vacated[*k].is_some());
            match named.count() {
                0 => self.free_object(group, handle),
                1 => {}
                named => self.pool.count_beside(named as i64 - 1),
            }
        }
        for (entry, vacated) in block.into_iter().zip(vacated) {
            if let Some(vacated) = vacated {
                self.free_vacated(cpu, group, entry, vacated);
            }
        }
    }
}

/// Compresses the gathered pages to the beginning of the room, together or each alone.
fn pack(scratch: &mut Scratch, mask: u8, together: bool) -> Option<Vec<Made>> {
    if together && mask.count_ones() > 1 {
        let len = scratch.pack_gathered(mask)?;
        return Some(vec![Made {
            mask,
            codec: Codec::Block,
            at: 0..len,
        }]);
    }
    let (room, gathered) = scratch.data.0.split_at_mut(GATHERED);
    let (pages, _) = gathered.as_chunks();
    let mut end = 0;
    let members = (0..BLOCK_PAGES).filter(|k| mask & 1 << k != 0);
    let alone = members.zip(pages).map(|(k, page)| {
        let at = end;
        let len = scratch.coder.compress(Codec::Zstd, page, &mut room[at..])?;
        let padded = len.next_multiple_of(STEP);
        end = at + padded;
        room.get_mut(at + len..end)?.fill(0);
        (padded <= MAX_COMPRESSED).then_some(Made {
            mask: 1 << k,
            codec: Codec::Zstd,
            at: at..end,
        })
    });
    alone.collect()
}

const _: () = assert!(MAX_OBJECT <= GATHERED);
