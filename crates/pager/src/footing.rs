//! The stack under a thread of the program that forks, and holds the pager's lock meanwhile.
//!
//! Service needs the lock, so who holds it must not fault. Memory calls are made on stacks of ours
//! (`ebb_sys::stack`); a fork is libc's, on whatever stack the program has, which may lie in any memory of
//! it. So before it waits for the lock a thread says where it *stands*, and what lies around that neither
//! leaves memory nor stays protected from writes until it has let the lock go.
//!
//! Two sides, each of which says first and looks then, so that one of them sees the other:
//!
//! - the thread says where it stands; waits until no capture that was chosen before takes anything
//!   there; touches what it needs to take the lock and look around; and takes the lock.
//! - a capture says, with the lock held, which unit it takes, and passes it by if somebody stands there;
//!   who protects memory lets be written again, with the lock held, where somebody stands.
//!
//! With the lock the thread looks whether all that the fork uses is there. If not it lets the lock
//! go, has the kernel bring it in, and takes the lock again. It does not know how large a stack is: what
//! lies below may be other memory of the program, which may go at any time.

use crate::map::{Page, PageMap, PageNumber, UNIT_BYTES, UnitNumber};
use crate::service::MAX_CPUS;
use crate::sharing::{self, Sharing};
use crate::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::{futex, memory};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Bytes below that a fork uses, at most.
const BELOW: usize = 32 << 10;
/// Bytes above that it does: what it called before it took the lock.
const ABOVE: usize = 8 << 10;
/// Pages below that it takes to get the lock and look around.
const FIRST: usize = 3;
/// How often what is missing is brought in: where that does not help, nothing does.
const TRIES: u32 = 1000;

/// Where threads stand: an address on each one's stack, 0 for none.
static STANDING: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// Units that captures take, each its first address, 0 for none. The keeper captures too.
static LEAVING: [AtomicUsize; MAX_CPUS + 2] = [const { AtomicUsize::new(0) }; MAX_CPUS + 2];

/// Never changes: to wait for a moment, which libc's way would make a point of cancellation.
static NOTHING: AtomicU32 = AtomicU32::new(0);

/// In a forked child: nobody but the calling thread is there.
pub fn alone() {
    for slot in STANDING.iter().chain(&LEAVING) {
        slot.store(0, SeqCst);
    }
}

fn around(stack: usize) -> Range<usize> {
    stack.saturating_sub(BELOW)..stack + ABOVE
}

fn takes(unit: usize, stack: usize) -> bool {
    let around = around(stack);
    unit != 0 && stack != 0 && unit < around.end && unit + UNIT_BYTES > around.start
}

/// A capture of a unit, said as long as this lives.
pub struct Leaving(&'static AtomicUsize);

impl Leaving {
    /// None if somebody stands there. With the lock held.
    pub fn say(unit: UnitNumber) -> Option<Self> {
        let unit = unit.first().address();
        let free = LEAVING.iter().find(|slot| slot.load(SeqCst) == 0)?;
        free.store(unit, SeqCst);
        let said = Self(free);
        let stands = |at: &AtomicUsize| takes(unit, at.load(SeqCst));
        (!STANDING.iter().any(stands)).then_some(said)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

/// Calls `f` for what must be writable, of all that somebody stands on. With the lock held.
pub fn each_standing(mut f: impl FnMut(Range<usize>)) {
    for at in &STANDING {
        match at.load(SeqCst) {
            0 => {}
            stack => f(around(stack)),
        }
    }
}

/// Where the calling thread stands, said as long as this lives.
pub struct Footing {
    stack: usize,
    place: Option<&'static AtomicUsize>,
    /// What of its stack was not there, or might not be written.
    missing: Range<usize>,
    /// The protections there had been when all of it was touched.
    touched: Option<u32>,
    tries: u32,
}

impl Footing {
    /// Of the calling thread, which is about to take the lock.
    pub fn here() -> Self {
        let local = 0u8;
        let stack = &raw const local as usize;
        let start = stack / PAGE_SIZE % STANDING.len();
        let mut places = STANDING[start..].iter().chain(&STANDING[..start]);
        let free = |at: &&AtomicUsize| at.compare_exchange(0, stack, SeqCst, SeqCst).is_ok();
        let footing = Self {
            stack,
            // So many threads at a time: the others rely on their stacks being what they should.
            place: places.find(free),
            missing: 0..0,
            touched: None,
            tries: 0,
        };
        while LEAVING.iter().any(|unit| takes(unit.load(SeqCst), stack)) {
            // Who takes it is idle work, and needs a processor to get done.
            futex::wait(&NOTHING, 0, Some(Duration::from_micros(50)), false);
        }
        touch_below();
        footing
    }

    /// Whether the thread can use its stack without a fault, as long as it holds the lock.
    pub fn holds(&mut self, state: &State) -> bool {
        if state.bays.is_none() {
            // Nothing has left yet.
            return true;
        }
        let Some(range) = state
            .ranges
            .find(self.stack)
            .filter(|r| r.attributes.evictable())
        else {
            return true;
        };
        let around = around(self.stack);
        let start = around.start.max(range.start) & !(PAGE_SIZE - 1);
        self.missing = start..around.end.min(range.end);
        let writable =
            state.sharing == Sharing::Alone || self.touched == Some(sharing::protections());
        let mut pages = self.missing.clone().step_by(PAGE_SIZE);
        self.tries += 1;
        writable && pages.all(|at| there(&state.map, at)) || self.tries > TRIES
    }

    /// Brings what was missing in, without the lock.
    pub fn bring(&mut self) {
        self.touched = Some(sharing::protections());
        for at in self.missing.clone().step_by(PAGE_SIZE) {
            // What is not the program's any more, or may not be written, is not of this stack.
            // SAFETY: populating changes no content.
            let _ = unsafe { memory::madvise(at, PAGE_SIZE, libc::MADV_POPULATE_WRITE) };
        }
    }
}

impl Drop for Footing {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, SeqCst);
        }
    }
}

/// A page with a clean copy may not be written. One whose data is lost is not used by who runs on.
fn there(map: &PageMap, at: usize) -> bool {
    let page = map.get(PageNumber::of(at));
    matches!(page, Page::Resident(None) | Page::Poisoned)
}

/// Has the next pages of the stack there, as any function with so large a frame would.
#[inline(never)]
fn touch_below() {
    let mut frame = [const { MaybeUninit::<u8>::uninit() }; FIRST * PAGE_SIZE];
    for page in frame.chunks_mut(PAGE_SIZE) {
        // SAFETY: a byte of a local array; volatile, so that it is written.
        unsafe { page.as_mut_ptr().write_volatile(MaybeUninit::new(1)) };
    }
    std::hint::black_box(&frame);
}
