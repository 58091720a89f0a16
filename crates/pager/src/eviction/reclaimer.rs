//! The layer of the way out: [`Reclaimer`], and all that it alone changes.

use crate::process::context::Context;
use crate::process::state::State;
use crate::reclaim::copy_score::CopyScore;
use ebb_sys::paging::Kernel;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

/// Evicts pages. Its state:
///
/// ```text
/// is_family            pages may be shared copy-on-write; once set it stays
/// kept_executable      some bay may have an executable protection
/// has_called_keeper    the keeper was woken because the pool is nearly full, and has not looked since
/// ```
pub struct Reclaimer<K: Kernel> {
    context: Context<K>,
    /// The worth that clean copies proved to have.
    pub(crate) copies: CopyScore,
    /// Flag: pages may be shared copy-on-write with a forked relative, and refuse to be moved until one side has
    /// written them.
    is_family: AtomicBool,
    /// Flag: a bay kept its executable protection, as the kernel refuses to split a mapping of a process with too many.
    pub(super) kept_executable: AtomicBool,
    /// Flag: the keeper was told that the pool is nearly full, and has not looked yet.
    has_called_keeper: AtomicBool,
}

impl<K: Kernel> Reclaimer<K> {
    /// Of a process that is about to page.
    pub fn new(context: Context<K>) -> Self {
        Self {
            context,
            copies: CopyScore::new(),
            is_family: AtomicBool::new(false),
            kept_executable: AtomicBool::new(false),
            has_called_keeper: AtomicBool::new(false),
        }
    }

    /// Whether pages may be shared with forked relatives.
    #[inline]
    pub fn is_family(&self) -> bool {
        self.is_family.load(Relaxed)
    }

    /// There was a fork, of this process or by it.
    pub fn joins_family(&self) {
        self.is_family.store(true, SeqCst);
    }

    /// A page that had a clean copy was written.
    pub fn copy_was_written(&self) {
        self.copies.learn(false);
    }

    /// Tells the keeper once that the pool is nearly full.
    pub(super) fn call_keeper(&self) {
        if !self.has_called_keeper.swap(true, Relaxed) {
            self.member.wake_self();
        }
    }

    /// The invariants of this layer and of the one under it.
    pub fn check(&self, state: &State) {
        self.context.check(state);
        self.copies.check();
        self.check_copies(state);
    }

    /// In the keeper: it looks at the pool next.
    pub fn keeper_looks(&self) {
        self.has_called_keeper.store(false, SeqCst);
    }
}

impl<K: Kernel> Deref for Reclaimer<K> {
    type Target = Context<K>;

    #[inline(always)]
    fn deref(&self) -> &Context<K> {
        &self.context
    }
}
