//! Counters with the kernel's names. The embedder chooses where they live; the pager keeps them in
//! memory shared by the process tree. So they are plain atomics behind a shared reference, and additions
//! are relaxed: a reader sees each counter alone, not a snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Every counter of a process. `repr(C)`, all zeros is a valid start.
        #[repr(C)]
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Folios swapped out whole, per order; as in the kernel, single pages are not among them.
            pub swpout: [Counter; crate::types::ORDERS],
            /// Folios that had to be split to be swapped out, per order.
            pub swpout_fallback: [Counter; crate::types::ORDERS],
        }

        impl Counters {
            /// Calls `f` with the name and value of each counter; those per order as `name_ORDER`.
            pub fn each(&self, mut f: impl FnMut(&str, u64)) {
                $(f(stringify!($name), self.$name.get());)*
                for (order, c) in self.swpout.iter().enumerate() {
                    f(&format!("swpout_{order}"), c.get());
                }
                for (order, c) in self.swpout_fallback.iter().enumerate() {
                    f(&format!("swpout_fallback_{order}"), c.get());
                }
            }

            /// Adds every counter of `other` to this one.
            pub fn absorb(&self, other: &Counters) {
                $(self.$name.add(other.$name.get());)*
                for (a, b) in self.swpout.iter().zip(&other.swpout) { a.add(b.get()); }
                for (a, b) in self.swpout_fallback.iter().zip(&other.swpout_fallback) { a.add(b.get()); }
            }
        }
    };
}

/// One monotonic count.
#[repr(transparent)]
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // Nothing is no reason to write to what all processors read.
        if n > 0 {
            self.0.fetch_add(n, Relaxed);
        }
    }
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

counters! {
    /// Pages read from devices.
    pswpin,
    /// Pages written to devices.
    pswpout,
    /// Pages loaded from the pool.
    zswpin,
    /// Pages stored in the pool.
    zswpout,
    /// Bytes of them, compressed.
    zswpout_bytes,
    /// Pages moved from the pool to devices.
    zswpwb,
    /// Zero or same-filled pages loaded.
    swpin_zero,
    /// Zero or same-filled pages stored.
    swpout_zero,
    /// Stores that found the pool at its limit.
    pool_limit_hit,
    /// Stores refused: the pool was at its limit and no device had room.
    reject_full,
    /// Pages that the pool, being at its limit, refused: they went to devices at once, while older ones
    /// stayed, or to no place at all.
    reject_pool,
    /// Pages that did not compress.
    reject_compress_poor,
    /// Writebacks that failed.
    reject_reclaim_fail,
    /// Times that the shrinker did not write, as another process had just loaded pages from a device.
    stood_back,
    /// Entries written back by the shrinker.
    written_back_pages,
    /// Loads of a page evicted not long ago.
    workingset_refault,
    /// Evictions that reused a clean copy instead of storing again.
    clean_reuse,
    /// Pages brought in beside the one that faulted.
    readahead,
    /// Pages read a second time, as the first read failed or gave something else.
    read_again,
    /// Read errors, after one retry.
    read_error,
    /// Write errors.
    write_error,
    /// Checksum mismatches, after one retry.
    checksum_error,
    /// Runs of slots that folios swapped out whole were written to: with `swpout`, writes a folio.
    swpout_runs,
    /// Pages poisoned because their data could not be read back.
    poisoned,
    /// Faults served.
    fault,
    /// Faults on pages never touched before.
    fault_zero,
    /// Faults served by mapping a page still in memory.
    fault_cache,
    /// Faults served from the pool.
    fault_pool,
    /// Faults served from a device.
    fault_device,
    /// Faults by writes to pages that forked relatives may share.
    fault_shared,
    /// Faults by writes to pages that had clean copies, which are given up.
    fault_clean,
    /// Pages that such faults, or their eviction, made this process's own: each is a minor fault.
    unshared,
    /// Pages evicted.
    evicted,
    /// Pages that could not be evicted: pinned or shared.
    evict_busy,
    /// Faults that found no room under the budget, and made some themselves before they were served.
    allocstall,
    /// Times a thread waited for room under the budget.
    stall,
    /// Times that the system had no page for this process, although the budget had room.
    page_refused,
    /// Nanoseconds in which threads of the process waited for a page: at least one, by a process.
    psi_some_ns,
    /// The part of them in which no thread of the process ran.
    psi_full_ns,
    /// Pages that were not as the page map said: there, or gone, by something that went round libc.
    map_disagrees,
}
