//! Writeback: the pool's coldest pages of one group move to devices, a batch at a time. The next groups
//! fill up the rest of a small group's batch.
//!
//! The bytes in the pool go to the slot as they are. Pages of blocks are taken out of them first: a slot
//! has one page. Each page goes through the protocol in [`crate::entries`]: busy and copied under the
//! lock, written without, repointed if the word is still the busy one. Slots are taken in the order of
//! the batch, so neighbours in the batch are mostly neighbours on the device, and go out as one write.
//!
//! A cached page that comes up is not written: it is resident, so its copy is given up. Pages that no
//! device takes stay the next to go. Then, and where a group may not write, copies that are not yet due
//! are looked for, and nothing else changes its place.

use super::Swap;
use super::background::{Background, Pick, Turn};
use super::slot_format::place;
pub(super) use super::write_batch::{BATCH, Retry, write_runs};
use crate::entries::{EntryWord, Group};
use crate::env::{IoError, WriteOp};
use crate::pool::Worth;
use crate::shrinker::{Candidate, Need};
use crate::slots::Devices;
use crate::{Cpu, DeviceId, MAX_DEVICES, PAGE_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Steps of another thread that a refused store waits for: not each of them makes room.
const WAITS: usize = 8;

impl Swap {
    /// One turn of the shrinker, if it is wanted and nobody would mind.
    pub(super) fn shrink_step(&self, cpu: Cpu, background: &mut Background) -> bool {
        let max = self.pool.max();
        let mut need = background
            .shrinker
            .need(self.pool.bytes(), max, self.accept_percent());
        if self.patient.load(Relaxed) {
            need = need.min(Need::Background);
        }
        if need == Need::None {
            return false;
        }
        // Memory without pages goes before pages: the shrinker goes by the memory that the pool holds,
        // and would write out all of its pages while holes keep that up.
        if self.pool.give_back(0) > 0
            || self.compact_step(Worth::Much)
            || self.repack_step(cpu, background, false)
        {
            return true;
        }
        let now = self.env.clock.now_ns();
        let refused = self.last_refused_ns.load(Relaxed);
        let own = self.last_load_ns.load(Relaxed);
        // Loads of this process itself may be among them.
        let others = self.others_load_ns.load(Relaxed);
        let shrinker = &background.shrinker;
        if !shrinker.may_write(need, now, own.max(others), refused) {
            let for_others = shrinker.may_write(need, now, own, refused);
            self.env.counters.stood_back.add(u64::from(for_others));
            return false;
        }
        let turn = self.turn(cpu, background).unwrap_or_default();
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

    /// The pool refused a page: a batch of its coldest moves to devices, so that no young page goes
    /// there while older ones sit in the pool. Whether there may be room now. While another thread does
    /// that, this one waits for it, step by step, [`WAITS`] of them at most: writing a young page out
    /// instead would take no less. But not where the last batch moved nothing, as when devices are full,
    /// nor for a step that takes long: then the page is refused at once.
    pub(super) fn make_room(&self, cpu: Cpu) -> bool {
        self.note_refused();
        for _ in 0..WAITS {
            let made = self.in_background(|background| self.make_room_now(cpu, background));
            if let Some(made) = made {
                return made;
            }
            if self.in_vain.load(Relaxed) {
                return false;
            }
            let soon = self.await_background();
            if self.pool.has_room() {
                return true;
            }
            if !soon {
                return false;
            }
        }
        false
    }

    /// Makes room in the pool; whether there may be some now.
    fn make_room_now(&self, cpu: Cpu, background: &mut Background) -> bool {
        loop {
            // Emptied windows of another class or processor need no write.
            while self.pool.give_back(0) > 0 {}
            if self.pool.has_room() || self.devices.is_none() {
                return self.pool.has_room();
            }
            match self.turn(cpu, background) {
                // Second chances are taken away once; then it is the turn of those pages.
                Some(turn) if turn.moved() == 0 && turn.spared > 0 => {}
                turn => return turn.is_some_and(|turn| turn.moved() > 0),
            }
        }
    }

    /// A batch of the group that goes first, else of the next in turn, and of as many more as fill it. Where none may
    /// write, copies of resident pages, as far as it looks. None if there is nothing of either.
    pub(super) fn turn(&self, cpu: Cpu, background: &mut Background) -> Option<Turn> {
        let groups = self.space.groups();
        let has_any = |g: &&Arc<Group>| g.pool_bytes() > 0;
        let able = || groups.iter().filter(has_any).filter(|g| self.can_write(g));
        let candidate = |group| self.candidate(group);
        let first = self.first_group.load(Relaxed);
        let mut turn = self.begin_batch(background);
        let first = able().find(|g| u32::from(g.id.0) == first);
        if let Some(first) = first {
            self.pick(background, first, &mut turn);
        }
        // Its pages may be busy, or charged and on their way into the pool.
        if background.picks.is_empty() && turn == Turn::default() {
            let Some(group) = background.shrinker.next_group(able().map(candidate)) else {
                let gave = self.give_up_any_copies(groups.iter().filter(has_any));
                turn.dropped = gave.unwrap_or(0);
                self.in_vain.store(turn.moved() == 0, Relaxed);
                return gave.map(|_| turn);
            };
            let mut gave = self.pick(background, group, &mut turn);
            while gave > 0 && !background.is_full() {
                let Some(next) = background.shrinker.next_group(able().map(candidate)) else {
                    break;
                };
                gave = self.pick(background, next, &mut turn);
            }
        }
        self.end_batch(cpu, background, groups.iter().filter(has_any), &mut turn);
        Some(turn)
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
        let made = background.prepare(self.batch.load(Relaxed));
        self.staging_bytes.fetch_add(made, Relaxed);
        background.picks.clear();
        background.visits.clear();
        Turn::default()
    }

    /// Moves what was picked to devices. If none takes any of it, copies of one of the groups that it may
    /// be from make way.
    fn end_batch<'a>(
        &self,
        cpu: Cpu,
        background: &mut Background,
        groups: impl Iterator<Item = &'a Arc<Group>>,
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
            turn.dropped = self.give_up_any_copies(groups).unwrap_or(0);
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
    /// side by side, make a seventh fewer writes where holes are small, and more where there is much
    /// room: runs are aligned.
    fn take_slots(&self, cpu: Cpu, background: &mut Background) {
        let Some(devices) = &self.devices else { return };
        let Background { picks, extents, .. } = background;
        for pick in picks.iter_mut().filter(|pick| !pick.packed) {
            extents.clear();
            if devices.allocate(cpu, 1, pick.entry, extents).is_err() {
                break;
            }
            pick.slot = Some(place(extents[0], 0, pick.raw));
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
}

impl Swap {
    /// Writes what has a slot, one batch for each device, neighbours in one piece.
    fn write_picks(&self, background: &mut Background) {
        let Some(devices) = &self.devices else { return };
        for device in (0..MAX_DEVICES).map(|n| DeviceId(n as u8)) {
            write_picks_to(devices, device, background);
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

/// Writes those of the picked pages whose slots are on a device, in one batch.
fn write_picks_to(devices: &Devices, device: DeviceId, background: &mut Background) {
    let Background {
        picks,
        staging,
        offset,
        ..
    } = background;
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
            Some((first, len)) if *first + *len == i && ops[n - 1].slot + *len as u64 == slot => {
                *len += 1;
            }
            _ => {
                ops[n].slot = slot;
                runs[n] = (i, 1);
                n += 1;
            }
        }
    }
    if n == 0 {
        return;
    }
    for (op, &(first, len)) in ops.iter_mut().zip(&runs[..n]) {
        op.data = &staging[*offset + first * PAGE_SIZE..][..len * PAGE_SIZE];
    }
    let pages = runs[..n].iter().map(|&(_, len)| len).sum();
    let mut results = [Err(IoError::Device); BATCH];
    let good = write_runs(
        devices,
        device,
        &ops[..n],
        &mut results[..pages],
        Retry::Every,
    );
    devices.wrote(device, good);
    let written = runs[..n]
        .iter()
        .flat_map(|&(first, len)| first..first + len);
    for (i, &result) in written.zip(&results) {
        picks[i].result = result;
    }
}
