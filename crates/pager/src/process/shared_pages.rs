//! Whether forked relatives live, and what of the engine's memory went while they keep it.

use crate::process::paging::Process;
use ebb_engine::PAGE_SIZE;
use ebb_sys::{memory, thread};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Whether pages are shared with relatives, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// No relative lives.
    Alone,
    /// All that may be shared is protected.
    Protected,
}

/// The same for who frees memory of the engine, without the lock: whether relatives live.
pub static RELATIVES: AtomicBool = AtomicBool::new(false);

/// Pages that the engine gave back and relatives kept, not yet accounted for.
pub static GIVEN_BACK: AtomicI64 = AtomicI64::new(0);

/// [`Member::rollups`](ebb_tree::Member::rollups) before the first of them went.
pub static GIVEN_SINCE: AtomicU32 = AtomicU32::new(0);

impl Sharing {
    /// Relatives live, or are about to: what is registered from now on is protected.
    pub fn begins(&mut self) {
        RELATIVES.store(true, Relaxed);
        *self = Self::Protected;
    }
}

/// Memory of the engine is about to be given back to the system.
pub fn before_give_back(bytes: &[u8]) {
    if !RELATIVES.load(Relaxed) {
        return;
    }
    let Some(process) = Process::current() else {
        return;
    };
    let start = memory::page_up(bytes.as_ptr() as usize);
    let end = (bytes.as_ptr() as usize + bytes.len()) & !(PAGE_SIZE - 1);
    // On a thread of the program's: `before_drop`.
    if start < end && !thread::is_ours() {
        process.member.doubt(((end - start) / PAGE_SIZE) as u64);
    } else if start < end {
        let rollups = process.member.rollups();
        let pages = process.pagemap.shared(start, end) as i64;
        if pages > 0 && GIVEN_BACK.fetch_add(pages, SeqCst) == 0 {
            GIVEN_SINCE.store(rollups, SeqCst);
        }
    }
}

/// Pages given back by the engine while relatives keep them: still charged here and credited.
pub fn given_back() -> i64 {
    GIVEN_BACK.load(Relaxed)
}
