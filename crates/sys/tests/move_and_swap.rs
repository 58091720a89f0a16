//! UFFDIO_MOVE of pages that the kernel swaps out and in meanwhile. Kernels that lack the repair of CVE-2025-38242
//! may give a page to two owners then, or lose it.
//!
//! Needs swap of the kernel's: `cargo xtask kernels` has it.

use ebb_sys::Errno;
use ebb_sys::memory::{self, PAGE};
use ebb_sys::userfaultfd::Userfaultfd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGES: usize = 256;
/// Moves that are enough; an emulated processor gets to a part of them in the time.
const MOVES: usize = 200_000;
const TIME: Duration = Duration::from_secs(60);

/// Addresses of [`PAGES`] pages.
#[derive(Clone, Copy)]
struct Area(usize);

impl Area {
    fn new() -> Self {
        Self(memory::reserve(PAGES * PAGE).unwrap())
    }

    fn word(self, page: usize, word: usize) -> *mut u64 {
        assert!(page < PAGES && word < PAGE / 8);
        (self.0 + page * PAGE + word * 8) as *mut u64
    }

    fn write(self, page: usize, seed: u64) {
        for word in 0..PAGE / 8 {
            // SAFETY: inside the area, which is mapped for the life of the test and written by one thread.
            unsafe {
                self.word(page, word)
                    .write_volatile(content(page, word, seed))
            }
        }
    }

    fn assert_holds(self, page: usize, seed: u64) {
        for word in 0..PAGE / 8 {
            // SAFETY: as above.
            let found = unsafe { self.word(page, word).read_volatile() };
            assert_eq!(found, content(page, word, seed), "page {page}, word {word}");
        }
    }

    fn advise(self, advice: libc::c_int) {
        // SAFETY: advice that changes no content.
        let _ = unsafe { memory::madvise(self.0, PAGES * PAGE, advice) };
    }
}

/// Differs in every word, so that no two pages are alike and none is of one word.
fn content(page: usize, word: usize, seed: u64) -> u64 {
    let n = (seed << 24) ^ ((page as u64) << 10) ^ word as u64;
    n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[test]
fn moves_keep_their_pages_while_the_kernel_swaps() {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        return println!("skipped: no kernel swap");
    }
    let fault = match Userfaultfd::open() {
        Ok(fault) => fault,
        Err(error) => return println!("skipped: no userfaultfd: {error}"),
    };
    let areas = [Area::new(), Area::new()];
    (0..PAGES).for_each(|page| areas[0].write(page, 0));
    for area in areas {
        // SAFETY: advice that changes no content.
        unsafe { memory::madvise(area.0, PAGES * PAGE, libc::MADV_NOHUGEPAGE).unwrap() };
        fault.register(area.0, PAGES * PAGE).unwrap();
    }
    let done = AtomicBool::new(false);
    let moves = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Out to swap, and back into the swap cache alone: nobody is waited for, nothing is mapped.
            while !done.load(Relaxed) {
                areas
                    .iter()
                    .for_each(|area| area.advise(libc::MADV_PAGEOUT));
                areas
                    .iter()
                    .for_each(|area| area.advise(libc::MADV_WILLNEED));
            }
        });
        let ended = std::panic::catch_unwind(|| move_to_and_fro(&fault, areas, &moves));
        done.store(true, Relaxed);
        ended.unwrap();
    });
    let out = pages_out();
    println!(
        "{} moves; the kernel swapped out {out} pages",
        moves.into_inner()
    );
    assert!(
        out > PAGES as u64,
        "nothing was swapped out: the test shows nothing"
    );
}

/// Moves each page to the other area and looks at it there.
fn move_to_and_fro(fault: &Userfaultfd, areas: [Area; 2], moves: &AtomicUsize) {
    let start = Instant::now();
    let mut place = [0_usize; PAGES];
    let mut seeds = [0_u64; PAGES];
    while moves.load(Relaxed) < MOVES && start.elapsed() < TIME {
        for page in 0..PAGES {
            let (from, to) = (areas[place[page]], areas[1 - place[page]]);
            // SAFETY: whole pages of our own areas; nobody holds a reference into either.
            let (_, moved) =
                unsafe { fault.move_pages(to.0 + page * PAGE, from.0 + page * PAGE, PAGE) };
            match moved {
                Ok(()) => place[page] = 1 - place[page],
                // The kernel is at it, or waits for what it writes: the next round will do.
                Err(Errno(libc::EAGAIN | libc::EBUSY)) => continue,
                Err(error) => panic!("page {page} of {}: {error}", place[page]),
            }
            to.assert_holds(page, seeds[page]);
            if moves.fetch_add(1, Relaxed).is_multiple_of(3) {
                // Another content: a stale copy in swap would be seen.
                seeds[page] += 1;
                to.write(page, seeds[page]);
            }
        }
    }
    for page in 0..PAGES {
        areas[place[page]].assert_holds(page, seeds[page]);
    }
}

/// Pages that the kernel has swapped out since it started.
fn pages_out() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("pswpout "));
    line.and_then(|n| n.parse().ok()).unwrap_or(0)
}
