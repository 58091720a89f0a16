//! A word that one thread holds at a time. The kernel takes it from a thread that dies, by exit, exec or a
//! signal, at any instruction (`set_robust_list(2)`).
//!
//! Made for processes that share one memory, where who dies leaves others behind that go on using it. The
//! word is all that the kernel puts right: what it guards has to be fit for that.

use crate::kernel::raw;
use crate::process::thread;
use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

const OWNER_DIED: u32 = 0x4000_0000;

/// In debug builds, threads of a simulation, which are none of the system.
#[cfg(debug_assertions)]
pub struct Simulated {
    /// The calling thread's number.
    pub id: fn() -> u32,
    /// The list that it has.
    pub list: fn() -> usize,
    /// The call that gives it another one.
    pub set_list: fn(usize),
}

#[cfg(debug_assertions)]
static SIMULATED: std::sync::OnceLock<Simulated> = std::sync::OnceLock::new();

/// Threads are a simulation's from now on.
#[cfg(debug_assertions)]
pub fn simulate(threads: Simulated) {
    SIMULATED.get_or_init(|| threads);
}

/// In a simulation: a thread of this number has died that had this list. Does what the kernel does then.
///
/// Requires: the list is one that the thread was given by [`Simulated::set_list`], or 0.
#[cfg(debug_assertions)]
pub unsafe fn holder_died(list: usize, id: u32) {
    // SAFETY: null, or a list of ours, which is never unmapped.
    let Some(head) = (unsafe { (list as *const Head).as_ref() }) else {
        return;
    };
    // SAFETY: null, or the word of the same lock.
    let word = unsafe { (head.pending.load(SeqCst) as *const AtomicU32).as_ref() };
    if let Some(word) = word {
        let _ = word.compare_exchange(id, OWNER_DIED, SeqCst, SeqCst);
    }
}

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    /// The first link; the last one leads back here.
    first: AtomicUsize,
    /// The place where a word is from its link.
    offset: AtomicUsize,
    /// The link that is about to be put in or taken out.
    pending: AtomicUsize,
}

/// The word, and what tells the kernel of it.
pub struct Robust {
    /// A list with nothing in it, and the word *pending*.
    head: Head,
    /// The holder's number in the system; 0: nobody.
    word: AtomicU32,
}

impl Robust {
    /// Held by nobody.
    pub const fn new() -> Self {
        Self {
            head: Head {
                first: AtomicUsize::new(0),
                offset: AtomicUsize::new(0),
                pending: AtomicUsize::new(0),
            },
            word: AtomicU32::new(0),
        }
    }

    /// Takes it for the calling thread, if nobody has it who lives. Where the kernel has no such lists it is
    /// lost when its holder dies.
    pub fn take(&'static self) -> Option<Held> {
        let free = self.word.load(SeqCst);
        if free != 0 && free & OWNER_DIED == 0 {
            return None;
        }
        // The same for whoever tries.
        let head = (&raw const self.head) as usize;
        self.head.first.store(head, SeqCst);
        self.head.pending.store(self.word.as_ptr() as usize, SeqCst);
        let held = Held {
            robust: self,
            before: list(),
        };
        set_list(head);
        let taken = self.word.compare_exchange(free, id(), SeqCst, SeqCst);
        taken.is_ok().then_some(held)
    }

    /// In a forked child: who held it is not here.
    pub fn reset(&self) {
        self.word.store(0, SeqCst);
    }
}

impl Default for Robust {
    fn default() -> Self {
        Self::new()
    }
}

/// Held by the calling thread, as long as this lives.
pub struct Held {
    robust: &'static Robust,
    /// The list that the thread had.
    before: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let word = &self.robust.word;
        // Where another was faster it is that one's.
        let _ = word.compare_exchange(id(), 0, SeqCst, SeqCst);
        set_list(self.before);
    }
}

/// The calling thread's number.
fn id() -> u32 {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.id)();
    }
    thread::id()
}

/// The calling thread's list.
fn list() -> usize {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.list)();
    }
    let (mut head, mut len) = (0usize, 0usize);
    let to = [&raw mut head as c_long, &raw mut len as c_long];
    // SAFETY: writes two words that are there.
    unsafe { raw::call(libc::SYS_get_robust_list, [0, to[0], to[1], 0, 0, 0]) };
    head
}

fn set_list(head: usize) {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.set_list)(head);
    }
    let args = [head as c_long, size_of::<Head>() as c_long, 0, 0, 0, 0];
    // SAFETY: the kernel reads the structure when the thread ends: it is static, or was set before.
    unsafe { raw::call(libc::SYS_set_robust_list, args) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_dies_leaves_the_lock_to_the_next() {
        static ROBUST: Robust = Robust::new();
        let before = list();
        let held = ROBUST.take().expect("nobody has it");
        assert!(
            std::thread::spawn(|| ROBUST.take().is_none())
                .join()
                .unwrap()
        );
        drop(held);
        assert_eq!(list(), before);
        for _ in 0..3 {
            std::thread::spawn(|| {
                std::mem::forget(ROBUST.take().expect("nobody who lives has it"))
            })
            .join()
            .unwrap();
        }
        assert!(ROBUST.take().is_some());
    }
}
