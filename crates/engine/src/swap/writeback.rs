//! Writeback: the pool's coldest pages of one group move to devices, a batch at a time. What a small
//! group leaves of a batch the next ones fill up.
//!
//! The bytes in the pool go to the slot as they are, but for those of blocks, whose pages are taken out of
//! them: a slot has one page. The steps for each page are those of
//! the protocol in [`crate::entries`]: busy and copied under the lock, written without,
//! repointed if the word is still the busy one. Slots are taken in the order of the batch,
//! so neighbours in the batch are mostly neighbours on the device, and go out as one write.
//!
//! A cached page that comes up is not written: it is resident, so its copy is given up. Pages that no
//! device takes stay the next to go; then, and where a group may not write, copies that are not yet
//! due are looked for, and nothing else changes its place.

use super::Swap;
use super::coders::Scratch;
use super::device_io::{place, seal};
use super::recompress::Walk;
use crate::codec::Codec;
use crate::entries::{
    CLUSTER_ENTRIES, EntryWord, Group, Handle, Location, Locked, SlotPlace, Vacated, Visit,
};
use crate::env::{IoError, WriteOp};
use crate::pool::Worth;
use crate::shrinker::{Candidate, Need, Shrinker};
use crate::slots::ExtentList;
use crate::{Cpu, DeviceId, EntryId, PAGE_SIZE, PageBytes};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a batch: 256 KiB in flight.
pub const BATCH: usize = 64;
/// Clusters looked through for one batch.
const VISITS: usize = 16;
/// Steps of another thread that a refused store waits for: not each of them makes room.
const WAITS: usize = 8;

/// What background work keeps between its steps.
pub struct Background {
    pub shrinker: Shrinker,
    /// Room for a batch, page-aligned from `offset`; made when first needed.
    staging: Vec<u8>,
    offset: usize,
    picks: Vec<Pick>,
    /// The visits of clusters in which they were found, each with how many there were before.
    visits: Vec<(Visit, usize)>,
    extents: ExtentList,
    pub recompress: Walk,
    pub repack: Walk,
    /// Objects that had been put into the pool when there was nothing else to do.
    pub puts: u64,
    /// For pages in blocks; made when there are such to write.
    scratch: Option<Box<Scratch>>,
}

#[derive(Clone, Copy)]
struct Pick {
    entry: EntryId,
    /// As it was left in the entry: busy.
    word: EntryWord,
    raw: bool,
    /// Its page is in a block, and not in the staging yet.
    packed: bool,
    /// Of what is written, where that is not what was in the pool.
    checksum: Option<u64>,
    slot: Option<SlotPlace>,
    result: Result<(), IoError>,
}

impl Pick {
    /// Where its page was written to.
    fn written(&self) -> Option<SlotPlace> {
        self.slot.filter(|_| self.result.is_ok())
    }
}

/// What one turn did.
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
            picks: Vec::new(),
            visits: Vec::new(),
            extents: ExtentList::default(),
            recompress: Walk::default(),
            repack: Walk::default(),
            puts: 0,
            scratch: None,
        }
    }

    /// Makes the room for a batch; how many bytes it took.
    fn prepare(&mut self) -> usize {
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

    fn page(&mut self, i: usize) -> &mut PageBytes {
        let at = self.offset + i * PAGE_SIZE;
        (&mut self.staging[at..at + PAGE_SIZE])
            .try_into()
            .unwrap_or_else(|_| unreachable!())
    }
}

