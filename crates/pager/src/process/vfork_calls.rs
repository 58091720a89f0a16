//! Memory calls of a child that shares this process's memory: one of `vfork`, or of `clone` with CLONE_VM.
//!
//! Such a child may be killed at any instruction, and what it does half is left to its parent: the lock
//! taken, page map and memory at odds. So it takes no lock of ours and changes nothing that the pager knows.
//! The keeper, a thread of the parent's and at home in the same memory, makes its calls:
//!
//! 1. The child takes a [`CallSlot`] of static memory, writes its call there, says so, and waits. The kernel
//!    takes the slot back if it dies (`ebb_sys::robust`).
//! 2. The keeper makes the call as any thread would, but never waits for a transit. Then the call goes on where it was at
//!    the keeper's next turn ([`RETRY`]). Memory that was mapped or moved is registered before the answer.
//! 3. The child takes the answer. If it is dead, nobody does, and the call was made: as whole as it would
//!    be without us.
//!
//! A process has a keeper before it makes a child that lives beside it (`Pager::prepare_sharing`). Such a child waits
//! like any thread before it fills what it mapped.
//!
//! *Where no keeper attends*, as in a small process that waits in `vfork`, the process does not page, and has no page
//! anywhere but in memory: the ranges alone could be wrong. The child makes its calls itself. Memory that it maps is
//! not managed. Before it changes managed memory it *notes* the addresses: they are managed no more, as soon as a range
//! is added or the process begins to page. It notes first and looks then whether paging has begun, which is said first
//! and the notes read then: one of the two sees the other. Where all notes are taken, one grows to hold the new addresses
//! too. Memory between is managed no more, either. Where none is near enough, nothing is.
//!
//! The process of a thread is asked of the kernel, and compared with a word in a page that forked children have empty
//! (MADV_WIPEONFORK). So a child with a copy of the memory, made in whatever way, is not taken for one that shares
//! it.
//!
//! Not covered: forks of such a child, for which it takes our locks like any thread; work that the program's own
//! malloc or libc leave half done. Nor a child in a PID namespace of its own whose number there is its parent's.

use crate::process::outcome::{Outcome, RETRY};
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;
use ebb_sys::robust::Robust;
use std::cell::UnsafeCell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};
use std::time::Duration;

/// A call by which what the pager knows changes.
#[derive(Clone, Copy, Debug)]
pub enum MemoryCall {
    /// `mmap` of private anonymous memory; `filled`: see [`hooks::reserve`].
    Map {
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        filled: bool,
    },
    /// `munmap`.
    Unmap { addr: usize, len: usize },
    /// `pkey_mprotect`, with a protection and a key.
    Protect {
        addr: usize,
        len: usize,
        prot: (i32, i32),
    },
    /// `mremap`; `done`: bytes that an earlier turn has moved, of a call that is made part by part.
    Remap {
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new_addr: usize,
        done: usize,
    },
    /// `madvise`.
    Advise {
        addr: usize,
        len: usize,
        advice: i32,
    },
    /// `brk`.
    Break { addr: usize },
    /// [`hooks::exclude`], but for bringing it in.
    Exclude { start: usize, end: usize },
}

/// Where one call lies. Its owner may die at any time; `stage` holds all the same.
struct CallSlot {
    owner: Robust,
    stage: AtomicU32,
    call: UnsafeCell<MemoryCall>,
    answer: UnsafeCell<Outcome<usize>>,
}

// SAFETY: `call` is written by the owner in stage FREE, and is the keeper's in stage TAKEN. `answer` is written by
// the keeper in stage TAKEN and read by the owner in stage ANSWERED.
unsafe impl Sync for CallSlot {}

const FREE: u32 = 0;
const ASKED: u32 = 1;
const TAKEN: u32 = 2;
const ANSWERED: u32 = 3;

/// How often one who waits sees whether there is a keeper.
const LOOK: Duration = Duration::from_millis(100);
/// How long one waits for a slot before it looks again.
const SHORT: Duration = Duration::from_micros(100);

