//! Memory that the kernel keeps for a process that pages, beside its pages. It counts against the budget, as a memory
//! cgroup counts it too.
//!
//! Page tables are the most of it by far. The tables of memory that was swapped out stay. A program with a page here
//! and there has more tables than resident pages. They are measured. Memory of our making is estimated, from
//! measurements on Linux 6.18, x86-64 (`memory.kmem.usage_in_bytes` of a group of forked processes, with and without
//! us):
//!
//! | what | bytes |
//! |---|---|
//! | a thread: stack 16 KiB, `task_struct` 5888, signals, pid, accounting | [`THREAD`] |
//! | a userfaultfd, a second descriptor table, files of `/proc` | [`PROCESS`] |
//! | a mapping split off by registering: `vm_area_struct` 192, its part of a tree | [`MAPPING`] |
//! | page tables of a process that does nothing, which it has without us too: not counted | [`BARE`] |
//! | of the rest, what each process may have uncounted | [`SMALL`] |
//!
//! The last keeps many small processes in a small budget; the README says how much to leave for them. Three
//! threads of ours are below it, those of a large machine are not.
//!
//! Not counted either: what the kernel keeps for the program's own doing (descriptors, sockets, its threads), and
//! for processes that do not page.

use ebb_engine::PAGE_SIZE;

const THREAD: usize = 28 << 10;
const PROCESS: usize = 16 << 10;
const MAPPING: usize = 256;
const BARE: usize = 96 << 10;
const SMALL: usize = 128 << 10;

/// Bytes that are of our making, for so many threads and ranges.
const fn ours(threads: usize, ranges: usize) -> usize {
    threads * THREAD + PROCESS + ranges * MAPPING
}

/// Pages to count of a process with so many threads of ours, ranges and pages of tables.
pub fn pages(threads: usize, ranges: usize, tables: u64) -> i64 {
    let tables = (tables as usize * PAGE_SIZE).saturating_sub(BARE);
    let ours = ours(threads, ranges).saturating_sub(SMALL);
    (tables + ours).div_ceil(PAGE_SIZE) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_our_own_memory_is_about_what_was_measured() {
        let kib = ours(3, 8) >> 10;
        assert!((90..=115).contains(&kib), "{kib} KiB");
    }

    #[test]
    fn much_counts_and_little_does_not() {
        assert_eq!(pages(3, 8, 24), 0);
        assert_eq!(pages(3, 8, 24 + 1000), 1000);
        let large = pages(65, 8, 24) * 4;
        assert!((1500..2000).contains(&large), "{large} KiB");
    }
}
