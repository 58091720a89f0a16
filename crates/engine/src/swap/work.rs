//! Background work, in bounded steps, by one thread at a time: the one that has taken what it needs from
//! the [`BackgroundSlot`](super::background::BackgroundSlot).

use super::Swap;
use super::background::Background;
use super::write_batch::BATCH;
use crate::Cpu;
use crate::pool::Worth;
use std::sync::atomic::Ordering::Relaxed;

/// Emptied windows that keep their memory for the next class that needs one.
const WARM_WINDOWS: usize = 1;
/// Turns without effect after which `shrink_pool` gives up.
const IDLE_TURNS: u32 = 16;

/// Waiting things of the slot allocator done in one step.
const DEVICE_STEPS: usize = 32;

impl Swap {
    /// One bounded step of background work; false when there is nothing to do now. One
    /// thread at a time does something; others return at once.
    pub fn work(&self, cpu: Cpu) -> bool {
        self.in_background(|background| {
            // Beyond its limit the pool gives up what holds nothing before it writes pages out.
            let pool = (self.pool.bytes() > self.pool.max() && self.tidy_step(cpu, background))
                || self.shrink_step(cpu, background)
                || self.pool.give_back(WARM_WINDOWS) > 0
                || self.compact_step(Worth::Much)
                || self.repack_step(cpu, background, false)
                || self.recompress_step(cpu, background);
            let devices = self.devices_step(cpu, pool);
            pool || devices || self.rest_step(background)
        })
        // Last, as it takes long, and while nobody can be waiting for it.
        .is_some_and(|did| did || self.env.codecs.work())
    }

    /// The devices' turn: when there is nothing else to do. While the pool is `busy`, which may go on for minutes, they
    /// have one where somebody waits for it. Whether there was anything to do.
    fn devices_step(&self, cpu: Cpu, busy: bool) -> bool {
        let Some(devices) = &self.devices else {
            return false;
        };
        if busy {
            if !devices.wants_work() && !devices.is_wanted() {
                return false;
            }
            // A store that waits for room in the pool has it by now.
            self.background_slot.step_done();
        }
        devices.work(cpu, DEVICE_STEPS) > 0
    }

    /// Whether background work cannot wait: stores are about to find the pool at its limit, and
    /// there is a device to move pages to. Cheap.
    pub fn needs_writeback(&self) -> bool {
        let (bytes, max) = (self.pool.bytes(), self.pool.max());
        bytes >= crate::shrinker::urgent(max, self.accept_percent()) && self.has_devices()
    }

    /// Makes the pool hold at least `bytes` less memory, if that can be done: by compaction, then by
    /// giving up copies and writing to devices, even if others wait for them. How much less it holds.
    pub fn shrink_pool(&self, cpu: Cpu, bytes: u64) -> u64 {
        let before = self.pool.bytes();
        let target = before.saturating_sub(bytes);
        self.in_background(|background| {
            // Whether there may be holes to gather: only what leaves the pool makes some.
            let (mut holes, mut idle) = (true, 0);
            while self.pool.bytes() > target && idle < IDLE_TURNS {
                self.background_slot.step_done();
                holes = holes && self.tidy_step(cpu, background);
                if holes {
                    continue;
                }
                match self.turn(cpu, background) {
                    // A turn that only took second chances away is progress, once around.
                    Some(turn) if turn.moved() > 0 => (holes, idle) = (true, 0),
                    Some(turn) if turn.spared > 0 => {}
                    Some(_) => idle += 1,
                    None => break,
                }
            }
        });
        before.saturating_sub(self.pool.bytes())
    }

    /// Where nothing came into the pool since there was nothing else to do last, nothing fills its holes
    /// nor wants its emptied windows: they go back more thoroughly.
    fn rest_step(&self, background: &mut Background) -> bool {
        let puts = self.pool.puts();
        if puts != background.puts {
            background.puts = puts;
            return false;
        }
        let did = self.pool.give_back(0) > 0
            || self.pool.give_back_unfilled() > 0
            || self.compact_step(Worth::Some);
        // Emptying a window puts its objects into others.
        background.puts = self.pool.puts();
        did
    }

    /// Gives back memory of the pool that holds no page, or gathers holes so that some does.
    fn tidy_step(&self, cpu: Cpu, background: &mut Background) -> bool {
        self.pool.give_back(0) > 0
            || self.compact_step(Worth::Any)
            || self.repack_step(cpu, background, true)
    }

    /// Runs `f` with what background work keeps, unless somebody else does.
    pub(super) fn in_background<R>(&self, f: impl FnOnce(&mut Background) -> R) -> Option<R> {
        let mut background = self.background_slot.take()?;
        let result = f(&mut background);
        self.background_slot.put_back(background);
        Some(result)
    }

    /// Waits for whoever does background work, if anybody, to end the step that is under way; false
    /// if that takes long.
    pub(super) fn await_background(&self) -> bool {
        self.background_slot.await_step()
    }

    /// Makes the per-processor scratch, so that no load or store has to.
    pub fn warm_up(&self) {
        self.coders.fill();
    }

    /// The process has so many pages, in memory and swapped out. A small one has small batches of writeback: the
    /// buffers of a large one would else be as much as all of its memory.
    pub fn set_pages(&self, pages: usize) {
        const SHARE: usize = 32;
        const LEAST: usize = 8;
        let batch = (pages / SHARE).clamp(LEAST, BATCH);
        self.batch.store(batch, Relaxed);
    }

    /// Frees buffers that nobody used since the last call: those of coders, of background work, of devices.
    pub fn free_idle(&self) {
        self.coders.free_idle();
        self.in_background(|background| {
            let freed = background.free_idle();
            self.staging_bytes.fetch_sub(freed, Relaxed);
        });
        if let Some(devices) = &self.devices {
            devices.free_idle();
        }
    }
}