const COUNT_AT: u32 = 36;
const MOST: u64 = (1 << (64 - COUNT_AT)) - 1;
const ADDRESSES: usize = PAGE_SIZE << COUNT_AT;

/// See the module. In this order in memory: the start of each process writes the first word (`Base`).
#[repr(C)]
pub struct VforkCalls {
    /// The number of this process, in memory that forked children have empty; null before [`begin`](Self::begin).
    own_pid: AtomicPtr<AtomicU32>,
    /// Flag: the keeper makes the calls of others, as long as it lives.
    serving: AtomicBool,
    /// Slots for calls; more calls wait.
    slots: [CallSlot; 8],
    /// Addresses that are managed no more, each a word: the first page, and from bit 36 on how many.
    unmanaged: [AtomicU64; 512],
    /// Flag: all that is managed is so no more.
    all_unmanaged: AtomicBool,
    /// Flag: there are some.
    any_unmanaged: AtomicBool,
    /// Flag: the process pages, or is about to: notes have no effect any more.
    pages: AtomicBool,
}

impl VforkCalls {
    /// No call, no note.
    pub const fn new() -> Self {
        Self {
            own_pid: AtomicPtr::new(null_mut()),
            serving: AtomicBool::new(false),
            slots: [const {
                CallSlot {
                    owner: Robust::new(),
                    stage: AtomicU32::new(FREE),
                    call: UnsafeCell::new(MemoryCall::Break { addr: 0 }),
                    answer: UnsafeCell::new(Ok(0)),
                }
            }; 8],
            unmanaged: [const { AtomicU64::new(0) }; 512],
            all_unmanaged: AtomicBool::new(false),
            any_unmanaged: AtomicBool::new(false),
            pages: AtomicBool::new(false),
        }
    }

    /// Whether the process pages, or is about to.
    pub fn has_paged(&self) -> bool {
        self.pages.load(SeqCst)
    }

    /// A slot is in a stage that there is, and a note has pages.
    pub fn check(&self) {
        let stages = |slot: &CallSlot| slot.stage.load(SeqCst) <= ANSWERED;
        assert!(self.slots.iter().all(stages));
        let mut notes = self.unmanaged.iter().map(|note| note.load(SeqCst));
        assert!(notes.all(|note| note == 0 || note >> COUNT_AT > 0));
    }

    /// From now on children that share this memory are known. Where the system refuses a page they are not.
    pub fn begin(&self, kernel: &impl Kernel) {
        if let Some(own) = kernel.word_of_process() {
            // By this process, before any child of it asks.
            own.store(kernel.process(), Relaxed);
            self.own_pid.store(ptr::from_ref(own).cast_mut(), SeqCst);
        }
    }

    /// Whether the calling thread is of a child that shares this process's memory.
    pub fn is_child(&self, kernel: &impl Kernel) -> bool {
        // SAFETY: null, or a page that is never unmapped.
        let Some(own) = (unsafe { self.own_pid.load(Relaxed).as_ref() }) else {
            return false;
        };
        let here = kernel.process();
        match own.load(Relaxed) {
            0 => {
                own.store(here, Relaxed);
                false
            }
            own => own != here,
        }
    }

    /// Whether the keeper makes such calls now.
    pub fn is_served(&self, kernel: &impl Kernel) -> bool {
        self.serving.load(SeqCst) && kernel.helper_lives()
    }

