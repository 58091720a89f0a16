//! Putting pages into place: by copy, where the kernel fills new pages from a buffer, or by moving
//! staging frames there, which allocates nothing.
//!
//! The lock need not be held: pages in transit are the thread's that brings them. Who waits for them
//! is woken by the caller, or by the move itself, which saves a system call (5% of a fault served from
//! the pool). The woken thread takes the processor at once, so what is left to do is done when it
//! faults or waits again: the pages are in transit until then. What the program changes meanwhile
//! without libc (maps over, unmaps) is its wish, and counted.

use crate::bays::Taken;
use crate::map::PageNumber;
use crate::process::Process;
use crate::references;
use crate::state::State;
use arrayvec::ArrayVec;
use ebb_engine::{PAGE_SIZE, PageBytes};
use ebb_sys::Errno;

/// When who waits for the pages is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    /// By the caller, after this.
    Later,
    /// By the move.
    AtOnce,
}

impl Process {
    /// Puts copies of `content` where pages are missing; wakes nobody.
    pub fn place_copy(&self, first: PageNumber, content: &[PageBytes]) {
        let (mut at, mut one) = (0, false);
        while at < content.len() {
            let end = if one { at + 1 } else { content.len() };
            let (done, result) = self.copy(first.plus(at).address(), &content[at..end]);
            at += done / PAGE_SIZE;
            match result {
                Ok(()) => one = false,
                Err(Errno(libc::EAGAIN)) => {}
                Err(Errno(libc::ENOMEM)) => std::thread::yield_now(),
                // A range may be several mappings to the kernel, and no copy crosses from one to
                // the next: nothing of it was done, so the first page alone says what is wrong.
                Err(_) if end - at > 1 => one = true,
                // Mapped over or unmapped without libc: what is there now is the program's wish.
                Err(Errno(libc::EEXIST | libc::ENOENT)) => {
                    self.counters().map_disagrees.add(1);
                    (at, one) = (at + 1, false);
                }
                Err(error) => self.fail(&format!(
                    "the page at {:#x} could not be put into place: {error:?}",
                    first.plus(at).address()
                )),
            }
        }
    }

    pub fn copy(&self, to: usize, content: &[PageBytes]) -> (usize, Result<(), Errno>) {
        self.fault.copy(to, content.as_flattened())
    }

    /// Moves filled frames into place; they are gone then.
    pub fn place_move(&self, first: PageNumber, taken: Taken, waking: Waking) {
        let (mut at, mut woken) = (0, waking == Waking::AtOnce);
        while at < taken.frames {
            let (to, from) = (first.plus(at).address(), taken.address + at * PAGE_SIZE);
            // SAFETY: the frames are ours and hold what these pages shall hold.
            let (done, result) = unsafe {
                let bytes = (taken.frames - at) * PAGE_SIZE;
                self.fault.shift(to, from, bytes, waking == Waking::AtOnce)
            };
            at += done / PAGE_SIZE;
            woken &= result.is_ok();
            match result {
                Ok(()) => {}
                Err(Errno(libc::EAGAIN)) if done > 0 => {}
                // The frame was there: it was moved (`FaultFd::shift`).
                Err(Errno(libc::EEXIST)) if !self.there(from) && self.there(to) => at += 1,
                Err(_) => {
                    // A frame that cannot be moved (the range changed under us): copy it, and let
                    // the frame go.
                    // SAFETY: the frame is present and nobody writes it.
                    let content =
                        unsafe { &*((taken.address + at * PAGE_SIZE) as *const PageBytes) };
                    self.place_copy(first.plus(at), std::slice::from_ref(content));
                    self.drop_frames(taken.address + at * PAGE_SIZE, 1);
                    at += 1;
                }
            }
        }
        if waking == Waking::AtOnce && !woken {
            self.wake(first, taken.frames);
        }
    }

    fn there(&self, address: usize) -> bool {
        self.pagemap.look(address, 1).present != 0
    }

    /// Drops frames that are taken, or counted by no bay any more.
    pub fn drop_frames(&self, address: usize, frames: usize) {
        // SAFETY: the frames hold nothing that anybody needs.
        let _ =
            unsafe { ebb_sys::memory::madvise(address, frames * PAGE_SIZE, libc::MADV_DONTNEED) };
    }
}

/// Free frames for the pages of one load, from a few bays.
pub struct Frames(ArrayVec<Taken, BAYS>);

/// Bays that a load may take frames from: another one is another move, which costs less than
/// another fault.
const BAYS: usize = 4;

impl Frames {
    pub fn count(&self) -> usize {
        self.0.iter().map(|run| run.frames).sum()
    }

    /// None of them is there any more: moved into place or dropped.
    pub fn placed(&self, state: &mut State) {
        let bays = state
            .bays
            .as_mut()
            .expect("frames come from a staging area");
        self.0.iter().for_each(|run| bays.placed(*run));
    }

    /// Each run of frames, and the number of its first page.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Taken)> {
        self.0.iter().scan(0, |at, run| {
            let start = *at;
            *at += run.frames;
            Some((start, *run))
        })
    }

    /// The address of the frame for page `i`.
    pub fn address(&self, i: usize) -> usize {
        let (start, run) = self
            .runs()
            .find(|(start, run)| i < start + run.frames)
            .expect("as many frames as pages");
        run.address + (i - start) * PAGE_SIZE
    }
}

/// Frames for up to `pages` pages, if there are any that may be filled.
pub fn take(state: &mut State, pages: usize) -> Option<Frames> {
    if references::lent() {
        return None;
    }
    let bays = state.bays.as_mut()?;
    let mut frames = Frames(ArrayVec::new());
    let mut missing = pages;
    while missing > 0
        && !frames.0.is_full()
        && let Some(run) = bays.take(missing)
    {
        missing -= run.frames;
        frames.0.push(run);
    }
    (missing < pages).then_some(frames)
}
