//! Memory for others of the tree: what this process tells of the age of its pages, and what it gives up
//! when it is asked to.
//!
//! The process with the coldest memory is asked (`ebb_tree`, `charge.rs`). Its resident pages go to the pool; where
//! little but the pool is left, the oldest of that go to devices.
//!
//! Peers want charge, used or not. The system, where it has no page for this process, wants pages.

use crate::eviction::make_room::Step;
use crate::keeper::thread::Keeper;
use crate::map::page_map::UNIT;
use crate::process::state::State;
use crate::process::worker::Worker;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use ebb_sys::paging::Time;
use ebb_tree::{ReclaimRequest, idle_time};

/// How often, when asked for memory, a process looks on where nothing that it has may leave.
const LOOKS_APART: usize = 128;

/// A pool that holds less gives nothing to devices for others' sake: what it takes to write would cost
/// them as much.
const WORTH: u64 = 1 << 20;

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gift {
    /// Something was given.
    Some,
    /// There is more, but none has been idle for as long as was asked for.
    Young,
    /// Nothing can leave.
    Nothing,
}

/// Pages given back at once: each time, those are woken who wait for room.
const AT_ONCE: i64 = 4 * UNIT as i64;

impl<K: Kernel> Keeper<K> {
    /// Whether what is resident is little beside the pool: it is the least that is wanted then, and the pool
    /// that can give.
    fn most_is_out(state: &State) -> bool {
        8 * state.pages.map().resident() as i64 <= state.charge.charged()
    }

    /// Tells the tree when the oldest page here came, if there is one to be given.
    #[inline(never)] // The keeper's turn is long enough, and it is called from several places.
    pub(super) fn publish_oldest(&self, state: &mut State) {
        let oldest = state.pages.oldest_ms();
        let oldest = oldest.filter(|_| !Self::most_is_out(state));
        let since_ns = published(oldest, state, self.now());
        self.member.publish_oldest(since_ns, return_time_ns(state));
    }

    /// Whether the oldest resident pages have been idle for so long, by what is known; any where nothing is resident.
    fn is_idle(&self, state: &mut State, idle_ms: u32) -> bool {
        state.pages.date(self.base.now_ms());
        let Some(oldest) = state.pages.oldest_ms() else {
            // All of it proved hot.
            return idle_ms == 0 || state.pages.map().resident() == 0;
        };
        let resident = u64::from(state.pages.now_ms().wrapping_sub(oldest));
        let return_time = u64::from(state.pages.return_time_ms().unwrap_or(0));
        idle_time(resident, return_time) >= u64::from(idle_ms)
    }

    /// Whether what is in the pool can go elsewhere. Relatives that share it each write it, and it is free
    /// when all have: idle ones are asked in turn.
    fn gives_pool(&self) -> bool {
        self.swap_space.devices.stays(self.member) && self.swap_space.may_write(self.member)
    }

    /// Tells the tree what the pool holds, and since when what of it may go to devices so that others have the
    /// room.
    pub(super) fn tell_pool(&self, state: &mut State) {
        let bytes = self.swap.pool_bytes();
        let (came, oldest) = self.swap.pool_order();
        let now = state.pages.now_ms();
        let oldest = oldest.filter(|_| bytes >= WORTH && self.gives_pool());
        state.offer.date_pool(came, oldest, now);
        let asked = state.offer.offered_pool_oldest_ms();
        let memory = self.swap.memory();
        let content = (memory.pool_pages, memory.pool_data_bytes);
        let oldest = published(asked, state, self.now());
        self.member.report_pool(bytes, oldest, content);
    }

    /// Gives back what is asked for of the charge, evicting what it takes; where little but the pool is left, writing
    /// that to devices. Pages that the program charges meanwhile are not made up for: of a program that goes on, all
    /// would be evicted.
    pub fn give_up(&self, worker: &mut Worker, request: ReclaimRequest) -> Gift {
        let (from_pool, aim) = self.aim(&self.lock(), request.pages.into());
        if from_pool && self.give_up_pool(aim) {
            return Gift::Some;
        }
        let gift = self.give_up_resident(worker, request, aim);
        match gift {
            Gift::Some => return gift,
            Gift::Young if !from_pool => return gift,
            // The pool was asked for, and has nothing to give.
            Gift::Young => return Gift::Nothing,
            Gift::Nothing => {}
        }
        // The rest is in the pool. A process that needs more asks again.
        let gave = self.give_up_pool(aim);
        self.settle(&mut self.lock());
        match gave {
            true => Gift::Some,
            false => Gift::Nothing,
        }
    }

    /// Gives `pages` to the system, which has none for this process. What is charged ahead is no page: counted here, it
    /// would be given up and charged again for ever, and nothing evicted.
    pub fn give_to_system(&self, worker: &mut Worker, pages: i64) {
        let (from_pool, aim) = {
            let mut state = self.lock();
            self.settle(&mut state);
            self.aim(&state, pages)
        };
        self.give_all(worker, pages, (from_pool, aim));
    }

    /// The same, of the pool first if it is `from_pool`. What that gives may be less than is wanted.
    fn give_all(&self, worker: &mut Worker, pages: i64, (from_pool, aim): (bool, i64)) {
        if from_pool {
            self.give_up_pool(aim);
        }
        let request = ReclaimRequest::any(pages as u64);
        if self.give_up_resident(worker, request, aim) == Gift::Nothing {
            self.give_up_pool(aim);
        }
        self.settle(&mut self.lock());
    }