    /// In the child: has the keeper make the call. None if it is not there any more.
    pub fn ask(
        &'static self,
        kernel: &impl Kernel,
        call: MemoryCall,
        wake_keeper: impl Fn(),
    ) -> Option<Outcome<usize>> {
        let idle = |slot: &CallSlot| matches!(slot.stage.load(SeqCst), FREE | ANSWERED);
        let (slot, _held) = loop {
            // The call of a dead child is done first. Looked at twice, as another may have come and died.
            let mut slots = self.slots.iter().filter(|slot| idle(slot));
            let taken = slots.find_map(|slot| Some((slot, slot.owner.take()?)));
            match taken {
                Some((slot, held)) if idle(slot) => break (slot, held),
                _ => kernel.wait_word(&AtomicU32::new(0), 0, Some(SHORT)),
            }
            if !self.is_served(kernel) {
                return None;
            }
        };
        slot.stage.store(FREE, SeqCst);
        // SAFETY: the keeper reads it after the stage says so.
        unsafe { slot.call.get().write(call) };
        slot.stage.store(ASKED, SeqCst);
        wake_keeper();
        loop {
            let stage = slot.stage.load(SeqCst);
            if stage == ANSWERED {
                // SAFETY: the keeper has written it, and is done.
                let answer = unsafe { slot.answer.get().read() };
                slot.stage.store(FREE, SeqCst);
                return Some(answer);
            }
            kernel.wait_word(&slot.stage, stage, Some(LOOK));
            let withdrawn = || {
                slot.stage
                    .compare_exchange(ASKED, FREE, SeqCst, SeqCst)
                    .is_ok()
            };
            if !self.is_served(kernel) && (withdrawn() || slot.stage.load(SeqCst) == TAKEN) {
                return None;
            }
        }
    }

    /// The keeper makes such calls from now on.
    pub fn start(&self, _kernel: &impl Kernel) {
        self.serving.store(true, SeqCst);
    }

    /// The keeper has nothing to do any more: nothing will be paged.
    pub fn stop(&self, _kernel: &impl Kernel) {
        self.serving.store(false, SeqCst);
    }

    /// In the keeper, each turn: makes the calls that were asked for. Whether some have to be made again.
    pub fn serve(
        &self,
        kernel: &impl Kernel,
        execute: impl Fn(&mut MemoryCall) -> Outcome<usize>,
    ) -> bool {
        let mut again = false;
        for slot in &self.slots {
            if slot
                .stage
                .compare_exchange(ASKED, TAKEN, SeqCst, SeqCst)
                .is_err()
            {
                continue;
            }
            // SAFETY: written by who asked, and taken: it is ours until the stage changes.
            let outcome = execute(unsafe { &mut *slot.call.get() });
            if outcome == Err(RETRY) {
                slot.stage.store(ASKED, SeqCst);
                again = true;
                continue;
            }
            // SAFETY: read by who asked after the stage says so.
            unsafe { slot.answer.get().write(outcome) };
            slot.stage.store(ANSWERED, SeqCst);
            kernel.wake_word(&slot.stage, 1);
        }
        again
    }

    /// In a forked child: nobody shares its memory yet, and its keeper is still to come.
    pub fn reset_in_child(&self, kernel: &impl Kernel) {
        self.is_child(kernel);
        self.serving.store(false, SeqCst);
        for slot in &self.slots {
            slot.owner.reset();
            slot.stage.store(FREE, SeqCst);
        }
    }

    /// In the child: notes what the call may change, so that it can be made. False if the keeper has to make it
    /// after all.
    pub fn note_unmanaged(&self, call: &MemoryCall, heap_end: usize) -> bool {
        for (start, end) in call.changes(heap_end) {
            let end = page_up(end.min(ADDRESSES));
            let (mut page, end) = ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
            while page < end {
                let count = (end - page).min(MOST);
                self.write_down(page | count << COUNT_AT);
                page += count;
            }
        }
        self.any_unmanaged.store(true, SeqCst);
        !self.pages.load(SeqCst)
    }

    fn write_down(&self, word: u64) {
        let fits = |note: &AtomicU64| {
            let taken = note.compare_exchange(0, word, SeqCst, SeqCst);
            taken.is_ok() || taken == Err(word)
        };
        while !self.unmanaged.iter().any(fits) {
            let nearest = self.unmanaged.iter().filter_map(|note| {
                let old = note.load(SeqCst);
                Some((hull(old, word)?, old, note))
            });
            let Some((both, old, note)) = nearest.min_by_key(|(both, ..)| both >> COUNT_AT) else {
                return self.all_unmanaged.store(true, SeqCst);
            };
            // Else it was read, or another child has changed it.
            if note.compare_exchange(old, both, SeqCst, SeqCst).is_ok() {
                return;
            }
        }
    }