impl Swap {
    /// One turn of the shrinker, if it is wanted and nobody would mind.
    pub(super) fn shrink_step(&self, cpu: Cpu, background: &mut Background) -> bool {
        let max = self.pool.max();
        let mut of_all = background
            .shrinker
            .need(self.pool.bytes(), max, self.accept_percent());
        if self.patient.load(Relaxed) {
            of_all = of_all.min(Need::Background);
        }
        let above_limit = self.group_above_limit();
        let mut need = of_all;
        if above_limit.is_some() {
            need = need.max(Need::Background);
        } else if need == Need::None {
            return false;
        } else if self.pool.give_back(0) > 0
            || self.compact_step(Worth::Much)
            || self.repack_step(cpu, background, false)
        {
            // What holds no page goes before what does: the shrinker goes by the memory that the pool
            // holds, and would write out all of its pages while holes keep that up. A group's limit
            // is of its pages alone.
            return true;
        }
        let now = self.env.clock.now_ns();
        let refused = self.last_refused_ns.load(Relaxed);
        let own = self.last_load_ns.load(Relaxed);
        // What this process loaded itself may be among them.
        let others = self.others_load_ns.load(Relaxed);
        let shrinker = &background.shrinker;
        if !shrinker.may_write(need, now, own.max(others), refused) {
            let for_others = shrinker.may_write(need, now, own, refused);
            self.env.counters.stood_back.add(u64::from(for_others));
            return false;
        }
        // What all of them need goes before one's limit, and is not held up by what cannot leave.
        let above_limit = above_limit.filter(|_| need < Need::Urgent);
        let mut turn = above_limit
            .map(|group| self.write_back(cpu, background, &group))
            .unwrap_or_default();
        // What one may not have is no reason to write what the others have.
        if turn == Turn::default() && of_all > Need::None {
            let Some(of_others) = self.turn(cpu, background) else {
                return false;
            };
            turn = of_others;
        }
        if turn == Turn::default() {
            background.shrinker.failed(now);
            return false;
        }
        if turn.written > 0 {
            background
                .shrinker
                .succeeded(self.env.clock.now_ns().saturating_sub(now));
        }
        true
    }

    /// The pool refused a page, or `short` is at its limit: a batch of the pool's or the group's
    /// coldest moves to devices, so that no young page goes there while older ones sit in the pool.
    /// Whether there may be room now. While another thread does that, this one waits for it, step by
    /// step and [`WAITS`] of them at most: writing a young page out instead would take no less. But
    /// not where the last batch moved nothing, as when devices are full, nor for a step that takes
    /// long: then the page is refused at once.
    pub(super) fn make_room(&self, cpu: Cpu, short: Option<&Arc<Group>>) -> bool {
        self.note_refused();
        let has_room = || match short {
            None => self.pool.has_room(),
            Some(group) => group.pool_bytes() + PAGE_SIZE as u64 <= group.pool_max(),
        };
        for _ in 0..WAITS {
            let made = self.in_background(|background| {
                loop {
                    let turn = match short {
                        None => {
                            // Emptied windows of another class or processor need no write.
                            while self.pool.give_back(0) > 0 {}
                            if has_room() || self.devices.is_none() {
                                return has_room();
                            }
                            self.turn(cpu, background)
                        }
                        Some(group) => Some(self.write_back(cpu, background, group)),
                    };
                    match turn {
                        // Second chances are taken away once; then it is the turn of those pages.
                        Some(turn) if turn.moved() == 0 && turn.spared > 0 => {}
                        turn => return turn.is_some_and(|turn| turn.moved() > 0),
                    }
                }
            });
            if let Some(made) = made {
                return made;
            }
            if self.in_vain.load(Relaxed) {
                return false;
            }
            let soon = self.await_background();
            if has_room() {
                return true;
            }
            if !soon {
                return false;
            }
        }
        false
    }

    /// A batch of the group that goes first, else of the next in turn and of as many more as fill it;
    /// none if no group has pages in the pool.
    pub(super) fn turn(&self, cpu: Cpu, background: &mut Background) -> Option<Turn> {
        let groups = self.space.groups();
        // A group that may not write still gives up copies of resident pages, where it is
        // the only one, or over its limit.
        let has_any = |g: &&Arc<Group>| g.pool_bytes() > 0;
        let able = || groups.iter().filter(has_any).filter(|g| self.can_write(g));
        let candidate = |group| self.candidate(group);
        let first = self.first_group.load(Relaxed);
        let mut turn = self.begin_batch(background);
        let first = able().find(|g| u32::from(g.id.0) == first);
        if let Some(first) = first {
            self.pick(background, first, &mut turn);
        }
        // What it has may be busy, or charged and on its way into the pool.
        if background.picks.is_empty() && turn == Turn::default() {
            let shrinker = &mut background.shrinker;
            let group = shrinker
                .next_group(able().map(candidate))
                .or_else(|| shrinker.next_group(groups.iter().filter(has_any).map(candidate)))?;
            let mut gave = self.pick(background, group, &mut turn);
            while gave > 0 && background.picks.len() < BATCH {
                let Some(next) = background.shrinker.next_group(able().map(candidate)) else {
                    break;
                };
                gave = self.pick(background, next, &mut turn);
            }
        }
        self.end_batch(cpu, background, groups.iter().filter(has_any), &mut turn);
        Some(turn)
    }