    /// Whether the pool is to give first, and what may be charged when `pages` less are.
    fn aim(&self, state: &State, pages: i64) -> (bool, i64) {
        let from_pool = Self::most_is_out(state) && self.gives_pool();
        (from_pool, state.charge.charged() - pages)
    }

    /// Gives back what is charged and not used.
    fn settle(&self, state: &mut State) {
        let used = self.used(state);
        state.charge.settle(self.member, used, 0);
    }

    /// Evicts until no more than `aim` pages are charged, or no page has been idle for as long as is asked for.
    #[inline(never)] // The keeper's turn is long enough, and this is called from several places.
    fn give_up_resident(&self, worker: &mut Worker, request: ReclaimRequest, aim: i64) -> Gift {
        /// Pages evicted at most for each that is to be given back: what is evicted takes room in
        /// the pool.
        const EACH: u64 = 2;
        let evicted = || self.counters().evicted.get();
        let begin = evicted();
        let most = begin + EACH * u64::from(request.pages) + UNIT as u64;
        let mut looks = self.lock().pages.deferred_rounds(LOOKS_APART);
        let mut young = false;
        while evicted() < most {
            {
                let mut state = self.lock();
                let left = state.charge.charged() - aim;
                let used = self.used(&state);
                if -state.charge.over(used) >= left.min(AT_ONCE) {
                    self.settle(&mut state);
                }
                if state.charge.charged() <= aim {
                    return Gift::Some;
                }
                if self.release_frames(&mut state) {
                    continue;
                }
                if !self.is_idle(&mut state, request.idle_ms) {
                    young = true;
                    break;
                }
            }
            let step = self.evict_some(worker);
            self.attend_waiting(worker);
            match step {
                Step::Progress => {}
                // Units deferred long ago may be this process's alone by now, behind shared ones.
                Step::Nothing if looks > 0 => looks -= 1,
                _ => break,
            }
        }
        self.settle(&mut self.lock());
        match young {
            _ if evicted() > begin => Gift::Some,
            true => Gift::Young,
            false => Gift::Nothing,
        }
    }

    /// Makes the pool hold less until no more than `aim` pages are charged; whether it does. A part at a
    /// time: who waits for room has it at once, and a fork its turn. No more than it takes now: what relatives
    /// share frees nothing when it is written.
    #[inline(never)] // The keeper's turn is long enough, and this is called from several places.
    fn give_up_pool(&self, aim: i64) -> bool {
        let mut left = self.lock().charge.charged() - aim;
        let mut any = false;
        while left > 0 {
            let part = left.min(AT_ONCE);
            let gate = self.gate();
            let less = self
                .swap
                .shrink_pool(self.cpu(), part as u64 * PAGE_SIZE as u64);
            drop(gate);
            if less == 0 {
                break;
            }
            any = true;
            left -= part.max((less / PAGE_SIZE as u64) as i64);
            let mut state = self.lock();
            self.settle_given_back(&mut state);
            self.settle(&mut state);
            left = left.min(state.charge.charged() - aim);
        }
        any
    }
}

/// Nanoseconds after which most pages that leave come back; 0: most do not.
fn return_time_ns(state: &State) -> u64 {
    u64::from(state.pages.return_time_ms().unwrap_or(0)) * 1_000_000
}

/// Monotonic nanoseconds of a page's date, which is kept in fewer bits; 0: there is none.
fn published(oldest_ms: Option<u32>, state: &State, now: Time) -> u64 {
    let age = |oldest| u64::from(state.pages.now_ms().wrapping_sub(oldest)) * 1_000_000;
    oldest_ms.map_or(0, |oldest| {
        (now.as_nanos() as u64).saturating_sub(age(oldest)).max(1)
    })
}

#[cfg(test)]
mod tests {
    use crate::map::page_map::UNIT;
    use crate::tests::machine::Machine;
    use ebb_engine::slots::DeviceSpec;
    use ebb_memory_kernel::PAGE;
    use ebb_stores::RamStore;
    use ebb_tree::Config;
    use std::sync::Arc;

    /// Some of what the system wants is in the pool, which is most of what can leave. The rest is resident.
    #[test]
    fn what_the_system_wants_beyond_the_pool_is_resident() {
        const WANTED: i64 = 256;
        let mut machine = Machine::with(8192, Config::default(), |devices| {
            let store = Arc::new(RamStore::new(8192));
            devices
                .add(store, DeviceSpec::default(), None)
                .expect("a device");
        });
        let start = machine.map(1024);
        (0..1024).for_each(|i| machine.write(start + i * PAGE, 1 + i as u8 % 100));
        (0..512).for_each(|i| machine.evict(start + i * PAGE));
        machine.store_staged();
        let used = || {
            let state = machine.process.lock();
            machine.process.used(&state)
        };
        let pool = machine.process.swap.pool_bytes() as i64 / PAGE as i64;
        assert!((1..WANTED / 2).contains(&pool), "{pool} pages of the pool");
        machine.kernel.pass(std::time::Duration::from_secs(1));
        let before = used();
        let aim = {
            let mut state = machine.process.lock();
            machine.keeper.settle(&mut state);
            machine.keeper.aim(&state, WANTED).1
        };
        machine
            .keeper
            .give_all(&mut machine.worker, WANTED, (true, aim));
        let gave = before - used();
        assert!(gave + UNIT as i64 >= WANTED, "{gave} pages");
        machine.read_all();
        machine.check();
    }
}
