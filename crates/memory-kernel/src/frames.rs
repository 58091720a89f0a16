//! Pages of memory, and how many processes map each.
//!
//! Processes of one host process share a page's bytes ([`Arc`]). Processes of a simulation that are processes of the
//! host too have each a copy, which is the same until one of them writes; how many there are of it is counted in memory
//! that they share ([`Sharers`]).

use crate::PAGE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Counts of mappings for pages that several host processes map. The slices lie in memory that these share.
#[derive(Clone, Copy)]
pub struct Sharers {
    /// The number of processes that map each page.
    pub counts: &'static [AtomicU32],
    /// The place where the next free count is looked for.
    pub next: &'static AtomicU32,
}

/// A page's place among the [`Sharers`].
struct Shared {
    sharers: Sharers,
    index: usize,
}

impl Shared {
    fn new(sharers: Sharers) -> Self {
        let all = sharers.counts.len();
        for _ in 0..all {
            let index = sharers.next.fetch_add(1, SeqCst) as usize % all;
            let free = sharers.counts[index].compare_exchange(0, 1, SeqCst, SeqCst);
            if free.is_ok() {
                return Self { sharers, index };
            }
        }
        panic!("more pages are shared than there are counts")
    }

    fn count(&self) -> &AtomicU32 {
        &self.sharers.counts[self.index]
    }
}

impl Clone for Shared {
    fn clone(&self) -> Self {
        self.count().fetch_add(1, SeqCst);
        Self { ..*self }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.count().fetch_sub(1, SeqCst);
    }
}

/// A page that is there, and what is known of it.
#[derive(Clone)]
pub struct Frame {
    bytes: Arc<[u8; PAGE]>,
    shared: Option<Shared>,
    /// Flag: it is known to be this process's alone (PageAnonExclusive). A fork takes that from both sides, and only a
    /// write brings it back, even if nobody else maps the page any more.
    exclusive: bool,
    /// Flag: a write is a fault.
    pub protected: bool,
    /// Transfers into it that are under way.
    pub pins: u32,
}

impl Frame {
    /// Of this content.
    pub fn new(bytes: &[u8; PAGE]) -> Self {
        // By way of a slice the content is copied once.
        let copy = Arc::<[u8]>::from(&bytes[..]).try_into();
        Self {
            bytes: copy.expect("a page"),
            shared: None,
            exclusive: true,
            protected: false,
            pins: 0,
        }
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8; PAGE] {
        &self.bytes
    }

    /// Whether others map it.
    pub fn is_shared(&self) -> bool {
        let others = self.shared.as_ref().map_or(0, |s| s.count().load(SeqCst));
        others > 1 || Arc::strong_count(&self.bytes) > 1
    }

    /// Whether the kernel moves it.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// A fork shares it. One with a transfer under way is copied for the child instead.
    pub fn share(&mut self) {
        self.exclusive = self.pins > 0;
    }

    /// Its content, to be written: the process's own from now on.
    pub fn own(&mut self) -> &mut [u8; PAGE] {
        (self.shared, self.exclusive) = (None, true);
        Arc::make_mut(&mut self.bytes)
    }

    /// The frame as a process has it that is about to be copied as a whole by the host: counted twice from now on.
    pub fn count_copy(&mut self, sharers: Sharers) {
        let shared = self.shared.get_or_insert_with(|| Shared::new(sharers));
        shared.count().fetch_add(1, SeqCst);
        self.share();
    }
}