    /// Before a range is added: what was noted is managed no more.
    pub fn apply_unmanaged(&self, state: &mut State) {
        if self.any_unmanaged.load(SeqCst) && !self.pages.load(SeqCst) {
            self.remove_unmanaged(state);
        }
    }

    /// The process begins to page: what is managed when this returns stays so.
    pub fn paging_begins(&self, state: &mut State) {
        self.pages.store(true, SeqCst);
        self.remove_unmanaged(state);
    }

    fn remove_unmanaged(&self, state: &mut State) {
        self.any_unmanaged.store(false, SeqCst);
        if self.all_unmanaged.swap(false, SeqCst) {
            state.ranges.remove(0, ADDRESSES);
        }
        for note in &self.unmanaged {
            let (start, end) = pages_of(note.swap(0, SeqCst));
            state
                .ranges
                .remove(start as usize * PAGE_SIZE, end as usize * PAGE_SIZE);
        }
    }
}

/// The first page of a note, and the page after its last.
fn pages_of(word: u64) -> (u64, u64) {
    let first = word & ((1 << COUNT_AT) - 1);
    (first, first + (word >> COUNT_AT))
}

/// A note of what two hold and what lies between, if one can hold so much.
fn hull(one: u64, other: u64) -> Option<u64> {
    let (one, other) = (pages_of(one), pages_of(other));
    let (first, end) = (one.0.min(other.0), one.1.max(other.1));
    (end - first <= MOST).then_some(first | (end - first) << COUNT_AT)
}