    /// A group that holds more than its limit, and may write.
    fn group_above_limit(&self) -> Option<Arc<Group>> {
        if !self.above_limit.swap(false, Relaxed) {
            return None;
        }
        let mut groups = self.space.groups();
        groups.retain(|group| group.is_above_limit());
        if !groups.is_empty() {
            self.above_limit.store(true, Relaxed);
        }
        groups.into_iter().find(|group| self.can_write(group))
    }

    fn candidate<'a>(&self, group: &'a Arc<Group>) -> Candidate<&'a Arc<Group>> {
        Candidate {
            number: group.number,
            age: self.space.age(group),
            group,
        }
    }

    pub(super) fn can_write(&self, group: &Group) -> bool {
        group.writeback() && self.has_devices()
    }

    fn begin_batch(&self, background: &mut Background) -> Turn {
        let made = background.prepare();
        self.staging_bytes.fetch_add(made, Relaxed);
        background.picks.clear();
        background.visits.clear();
        Turn::default()
    }

    /// A batch of one group.
    fn write_back(&self, cpu: Cpu, background: &mut Background, group: &Arc<Group>) -> Turn {
        let mut turn = self.begin_batch(background);
        self.pick(background, group, &mut turn);
        self.end_batch(cpu, background, std::iter::once(group), &mut turn);
        turn
    }

    /// Moves what was picked to devices. If none takes any of it, copies of one of the groups that it may
    /// be from make way.
    fn end_batch<'a>(
        &self,
        cpu: Cpu,
        background: &mut Background,
        mut groups: impl Iterator<Item = &'a Arc<Group>>,
        turn: &mut Turn,
    ) {
        self.take_out_of_blocks(background);
        self.take_slots(cpu, background);
        self.write_picks(background);
        for &pick in &background.picks {
            turn.written += usize::from(self.finish(cpu, pick));
        }
        self.return_unwritten(background);
        let picked = !background.picks.is_empty();
        if picked && turn.moved() == 0 {
            groups.any(|group| self.give_up_copies(group, turn));
        }
        // Second chances taken away are progress, unless no device took the others.
        let stuck = picked || turn.spared == 0;
        self.in_vain.store(turn.moved() == 0 && stuck, Relaxed);
        let written = turn.written as u64;
        self.env.counters.zswpwb.add(written);
        self.env.counters.written_back_pages.add(written);
        self.env.counters.pswpout.add(written);
    }

    /// Takes slots for what was picked, as far as there are any. One by one they follow each other while
    /// the processor's cluster lasts, whatever the batch is made of. Runs asked for as such, for entries
    /// side by side, make a seventh fewer writes where holes are small, and more where there is much room, as
    /// runs are aligned.
    fn take_slots(&self, cpu: Cpu, background: &mut Background) {
        let Some(devices) = &self.devices else { return };
        let Background { picks, extents, .. } = background;
        for pick in picks.iter_mut().filter(|pick| !pick.packed) {
            extents.clear();
            if devices.allocate(cpu, 1, pick.entry, extents).is_err() {
                break;
            }
            pick.slot = place(extents[0], 0, pick.raw);
            if pick.slot.is_none() {
                // Of a device larger than an entry can name.
                let _ = devices.free_now(cpu, pick.entry, extents[0]);
                break;
            }
        }
    }

    /// Pages that no device took are the next again, but for those of damaged blocks.
    fn return_unwritten(&self, background: &Background) {
        let picks = &background.picks;
        let unwritten = |pick: &&Pick| pick.written().is_none() && !pick.packed;
        let mut end = picks.len();
        // A cluster may have been visited twice: it goes the same way back, the second visit first, even
        // if all that this found was written.
        for &(visit, from) in background.visits.iter().rev() {
            let of_this = picks[from..end].iter().find(unwritten);
            let mut before = picks[..from].iter().filter(unwritten);
            if let Some(pick) = of_this.or_else(|| before.find(|pick| visit.saw(pick.entry))) {
                self.space.return_to_clock(visit, pick.entry);
            }
            end = from;
        }
    }

    /// Decompresses picked pages that are in blocks. One that is gone, or is not what was stored, which a
    /// load will say, stays packed.
    fn take_out_of_blocks(&self, background: &mut Background) {
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
    fn pick(&self, background: &mut Background, group: &Arc<Group>, turn: &mut Turn) -> usize {
        if !self.can_write(group) {
            self.give_up_copies(group, turn);
            return 0;
        }
        let before = background.picks.len();
        for _ in 0..VISITS {
            let Some(mut locked) = self.space.next_in_clock(group) else {
                break;
            };
            let first = background.picks.len();
            let mut dropped: [Option<Handle>; 64] = [None; 64];
            let mut n = 0;
            let mut stopped = false;
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
                } else if word.cached() && locked.references() == 1 {
                    dropped[n] = self.give_up_copy(&mut locked, handle);
                    n += 1;
                } else {
                    let i = background.picks.len();
                    let slot = background.page(i);
                    let (len, codec) = self.pool.read(handle, slot);
                    if matches!(codec, Codec::Lz4 | Codec::Zstd) {
                        seal(slot, codec, len);
                    }
                    let word = word.with_busy(true);
                    locked.set(word);
                    let entry = locked.entry();
                    background.picks.push(Pick {
                        entry,
                        word,
                        raw: matches!(codec, Codec::Raw | Codec::Block),
                        packed: codec == Codec::Block,
                        checksum: None,
                        slot: None,
                        result: Err(IoError::Device),
                    });
                }
                if background.picks.len() == BATCH || n == dropped.len() {
                    stopped = at + 1 < CLUSTER_ENTRIES;
                    locked.seek_at(at + 1);
                    break;
                }
            }
            if stopped {
                locked.resume_in_clock();
            } else {
                locked.keep_in_clock();
            }
            let visit = locked.visit().map(|visit| (visit, first));
            background.visits.extend(visit);
            drop(locked);
            for handle in dropped.into_iter().flatten() {
                self.free_object(group, handle);
            }
            turn.dropped += n;
            if stopped || background.picks.len() == BATCH {
                break;
            }
        }
        background.picks.len() - before
    }

    /// Gives up the copy in the pool of a resident page; its object, if no other page is in it.
    fn give_up_copy(&self, locked: &mut Locked<'_>, handle: Handle) -> Option<Handle> {
        let vacated = locked.replace(locked.word().dropped());
        self.count_left(locked, vacated);
        match vacated {
            Vacated::Place(_) => Some(handle),
            Vacated::StillNamed => {
                self.pool.count_extra_refs(-1);
                None
            }
        }
    }

    /// Looks on along a group's pages for copies of resident ones, and gives up those of a cluster, if
    /// they are due or not; whether there were any.
    fn give_up_copies(&self, group: &Arc<Group>, turn: &mut Turn) -> bool {
        let mut ends = 0;
        for _ in 0..VISITS {
            let Some(mut locked) = self.space.look_along_clock(group) else {
                ends += 1;
                if ends == 2 {
                    break;
                }
                continue;
            };
            let mut dropped: [Option<Handle>; BATCH] = [None; BATCH];
            let mut n = 0;
            for at in 0..CLUSTER_ENTRIES {
                locked.seek_at(at);
                let word = locked.word();
                let Location::Pool(handle) = word.location() else {
                    continue;
                };
                if n < BATCH && word.cached() && !word.busy() && locked.references() == 1 {
                    dropped[n] = self.give_up_copy(&mut locked, handle);
                    n += 1;
                }
            }
            drop(locked);
            for handle in dropped.into_iter().flatten() {
                self.free_object(group, handle);
            }
            turn.dropped += n;
            if n > 0 {
                return true;
            }
        }
        false
    }
}

