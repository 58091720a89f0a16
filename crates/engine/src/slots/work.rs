//! Background work: what the paths in front leave to be done later.

use super::Devices;
use super::device::{Device, Patience};
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, Cpu};

/// Empty clusters a process keeps instead of giving them back to the lender, unless another wants one.
const RESERVE: u32 = 2;
/// The most full clusters searched for cached slots in one step.
const RECLAIM_CLUSTERS: usize = 32;

impl Devices {
    /// Whether something waits that is better done soon: a cheap test for the worker's loop.
    pub fn wants_work(&self) -> bool {
        self.wanted.0.load(Relaxed)
    }

    /// Whether a process looked in vain for a cluster of any of the devices, and may be helped by what this one
    /// gives back.
    pub fn is_wanted(&self) -> bool {
        self.devices().iter().any(|device| device.is_wanted())
    }

    /// One step of background work. It empties return caches, but for a stock where it is in use, then
    /// does up to `max` discards, thawed, adopted or released clusters. On a nearly full device it reclaims
    /// cached slots; then it compacts and packs. Says how much was done; 0 means that nothing is left.
    ///
    /// Steps until then are one visit. Return caches are looked at once in each, and when one fills:
    /// at once after the first look no processor has had time to use its stock.
    pub fn work(&self, cpu: Cpu, max: usize) -> usize {
        let asked = self.wanted.0.swap(false, Relaxed);
        let visit = asked || self.rested.load(Relaxed);
        let mut done = if visit {
            self.let_emptied_go();
            self.trim_all_returns(cpu)
        } else {
            0
        };
        let devices = self.devices();
        if devices.iter().any(|device| device.is_wanted()) {
            done += self.flush_all_returns(cpu);
            self.let_cursors_go(|cluster| cluster.count == 0);
            if visit {
                self.let_resting_go();
            }
        }
        for device in devices {
            // Asked once: the first that goes back is an answer, and there may be more to give.
            let reserve = if device.is_wanted() { 0 } else { RESERVE };
            let come = device.thaw(max) + device.adopt(max);
            self.in_flight.freed((come * CLUSTER_SLOTS) as u32);
            done += come;
            let mut left = max;
            while left > 0 && (device.discard_one(Patience::Skip) || device.release_one(reserve)) {
                left -= 1;
                done += 1;
            }
            let used = self.used(&device);
            if self.half_full(&device) && self.nearly_full(&device) {
                let clusters = (used as usize / CLUSTER_SLOTS)
                    .min(RECLAIM_CLUSTERS)
                    .min(max);
                done += self.reclaim_full(cpu, &device, clusters, usize::MAX);
            }
            done += self.compact(cpu, &device);
            done += self.pack(&device, max);
        }
        self.rested.store(done == 0, Relaxed);
        done
    }

    /// Whether less than a sixteenth of a device's slots are free, in clusters of ours or to be
    /// borrowed.
    fn nearly_full(&self, device: &Device) -> bool {
        let few = u64::from(device.slots / 16);
        // In this order: to count what is ours takes longer.
        device.borrowable() < few && self.free_slots(device) < few
    }
}
