//! A fault for which there is no room: whom it waits for, and when there is nothing to wait for.
//!
//! Memory is out when no page of the process can be put anywhere: the pool is at its limit, devices are full, nobody
//! else gives. That need not stop the program dead. A page that was just brought in is unchanged and can go again
//! without being stored. So a few pages in turn may take each other's frame for ever, with tens of thousands of
//! faults served a second. So neither one fault's wait nor the number of faults decides. All the time counts in which
//! room was hard to make while hardly any *work* was done: faults on pages that were new to their threads
//! (`attempts`). The process is then ended, as a memory limit would do it.
//!
//! Time that goes by in compression or in transfers is no stall, however slow.

use crate::fault::fault_service::FaultService;
use crate::map::page_map::{Page, PageNumber};
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use ebb_sys::paging::Time;
use ebb_tree::OUT_OF_MEMORY;
use std::ops::ControlFlow::Continue;

/// Pages to work on that a process needs beside those that stay in memory.
const WORK: u64 = (8 << 20) / PAGE_SIZE as u64;

impl<K: Kernel> FaultService<K> {
    /// Room was wanted and not made since `from`: ends the process if it has been so for too long. Called
    /// without the lock.
    pub fn wanted_room(&self, from: Time) {
        let work = self.lock().pages.work();
        let lasted = self.stall.lasted(from, self.now(), work);
        let needs_more = || self.stays().0 + WORK > self.member.budget();
        if lasted.is_over || lasted.check_due && needs_more() {
            self.out_of_memory();
        }
    }

    /// The budget is used up by memory that cannot be put anywhere: ends the process as a memory
    /// limit would.
    fn out_of_memory(&self) -> ! {
        let mib = |pages: u64| (pages * PAGE_SIZE as u64).div_ceil(1 << 20);
        let (budget, (stays, to_come)) = (self.member.budget(), self.stays());
        if stays + WORK > budget {
            self.fail(&format!(
                "{OUT_OF_MEMORY}of a budget of {} MiB this process has {} MiB by now that cannot be \
                 swapped out (stacks, code, locked, pinned or sealed memory); give --memory at least {}M",
                mib(budget),
                mib(stays),
                mib(stays + to_come + WORK)
            ))
        }
        let devices = &self.swap_space.devices.devices;
        if self.swap.met_file_limit() && !devices.has_room() {
            self.fail(&format!(
                "{OUT_OF_MEMORY}the budget's {} MiB are in use, and what is in them cannot be swapped out, as the program may \
                 write no larger file (RLIMIT_FSIZE, `ulimit -f`); raise that limit or --memory, or give --swap a \
                 block device",
                mib(budget)
            ))
        }
        let outside = self.member.outside();
        let advice = if outside > budget / 2 {
            "programs whose memory cannot be managed fill it: raise --memory by what they need"
        } else if !self.member.has_devices() {
            "there is no swap device: raise --memory, or give it a --swap file with room"
        } else if !self.member.writeback() {
            "pages may not go to the swap devices (--writeback off): allow that by `ebb limit PID --writeback on` (for \
             one process with --only, as it was forbidden), or raise --memory"
        } else if devices.has_room() {
            "the rest is what the programs need at once, though there is room for more on the swap devices: raise \
             --memory"
        } else if devices.usage().iter().any(|device| device.full) {
            "the file system of a swap device is full: free room there, raise --memory, or give another --swap"
        } else {
            "the swap devices are full or gone: raise --memory, or give a larger --swap"
        };
        let own = self.member.own_charge();
        self.fail(&format!(
            "{OUT_OF_MEMORY}the budget's {} MiB are in use and nothing more can be swapped out; this process has {} \
             MiB of them, other managed processes have {} MiB, memory that is not managed takes {} MiB; compressed \
             pages of all take {} MiB; {advice}",
            mib(budget),
            mib(own),
            mib(self.member.charged().saturating_sub(own)),
            mib(outside),
            self.member.pools().div_ceil(1 << 20)
        ))
    }

    /// Pages of this process in memory that cannot be swapped out, whatever room there is elsewhere, or that refused when
    /// they were last tried; and those that it locked, and that are not there yet.
    pub fn stays(&self) -> (u64, u64) {
        let mut state = self.lock();
        self.measure(&mut state);
        let kept = state.ranges.all().filter(|r| r.attributes.stays());
        let (mut pages, mut to_come) = (state.charge.unmanaged(), 0);
        let may_leave = |page: &PageNumber| {
            let range = state.ranges.find(page.address());
            range.is_some_and(|r| !r.attributes.stays())
        };
        pages += state.pages.refused_there().filter(may_leave).count() as u64;
        for range in kept {
            let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
            let mut there = 0;
            state.pages.map().each(first, end, |_, page| {
                there += u64::from(matches!(page, Page::Resident(_)));
                Continue(())
            });
            pages += there;
            if range.attributes.locked {
                to_come += (end.0 - first.0) as u64 - there;
            }
        }
        (pages, to_come)
    }
}
