//! Writeback: the pool's coldest pages of one group move to devices, a batch at a time. What a small
//! group leaves of a batch the next ones fill up.
//!
//! The bytes in the pool go to the slot as they are. The steps for each page are those of
//! the protocol in [`crate::vswap`]: busy and copied under the lock, written without,
//! repointed if the word is still the busy one. Slots are taken in the order of the batch,
//! so neighbours in the batch are mostly neighbours on the device, and go out as one write.
//!
//! A cached page that comes up is not written: it is resident, so its copy is given up.

use super::Swap;
use super::device::{place, seal};
use crate::env::{IoError, WriteOp};
use crate::shrinker::{Candidate, Need, Shrinker};
use crate::slots::ExtentList;
use crate::vswap::{CLUSTER_ENTRIES, Group, Handle, Location, SlotPlace, Word};
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
    extents: ExtentList,
    /// The cluster at which recompression looks on, and the entry in it.
    pub recompress_from: u32,
    pub recompress_at: u32,
}

#[derive(Clone, Copy)]
struct Pick {
    entry: EntryId,
    /// As it was left in the entry: busy.
    word: Word,
    raw: bool,
    slot: Option<SlotPlace>,
    result: Result<(), IoError>,
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

impl Background {
    pub fn new() -> Self {
        Self {
            shrinker: Shrinker::default(),
            staging: Vec::new(),
            offset: 0,
            picks: Vec::new(),
            extents: ExtentList::default(),
            recompress_from: 0,
            recompress_at: 0,
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
        let mut need = background
            .shrinker
            .need(self.pool.bytes(), max, self.accept_percent());
        let above_limit = self.group_above_limit();
        if above_limit.is_some() {
            need = need.max(Need::Background);
        } else if need == Need::None {
            return false;
        } else if self.pool.give_back(0) > 0 || self.compact_step(false) {
            // What holds no page goes before what does: the shrinker goes by the memory that the pool
            // holds, and would write out all of its pages while holes keep that up. A group's limit
            // is of its pages alone.
            return true;
        }
        let now = self.env.clock.now_ns();
        if !background.shrinker.may_write(
            need,
            now,
            self.last_load_ns.load(Relaxed),
            self.last_refused_ns.load(Relaxed),
        ) {
            return false;
        }
        // What all of them need goes before one's limit, and is not held up by what cannot leave.
        let above_limit = above_limit.filter(|_| need < Need::Urgent);
        let turn = above_limit
            .map(|group| self.write_back(cpu, background, &group))
            .filter(|turn| *turn != Turn::default())
            .or_else(|| self.turn(cpu, background));
        let Some(turn) = turn else {
            return false;
        };
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
    pub(super) fn relieve(&self, cpu: Cpu, short: Option<&Arc<Group>>) -> bool {
        self.note_refused();
        let has_room = || match short {
            None => self.pool.has_room(),
            Some(group) => group.pool_bytes() + PAGE_SIZE as u64 <= group.pool_max(),
        };
        for _ in 0..WAITS {
            let made = self.in_background(|background| {
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
                turn.is_some_and(|turn| turn.written + turn.dropped > 0)
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
        self.write_picked(cpu, background, &mut turn);
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

    fn can_write(&self, group: &Group) -> bool {
        group.writeback() && self.has_devices()
    }

    fn begin_batch(&self, background: &mut Background) -> Turn {
        let made = background.prepare();
        self.staging_bytes.fetch_add(made, Relaxed);
        background.picks.clear();
        Turn::default()
    }

    /// A batch of one group.
    fn write_back(&self, cpu: Cpu, background: &mut Background, group: &Arc<Group>) -> Turn {
        let mut turn = self.begin_batch(background);
        self.pick(background, group, &mut turn);
        self.write_picked(cpu, background, &mut turn);
        turn
    }

    /// Moves what was picked to devices.
    fn write_picked(&self, cpu: Cpu, background: &mut Background, turn: &mut Turn) {
        if let Some(devices) = self.devices.as_ref() {
            let Background { picks, extents, .. } = background;
            for pick in picks.iter_mut() {
                extents.clear();
                if devices.allocate(cpu, 1, pick.entry, extents).is_err() {
                    break;
                }
                pick.slot = place(extents[0], 0, pick.raw);
                if pick.slot.is_none() {
                    let _ = devices.free_now(cpu, pick.entry, extents[0]);
                    break;
                }
            }
            self.write_picks(background);
        }
        for i in 0..background.picks.len() {
            let pick = background.picks[i];
            turn.written += usize::from(self.finish(cpu, pick));
        }
        // Second chances taken away are progress, unless no device took the others.
        let moved = turn.written + turn.dropped > 0;
        let stuck = !background.picks.is_empty() || turn.spared == 0;
        self.in_vain.store(!moved && stuck, Relaxed);
        self.env.counters.zswpwb.add(turn.written as u64);
        self.env
            .counters
            .written_back_pages
            .add(turn.written as u64);
        self.env.counters.pswpout.add(turn.written as u64);
    }

    /// Finds a group's coldest pages, copies them, and marks them busy; how many.
    fn pick(&self, background: &mut Background, group: &Arc<Group>, turn: &mut Turn) -> usize {
        let before = background.picks.len();
        let can_write = self.can_write(group);
        for _ in 0..VISITS {
            let Some(mut locked) = self.space.next_in_clock(group) else {
                break;
            };
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
                    locked.set(word.dropped());
                    dropped[n] = Some(handle);
                    n += 1;
                } else if !can_write {
                    continue;
                } else {
                    let i = background.picks.len();
                    let slot = background.page(i);
                    let (len, codec) = self.pool.read(handle, slot);
                    let raw = codec == crate::codec::Codec::Raw;
                    if !raw {
                        seal(slot, codec, len);
                    }
                    let word = word.with_busy(true);
                    locked.set(word);
                    let entry = locked.entry();
                    background.picks.push(Pick {
                        entry,
                        word,
                        raw,
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
            drop(locked);
            for handle in dropped.into_iter().flatten() {
                self.free_object(group, handle);
                turn.dropped += 1;
            }
            if stopped || background.picks.len() == BATCH {
                break;
            }
        }
        background.picks.len() - before
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
        let (Some(slot), Ok(())) = (pick.slot, pick.result) else {
            self.space.repoint(pick.entry, pick.word, word);
            self.env.counters.reject_reclaim_fail.add(1);
            if let (Some(slot), Err(error)) = (pick.slot, pick.result) {
                self.write_failed(cpu, pick.entry, slot, error);
            }
            return false;
        };
        let to = word.moved_to(Word::slot(slot, 0));
        let group = self.space.repoint(pick.entry, pick.word, to);
        match (word.location(), &group) {
            (Location::Pool(old), Some(group)) => self.free_object(group, old),
            _ => self.free_slot(cpu, pick.entry, slot),
        }
        group.is_some()
    }
}