impl Swap {
    /// Writes what has a slot, one batch for each device, neighbours in one piece.
    fn write_picks(&self, background: &mut Background) {
        let Some(devices) = &self.devices else { return };
        let Background {
            picks,
            staging,
            offset,
            ..
        } = background;
        for device in 0..SlotPlace::MAX_DEVICES {
            let device = DeviceId(device as u8);
            let mut ops = [WriteOp { slot: 0, data: &[] }; BATCH];
            // How many picks each write carries, and the first of them.
            let mut runs = [(0usize, 0usize); BATCH];
            let mut n = 0;
            for (i, pick) in picks.iter().enumerate() {
                let Some(slot) = pick.slot.filter(|slot| slot.device == device) else {
                    continue;
                };
                let slot = u64::from(slot.slot.0);
                match runs[..n].last_mut() {
                    Some((first, len))
                        if *first + *len == i && ops[n - 1].slot + *len as u64 == slot =>
                    {
                        *len += 1
                    }
                    _ => {
                        ops[n].slot = slot;
                        runs[n] = (i, 1);
                        n += 1;
                    }
                }
            }
            if n == 0 {
                continue;
            }
            for (op, &(first, len)) in ops.iter_mut().zip(&runs[..n]) {
                op.data = &staging[*offset + first * PAGE_SIZE..][..len * PAGE_SIZE];
            }
            let Some(store) = devices.store(device) else {
                continue;
            };
            let mut results = [Err(IoError::Device); BATCH];
            store.write(&ops[..n], &mut results[..n]);
            let mut good = 0;
            for (&(first, len), &result) in runs[..n].iter().zip(&results) {
                let picks = &mut picks[first..first + len];
                if len > 1 && result == Err(IoError::Slot) {
                    // One bad spot fails the whole write: page by page it shows which.
                    let mut ops = [WriteOp { slot: 0, data: &[] }; BATCH];
                    for (i, (op, pick)) in ops.iter_mut().zip(&*picks).enumerate() {
                        op.slot = pick.slot.map_or(0, |slot| u64::from(slot.slot.0));
                        op.data = &staging[*offset + (first + i) * PAGE_SIZE..][..PAGE_SIZE];
                    }
                    let mut results = [Err(IoError::Device); BATCH];
                    store.write(&ops[..len], &mut results[..len]);
                    for (pick, &result) in picks.iter_mut().zip(&results) {
                        pick.result = result;
                    }
                } else {
                    picks.iter_mut().for_each(|pick| pick.result = result);
                }
                good += picks.iter().filter(|pick| pick.result.is_ok()).count();
            }
            devices.wrote(device, good as u32);
        }
    }

    /// Repoints an entry whose page was written, if nothing became of it meanwhile; whether.
    fn finish(&self, cpu: Cpu, pick: Pick) -> bool {
        let word = pick.word.with_busy(false);
        let Some(slot) = pick.written() else {
            self.space.repoint(pick.entry, pick.word, word);
            self.env.counters.reject_reclaim_fail.add(1);
            if let (Some(slot), Err(error)) = (pick.slot, pick.result) {
                self.write_failed(cpu, pick.entry, slot, error);
            }
            return false;
        };
        let to = match pick.checksum {
            None => word.moved_to(EntryWord::slot(slot, 0)),
            Some(checksum) => word.rewritten_to(EntryWord::slot(slot, checksum)),
        };
        let Some((mut locked, vacated)) = self.space.repoint(pick.entry, pick.word, to) else {
            self.free_slot(cpu, pick.entry, slot);
            return false;
        };
        self.count_left(&mut locked, vacated);
        let group = locked.cluster().group().clone();
        drop(locked);
        self.free_vacated(cpu, &group, pick.entry, vacated);
        true
    }
}