impl MemoryCall {
    /// Areas that may be managed and are changed.
    fn changes(&self, heap_end: usize) -> impl Iterator<Item = (usize, usize)> {
        let area = |addr: usize, len: usize| (addr, addr.saturating_add(len));
        let none = (0, 0);
        let both = match *self {
            MemoryCall::Map {
                addr, len, flags, ..
            } => match flags & libc::MAP_FIXED {
                0 => [none, none],
                _ => [area(addr, len), none],
            },
            MemoryCall::Unmap { addr, len } | MemoryCall::Protect { addr, len, .. } => {
                [area(addr, len), none]
            }
            MemoryCall::Remap {
                old,
                old_len,
                new_len,
                flags,
                new_addr,
                ..
            } => match flags & libc::MREMAP_FIXED {
                0 => [area(old, old_len), none],
                _ => [area(old, old_len), area(new_addr, new_len)],
            },
            MemoryCall::Advise { addr, len, advice } => match advice {
                libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => [none, none],
                _ => [area(addr, len), none],
            },
            MemoryCall::Break { addr: 0 } => [none, none],
            MemoryCall::Break { addr } => [(addr, heap_end.max(addr)), none],
            MemoryCall::Exclude { start, end } => [(start, end), none],
        };
        both.into_iter().filter(|(start, end)| start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::ranges::Attributes;
    use ebb_sys::system_kernel::SystemKernel;

    const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const BASE: usize = 0x5000_0000_0000;

    fn managed(state: &State, page: usize) -> bool {
        state.ranges.find(BASE + page * PAGE_SIZE).is_some()
    }

    #[test]
    fn ranges_noted_before_paging_begins_are_managed_no_more() {
        let calls = VforkCalls::new();
        let mut state = State::new();
        let all = (BASE, BASE + 64 * PAGE_SIZE);
        state.ranges.insert(all.0, all.1, Attributes::mapped(PLAIN));
        let unmap = |page: usize, pages: usize| MemoryCall::Unmap {
            addr: BASE + page * PAGE_SIZE,
            len: pages * PAGE_SIZE,
        };
        assert!(calls.note_unmanaged(&unmap(3, 2), 0));
        let drops = MemoryCall::Advise {
            addr: BASE,
            len: PAGE_SIZE,
            advice: libc::MADV_DONTNEED,
        };
        assert!(calls.note_unmanaged(&drops, 0));
        calls.apply_unmanaged(&mut state);
        let gone: Vec<_> = (0..64).filter(|&page| !managed(&state, page)).collect();
        assert_eq!(gone, [3, 4]);

        // As much as it holds, each once however often; a whole address space is a few words.
        let all = MemoryCall::Unmap {
            addr: 0,
            len: usize::MAX,
        };
        assert!(calls.note_unmanaged(&all, 0));
        let free = calls
            .unmanaged
            .iter()
            .filter(|note| note.load(SeqCst) == 0)
            .count();
        for _ in 0..2 {
            for page in 0..free {
                assert!(calls.note_unmanaged(&unmap(2 * page + 100, 1), 0));
            }
        }
        calls.apply_unmanaged(&mut state);
        assert!(!managed(&state, 60));

        let two = (BASE, BASE + 2 * PAGE_SIZE);
        state.ranges.insert(two.0, two.1, Attributes::mapped(PLAIN));
        assert!(calls.note_unmanaged(&unmap(0, 1), 0));
        calls.paging_begins(&mut state);
        assert!(!managed(&state, 0) && managed(&state, 1));
        assert!(
            !calls.note_unmanaged(&unmap(1, 1), 0),
            "the keeper has to know"
        );
        calls.apply_unmanaged(&mut state);
        assert!(managed(&state, 1));
        calls.pages.store(false, SeqCst);
        calls.apply_unmanaged(&mut state);
    }

    /// Every call is noted, however many there are; of memory that is far away most stays managed.
    #[test]
    fn more_notes_than_there_is_room_for_are_taken_together() {
        let calls = VforkCalls::new();
        let mut state = State::new();
        let pages = 4 * calls.unmanaged.len();
        let end = BASE + 2 * pages * PAGE_SIZE;
        let unmap = |start: usize| {
            let len = PAGE_SIZE;
            assert!(calls.note_unmanaged(&MemoryCall::Unmap { addr: start, len }, 0));
        };
        (0..pages)
            .rev()
            .step_by(2)
            .for_each(|page| unmap(BASE + page * PAGE_SIZE));
        state.ranges.insert(BASE, end, Attributes::mapped(PLAIN));
        calls.apply_unmanaged(&mut state);
        assert!((1..pages).step_by(2).all(|page| !managed(&state, page)));
        assert!((pages..2 * pages).all(|page| managed(&state, page)));
        assert!((0..pages).step_by(2).any(|page| managed(&state, page)));

        // None is near.
        let slots = calls.unmanaged.len();
        (0..slots).for_each(|slot| unmap(BASE + slot * PAGE_SIZE));
        unmap(PAGE_SIZE);
        calls.apply_unmanaged(&mut state);
        assert_eq!(state.ranges.count(), 0);
        calls.check();
    }

    static KERNEL: SystemKernel = SystemKernel::new();
    static CALLS: VforkCalls = VforkCalls::new();

    /// Those of `vfork` and of `clone` share this memory, those of `fork` do not.
    #[test]
    fn a_child_that_shares_memory_is_known() {
        CALLS.begin(&KERNEL);
        assert!(!CALLS.is_child(&KERNEL));
        extern "C" fn looks(_: *mut libc::c_void) -> i32 {
            i32::from(CALLS.is_child(&KERNEL))
        }
        let clone = |flags: i32| {
            let mut stack = vec![0u128; 64 << 10 >> 4];
            // SAFETY: the child has a stack of its own; where it is in this memory its parent waits until it
            // has ended.
            unsafe {
                let top = stack.as_mut_ptr_range().end;
                let flags = flags | libc::SIGCHLD;
                let child = libc::clone(looks, top.cast(), flags, std::ptr::null_mut());
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WEXITSTATUS(status)
            }
        };
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_VFORK), 1);
        assert_eq!(clone(0), 0);
    }
}
