//! Memory as the place of pages whose device goes, where the other devices have no room.
//!
//! How many that can be is reckoned before the first page moves, so that a removal is refused while everything still
//! is where it was. Pages go into the pool compressed. There is room that is free of the budget, and room gained by
//! evicting resident pages, which go into the pool too.

use crate::devices::device_set::DrainTarget;
use crate::keeper::thread::Keeper;
use crate::process::worker::Worker;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use ebb_tree::Codec;

/// Pages of the pool from which can be told how well pages compress.
const FEW: u64 = 32;

/// The memory of a process, for as long as its keeper looks after the devices.
pub struct PoolTarget<'a, K: Kernel> {
    pub keeper: &'a Keeper<K>,
    pub worker: &'a mut Worker,
}

impl<K: Kernel> DrainTarget for PoolTarget<'_, K> {
    fn holds(&mut self, users: u64) -> u64 {
        self.keeper.pool_capacity().pages(users)
    }

    fn make_room(&mut self, pages: usize) -> bool {
        self.keeper.room_for(self.worker, pages)
    }
}

/// Memory that there is, in bytes.
struct PoolCapacity {
    /// Free of the budget, for whoever takes it.
    free: u64,
    /// Charged by this process, and not used.
    unused: u64,
    /// Resident pages that can be evicted.
    spare: u64,
    /// Bytes that the pool may grow by.
    pool: u64,
    /// Bytes of a page in the pool.
    each: u64,
}

impl PoolCapacity {
    /// Pages that the pool can come to hold, if so many processes share what is free.
    fn pages(&self, users: u64) -> u64 {
        const PAGE: u64 = PAGE_SIZE as u64;
        let free = self.free / users.max(1) + self.unused;
        // Of each page that is evicted the part is gained that its compression saves; all of it
        // lies in what the pool grows by.
        let evicted = self.spare.min(self.pool.saturating_sub(free));
        let gained = evicted / PAGE * (PAGE - self.each);
        (free.min(self.pool) + gained) / self.each
    }
}

impl<K: Kernel> Keeper<K> {
    /// The room in memory, a quarter of which is left to the program.
    fn pool_capacity(&self) -> PoolCapacity {
        const PAGE: u64 = PAGE_SIZE as u64;
        let mut state = self.lock();
        self.share_budget(&mut state);
        let held = self.swap.memory();
        // A page takes what those do that are there, and a little for holes; where there are few,
        // all of its size.
        let each = match held.pool_pages {
            ..FEW => PAGE,
            pages => (held.pool_data_bytes * 9 / 8 / pages).clamp(1, PAGE),
        };
        let pool = match self.member.config().codec {
            Codec::None => 0,
            _ => self.swap.pool_max().saturating_sub(held.pool_bytes),
        };
        let free = self.member.limit().saturating_sub(self.member.charged());
        let charged = state.charge.charged().max(0) as u64;
        let used = self.used(&state);
        // Those that refuse take their part of what is left to the program.
        let resident =
            (state.pages.map().resident() as u64).saturating_sub(state.pages.refused() as u64);
        PoolCapacity {
            free: free * PAGE,
            unused: (-state.charge.over(used)).max(0) as u64 * PAGE,
            spare: resident.saturating_sub((charged + free) / 4) * PAGE,
            pool,
            each,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn evicted_pages_take_room_in_the_pool() {
        let mut memory = PoolCapacity {
            free: 0,
            unused: 0,
            spare: 12 * MIB,
            pool: 100 * MIB,
            each: 1024,
        };
        // Of 12 MiB that make way 9 are gained: for 36 MiB.
        assert_eq!(memory.pages(1), 36 * 256);
        // Pages that do not compress gain nothing.
        memory.each = PAGE_SIZE as u64;
        assert_eq!(memory.pages(1), 0);
        // Free memory needs no eviction, and is shared.
        memory.free = 8 * MIB;
        memory.unused = MIB;
        assert_eq!(memory.pages(1), 9 * 256);
        assert_eq!(memory.pages(4), 3 * 256);
    }

    #[test]
    fn the_pool_grows_by_no_more_than_it_may() {
        let memory = |free, pool| PoolCapacity {
            free,
            unused: 0,
            spare: 100 * MIB,
            pool,
            each: 2048,
        };
        assert_eq!(memory(8 * MIB, 4 * MIB).pages(1), 8 * 256);
        assert_eq!(memory(8 * MIB, 0).pages(1), 0);
        // 8 MiB that are free, and half of 4 that are evicted into the pool.
        assert_eq!(memory(8 * MIB, 12 * MIB).pages(1), 20 * 256);
    }
}
