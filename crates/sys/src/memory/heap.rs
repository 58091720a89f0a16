//! [`InternalHeap`]: the allocator of ebbtide's own structures inside a managed process.
//!
//! It is the `#[global_allocator]` of the preload library. Everything the pager and the engine keep lives
//! here, so it must never be paged. Its memory is mapped by [`own`](super::own), never by libc's `mmap`
//! symbol, whose memory is managed.
//!
//! - Requests under [`DIRECT_MIN`] come from one dlmalloc arena under one lock.
//! - Larger ones are mapped one by one and unmapped when freed, so that a table that is
//!   dropped gives its memory back at once. Zeroed ones are fresh pages and are not written:
//!   a sparse table costs what is used of it.
//! - dlmalloc gives back only the end of its memory; free blocks before that stay the arena's.
//!   [`InternalHeap::give_back`] allocates those blocks while the arena may not grow, has the kernel drop
//!   their pages, and frees them again.
//!
//! The lock survives `fork`: [`InternalHeap::lock_for_fork`] takes it in the parent, and
//! parent and child each release their copy. Its holder never waits for another thread and
//! never touches managed memory, so a service thread may allocate.
//!
//! Where the system has no memory for it, the caller waits, without the heap's lock. A memory cgroup may refuse for a
//! while what the kernel needs for a mapping. The caller may hold locks of the engine or the pager, so all of the process may
//! wait; without that it would end at once. Null is the answer after that, with which most of our callers end the process.
//!
//! Not here: the program's `malloc`, returning small memory at once, thread-locals.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use rustix::process::{Resource, getrlimit};
use std::time::Duration;

use crate::kernel::clock;
use crate::kernel::tasks::may_hold_lock_of_service;
use crate::memory::futex_lock::FutexLock;
use crate::memory::own::OWN;
use crate::memory::{self, PAGE, page_up};

/// Requests of this many bytes and more are mapped directly.
pub const DIRECT_MIN: usize = 64 << 10;

/// Direct maps of this size and more ask for no transparent huge pages: a sparse table
/// would otherwise cost 2 MiB for each entry touched.
const HUGE_PAGE: usize = 2 << 20;

const _: () = assert!(DIRECT_MIN.is_multiple_of(PAGE));

/// Free memory goes back in pieces of this many bytes, then of an eighth less each time, down to two pages. An edge of
/// each stays, with what dlmalloc notes there: so a block that is free is taken in few pieces.
const PIECE: usize = 1 << 20;

/// dlmalloc's own.
const PIECE_ALIGN: usize = 16;

/// How long a caller waits for memory of the system's, and after what time it asks again.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(10);

/// A free block taken out of the arena to be given back.
struct Piece {
    next: *mut Piece,
    size: usize,
}

/// Less than this that was freed is not worth the system calls.
const WORTH: usize = 32 << 10;

/// The heap; a unit value, as its state is one per process. See the module's text.
pub struct InternalHeap;

impl InternalHeap {
    /// Gives the system the free memory of the arena, if enough was freed since the last time: a fourth of
    /// the memory in use then, and at least 32 KiB. Bytes given back, of pages that may have gone before.
    /// The child of a fork meanwhile has lost what is out then: addresses.
    pub fn give_back() -> usize {
        if !ARENA.with(|arena| arena.is_worth()) {
            return 0;
        }
        let mut taken: *mut Piece = ptr::null_mut();
        let (mut size, mut bytes) = (PIECE, 0);
        while size >= 2 * PAGE {
            let piece = ARENA.with(|arena| arena.take_free(size)).cast::<Piece>();
            if piece.is_null() {
                size -= (size / 8).max(PIECE_ALIGN) / PIECE_ALIGN * PIECE_ALIGN;
                continue;
            }
            // The next one's address stands in its first bytes, which stay.
            // SAFETY: a block of dlmalloc's of this size is aligned for two words, and ours.
            unsafe { piece.write(Piece { next: taken, size }) };
            taken = piece;
            let from = page_up(piece as usize + size_of::<Piece>());
            let to = (piece as usize + size) & !(PAGE - 1);
            // SAFETY: these pages lie in the block, where nobody keeps anything.
            if unsafe { memory::madvise(from, to - from, libc::MADV_DONTNEED) }.is_ok() {
                bytes += to - from;
            }
        }
        while !taken.is_null() {
            // SAFETY: as written above; each is freed once.
            unsafe {
                let Piece { next, size } = taken.read();
                ARENA.with(|arena| arena.heap.free(taken.cast(), size, PIECE_ALIGN));
                taken = next;
            }
        }
        bytes
    }

    /// Takes the heap's lock so that a fork finds the arena whole. Nothing may be allocated
    /// on this thread until [`unlock_in_parent`](Self::unlock_in_parent) or
    /// [`unlock_in_child`](Self::unlock_in_child).
    pub fn lock_for_fork() {
        ARENA.lock.acquire();
        OWN.lock_for_fork();
    }

    /// Releases the lock in the parent after the fork.
    ///
    /// # Safety
    /// The calling thread holds the lock by [`lock_for_fork`](Self::lock_for_fork).
    pub unsafe fn unlock_in_parent() {
        OWN.unlock_in_parent();
        ARENA.lock.release();
    }

    /// Releases the lock in the child after the fork.
    ///
    /// # Safety
    /// The calling thread is the child's copy of one that holds the lock by
    /// [`lock_for_fork`](Self::lock_for_fork).
    pub unsafe fn unlock_in_child() {
        OWN.unlock_in_child();
        ARENA.lock.release();
    }
}

/// Gives the system what is free in libc's own heap.
pub fn give_back_libc() {
    // SAFETY: it may be called at any time.
    unsafe { libc::malloc_trim(0) };
}

/// `malloc` and its siblings for C code that runs on a thread of ours: blocks with their size
/// before them.
pub mod c {
    use super::*;

    const HEAD: usize = 16;

    fn layout(size: usize, align: usize) -> Option<(Layout, usize)> {
        let head = HEAD.max(align);
        Some((
            Layout::from_size_align(size.checked_add(head)?, head).ok()?,
            head,
        ))
    }

    /// A block of zeros, or null. `align`: a power of two.
    pub fn alloc(size: usize, align: usize) -> *mut u8 {
        let Some((layout, head)) = layout(size, align) else {
            return ptr::null_mut();
        };
        // SAFETY: the layout is not empty; the head has room for two words before the block.
        unsafe {
            let base = InternalHeap.alloc_zeroed(layout);
            if base.is_null() {
                return base;
            }
            let block = base.add(head);
            block.cast::<usize>().sub(1).write(size);
            block.cast::<usize>().sub(2).write(align);
            block
        }
    }

    /// The size that was asked for. Requires: a block of `alloc`.
    pub unsafe fn size(block: *mut u8) -> usize {
        // SAFETY: written by `alloc`.
        unsafe { block.cast::<usize>().sub(1).read() }
    }

    /// Gives a block up. Requires: a block of `alloc`, used by nobody any more.
    pub unsafe fn free(block: *mut u8) {
        // SAFETY: written by `alloc`, which made the layout in the same way.
        unsafe {
            let align = block.cast::<usize>().sub(2).read();
            if let Some((layout, head)) = layout(size(block), align) {
                InternalHeap.dealloc(block.sub(head), layout);
            }
        }
    }

    /// Another size, content kept. Requires: a block of `alloc`.
    pub unsafe fn realloc(block: *mut u8, new: usize) -> *mut u8 {
        let moved = alloc(new, HEAD);
        if !moved.is_null() {
            // SAFETY: two blocks of at least the lesser size.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, size(block).min(new));
                free(block);
            }
        }
        moved
    }
}

// SAFETY: blocks come from dlmalloc or from fresh maps, with the size and alignment of the layout. The
// layout alone decides which of the two, and `dealloc` is given the same one.
unsafe impl GlobalAlloc for InternalHeap {
    // Beside the library's constructor, which calls it in every process.
    #[unsafe(link_section = ".text.startup")]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a layout that is not empty, by the caller's contract.
        unsafe { allocate(layout, false) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_direct(layout.size()) {
            // SAFETY: such a block is a map of its own, of this length.
            return unsafe { unmap(block, page_up(layout.size())) };
        }
        // SAFETY: the block came from this arena with this layout, by the caller's contract.
        ARENA.with(|arena| unsafe { arena.free(block, layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe { allocate(layout, true) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (old_direct, new_direct) = (is_direct(layout.size()), is_direct(new_size));
        if !old_direct && !new_direct {
            // SAFETY: the block came from this arena with this layout, and is still there where the answer is null.
            let grow = || ARENA.with(|arena| unsafe { arena.realloc(block, layout, new_size) });
            return patiently(grow);
        }
        if old_direct && new_direct && layout.align() <= PAGE {
            // SAFETY: the block is a map of its own, of this length, and is still there where the answer is null.
            return patiently(|| unsafe {
                remap(block, page_up(layout.size()), page_up(new_size))
            });
        }
        // SAFETY: the new size is not zero and, rounded up to the alignment, does not
        // overflow, by the caller's contract.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: a layout of non-zero size, as just said.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks hold at least the smaller of the sizes and differ.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size)) };
            // SAFETY: the caller gives the old block up with its layout.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

/// # Safety
/// A layout that is not empty.
#[inline(always)] // It is `alloc` itself, which has its place.
unsafe fn allocate(layout: Layout, zeroed: bool) -> *mut u8 {
    // SAFETY: the caller's contract.
    patiently(|| unsafe { allocate_once(layout, zeroed) })
}

/// # Safety
/// A layout that is not empty.
#[inline(never)]
#[unsafe(link_section = ".text.startup")]
unsafe fn allocate_once(layout: Layout, zeroed: bool) -> *mut u8 {
    match is_direct(layout.size()) {
        true => map_aligned(layout),
        // SAFETY: by the caller's contract.
        false => ARENA.with(|arena| unsafe { arena.alloc(layout, zeroed) }),
    }
}

/// The answer of `ask`, which is null only after [`PATIENCE`].
#[inline]
fn patiently(ask: impl Fn() -> *mut u8) -> *mut u8 {
    let block = ask();
    // Limits of the program's stay.
    if block.is_null() && !is_limited() {
        return ask_again(&ask);
    }
    block
}

#[cold]
#[inline(never)]
fn ask_again(ask: &dyn Fn() -> *mut u8) -> *mut u8 {
    let begin = clock::monotonic_ns();
    let waited = || Duration::from_nanos(clock::monotonic_ns() - begin);
    loop {
        clock::sleep(STEP);
        let block = ask();
        if !block.is_null() || waited() > PATIENCE {
            return block;
        }
    }
}

/// Whether the program has a limit of addresses or of data (`ulimit -v`, `-d`).
#[cold]
#[inline(never)]
pub fn is_limited() -> bool {
    let limits = [Resource::As, Resource::Data].map(getrlimit);
    limits.iter().any(|limit| limit.current.is_some())
}

fn is_direct(size: usize) -> bool {
    size >= DIRECT_MIN
}

/// A fresh zeroed map for `layout`, or null.
fn map_aligned(layout: Layout) -> *mut u8 {
    let size = page_up(layout.size());
    if layout.align() <= PAGE {
        return map(size);
    }
    let Some(padded) = size.checked_add(layout.align()) else {
        return ptr::null_mut();
    };
    let base = map(padded);
    if base.is_null() {
        return base;
    }
    let head = base.align_offset(layout.align());
    let tail = padded - head - size;
    // SAFETY: head, block and tail partition the map just made; head and tail are ours.
    unsafe {
        let block = base.add(head);
        unmap(base, head);
        unmap(block.add(size), tail);
        block
    }
}

fn map(size: usize) -> *mut u8 {
    let Ok(at) = memory::reserve(size) else {
        return ptr::null_mut();
    };
    if size >= HUGE_PAGE {
        // Advice only: where it is refused the map still serves.
        // SAFETY: the range is the map just made.
        let _ = unsafe { memory::madvise(at, size, libc::MADV_NOHUGEPAGE) };
    }
    at as *mut u8
}

/// # Safety
/// `block..block + size` is a page-aligned range of a map of this heap that nothing uses.
unsafe fn unmap(block: *mut u8, size: usize) {
    if size == 0 {
        return;
    }
    // Refused, it stays mapped, and nothing uses it.
    // SAFETY: the caller gives the range up.
    let _ = unsafe { memory::release(block as usize, size) };
}

/// # Safety
/// `block..block + old` is a whole map of this heap; the caller forgets the old address.
unsafe fn remap(block: *mut u8, old: usize, new: usize) -> *mut u8 {
    // SAFETY: the range is the caller's, and may move.
    let at = unsafe { OWN.remap(block as usize, old, new) };
    let Ok(at) = at else {
        return ptr::null_mut();
    };
    at as *mut u8
}

/// dlmalloc's source of memory.
struct RawMaps {
    /// Flag: it gets none for now.
    closed: bool,
}

// SAFETY: every answer is a fresh private map of the size named, or null.
unsafe impl dlmalloc::Allocator for RawMaps {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let at = match self.closed {
            true => ptr::null_mut(),
            false => map(size),
        };
        (at, if at.is_null() { 0 } else { size }, 0)
    }

    fn remap(&self, block: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        if !can_move {
            return ptr::null_mut();
        }
        // SAFETY: dlmalloc names a whole segment that it got from `alloc`.
        unsafe { remap(block, old, new) }
    }

    fn free_part(&self, block: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: dlmalloc gives up the tail of a segment that it got from `alloc`.
        unsafe { unmap(block.add(new), old - new) };
        true
    }

    fn free(&self, block: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc gives up a segment that it got from `alloc`.
        unsafe { unmap(block, size) };
        true
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// Bytes of the library's own data that the first blocks come from: what every process has to note as it starts. A
/// small process has no other.
const FIRST: usize = 1 << 10;

/// The bytes of blocks that are never used again once they are freed. Their users have pointers to them, so no
/// reference covers them.
#[repr(C, align(16))]
struct FirstBytes(UnsafeCell<[u8; FIRST]>);

/// The part of [`FirstBytes`] that is given out.
struct First {
    used: usize,
}

impl First {
    fn start() -> *mut u8 {
        ARENA.first.0.get().cast()
    }

    /// A block, zeroed, as long as there is room.
    fn alloc(&mut self, layout: Layout) -> Option<*mut u8> {
        let free = Self::start().wrapping_add(self.used);
        let at = self.used + free.align_offset(layout.align());
        let end = at.checked_add(layout.size()).filter(|end| *end <= FIRST)?;
        self.used = end;
        Some(Self::start().wrapping_add(at))
    }

    fn has(block: *mut u8) -> bool {
        (block as usize).wrapping_sub(Self::start() as usize) < FIRST
    }
}

/// dlmalloc, and what of it is in use.
struct Small {
    first: First,
    heap: dlmalloc::Dlmalloc<RawMaps>,
    /// Bytes that were asked for and are not freed.
    used: usize,
    /// The most of them since free memory was given back.
    most: usize,
}

impl Small {
    fn uses(&mut self, used: usize) {
        self.used = used;
        self.most = self.most.max(used);
    }

    /// # Safety
    /// A layout that is not empty.
    unsafe fn alloc(&mut self, layout: Layout, zeroed: bool) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if let Some(block) = self.first.alloc(layout) {
            return block;
        }
        // SAFETY: dlmalloc takes any size with a power-of-two alignment, as a layout has.
        let block = unsafe {
            match zeroed {
                true => self.heap.calloc(size, align),
                false => self.heap.malloc(size, align),
            }
        };
        if !block.is_null() {
            self.uses(self.used + size);
        }
        block
    }

    /// # Safety
    /// The block came from here with this layout, and nothing uses it.
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        if First::has(block) {
            return;
        }
        self.used -= layout.size();
        // SAFETY: by the caller's contract.
        unsafe { self.heap.free(block, layout.size(), layout.align()) }
    }

    /// # Safety
    /// The block came from here with this layout; the caller forgets it if the result is not null.
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if First::has(block) {
            // SAFETY: an alignment that there is; the caller names a size that is not zero.
            let layout = unsafe { Layout::from_size_align_unchecked(new, align) };
            // SAFETY: as just said; both blocks hold at least the smaller of the sizes, and differ.
            unsafe {
                let moved = self.alloc(layout, false);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, size.min(new));
                }
                return moved;
            }
        }
        // SAFETY: by the caller's contract.
        let moved = unsafe { self.heap.realloc(block, size, align, new) };
        if !moved.is_null() {
            self.uses(self.used - size + new);
        }
        moved
    }

    /// Whether giving back is worth it; from now on what is freed is counted anew.
    fn is_worth(&mut self) -> bool {
        let freed = self.most - self.used;
        let worth = freed >= WORTH.max(self.used / 4);
        if worth {
            self.most = self.used;
        }
        worth
    }

    /// A block of `size` bytes out of what there is, or null.
    fn take_free(&mut self, size: usize) -> *mut u8 {
        self.heap.allocator_mut().closed = true;
        // SAFETY: any size and alignment will do.
        let block = unsafe { self.heap.malloc(size, PIECE_ALIGN) };
        self.heap.allocator_mut().closed = false;
        block
    }
}

struct Arena {
    lock: FutexLock,
    first: FirstBytes,
    state: UnsafeCell<Small>,
}

/// One for the process: a global allocator has no value that could own it.
static ARENA: Arena = Arena {
    lock: FutexLock::new(),
    first: FirstBytes(UnsafeCell::new([0; FIRST])),
    state: UnsafeCell::new(Small {
        first: First { used: 0 },
        heap: dlmalloc::Dlmalloc::new_with_allocator(RawMaps { closed: false }),
        used: 0,
        most: 0,
    }),
};

// SAFETY: `state` is reached only by `with`, under `lock`; of `first` there are only pointers, and each block is of one
// user.
unsafe impl Sync for Arena {}

impl Arena {
    fn with<T>(&self, work: impl FnOnce(&mut Small) -> T) -> T {
        debug_assert!(may_hold_lock_of_service());
        self.lock.acquire();
        // SAFETY: the lock makes this the only reference; `work` cannot panic and is not
        // re-entered, as dlmalloc allocates nothing itself.
        let result = work(unsafe { &mut *self.state.get() });
        self.lock.release();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// One of so many bytes is looked at.
    const STEP: usize = if cfg!(miri) { 509 } else { 1 };

    /// The heap is one for the process: what one test frees another would count.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// The system refuses some times, and gives at last.
    #[test]
    fn memory_that_is_refused_for_a_while_is_waited_for() {
        let asked = std::cell::Cell::new(0);
        let mut given = 0u8;
        let at = &raw mut given;
        let block = patiently(|| match asked.replace(asked.get() + 1) {
            0..5 => ptr::null_mut(),
            _ => at,
        });
        assert_eq!((block, asked.get()), (at, 6));
    }

    /// Grows and shrinks a block through every pair of the paths and compares its bytes.
    #[test]
    fn realloc_keeps_bytes_across_the_threshold() {
        let _alone = alone();
        let sizes = [1, 100, 4000, DIRECT_MIN - 1, DIRECT_MIN, 3 * DIRECT_MIN + 5];
        // Miri unmaps a mapping as a whole alone, and larger alignments cut theirs.
        let aligns = [1, 16, 64, PAGE, 4 * PAGE];
        for &align in &aligns[..if cfg!(miri) { 3 } else { 5 }] {
            for &from in &sizes {
                for &to in &sizes {
                    // SAFETY: sizes are not zero; each block is freed once with its layout.
                    unsafe {
                        let old = InternalHeap.alloc(layout(from, align));
                        assert!(!old.is_null() && old.align_offset(align) == 0);
                        for at in (0..from).step_by(STEP) {
                            *old.add(at) = (at * 31 + from) as u8;
                        }
                        let new = InternalHeap.realloc(old, layout(from, align), to);
                        assert!(!new.is_null() && new.align_offset(align) == 0);
                        for at in (0..from.min(to)).step_by(STEP) {
                            assert_eq!(*new.add(at), (at * 31 + from) as u8);
                        }
                        InternalHeap.dealloc(new, layout(to, align));
                    }
                }
            }
        }
    }

    #[test]
    fn zeroed_blocks_are_zero_after_reuse() {
        let _alone = alone();
        for size in [24, 5000, DIRECT_MIN, 1 << 20] {
            for _ in 0..8 {
                // SAFETY: as above.
                unsafe {
                    let block = InternalHeap.alloc_zeroed(layout(size, 8));
                    assert!((0..size).step_by(STEP).all(|at| *block.add(at) == 0));
                    block.write_bytes(0xa5, size);
                    InternalHeap.dealloc(block, layout(size, 8));
                }
            }
        }
    }

    /// Whether a page is in memory; one that is mapped no more is not.
    fn is_resident(page: usize) -> bool {
        let mut seen = 0u8;
        // SAFETY: the kernel writes a byte for the one page.
        let told = unsafe { libc::mincore(page as *mut _, PAGE, &raw mut seen) };
        told == 0 && seen & 1 == 1
    }

    /// Of 32 MiB every hundredth block stays, and is what it was; of the rest's pages few stay.
    #[test]
    #[cfg_attr(miri, ignore = "it asks the kernel for what is resident")]
    fn free_memory_among_used_memory_goes_back() {
        let _alone = alone();
        let block = layout(2400, 64);
        let blocks: Vec<usize> = (0..14_000)
            .map(|i| {
                // SAFETY: a block of this size.
                unsafe {
                    let at = InternalHeap.alloc(block);
                    at.write_bytes(i as u8, block.size());
                    at as usize
                }
            })
            .collect();
        let mut pages: Vec<usize> = blocks.iter().map(|at| at & !(PAGE - 1)).collect();
        pages.sort_unstable();
        pages.dedup();
        let resident = || pages.iter().filter(|&&page| is_resident(page)).count();
        assert_eq!(resident(), pages.len());
        let (kept, gone): (Vec<_>, Vec<_>) = (0..blocks.len()).partition(|i| i % 100 == 0);
        for &i in &gone {
            // SAFETY: each is freed once with its layout.
            unsafe { InternalHeap.dealloc(blocks[i] as *mut u8, block) };
        }
        assert!(InternalHeap::give_back() > 24 << 20);
        // A block that stays holds one page or two, and so do the edges about it.
        let stay = resident();
        assert!(
            stay < 5 * kept.len(),
            "{stay} of {} pages stay",
            pages.len()
        );
        assert_eq!(InternalHeap::give_back(), 0, "nothing was freed since");
        // New blocks in the same memory are whole.
        let again = [layout(300, 16), layout(40_000, 16), block].map(|layout| {
            // SAFETY: as above.
            unsafe {
                let at = InternalHeap.alloc(layout);
                at.write_bytes(0xee, layout.size());
                (at, layout)
            }
        });
        for &i in &kept {
            // SAFETY: as above.
            unsafe {
                let at = blocks[i] as *mut u8;
                assert!((0..block.size()).all(|byte| *at.add(byte) == i as u8));
                InternalHeap.dealloc(at, block);
            }
        }
        for (at, layout) in again {
            // SAFETY: as above.
            unsafe { InternalHeap.dealloc(at, layout) };
        }
    }

    #[test]
    fn threads_share_the_arena_and_a_fork_finds_it_whole() {
        let _alone = alone();
        let workers: Vec<_> = (0..4u8)
            .map(|tag| {
                std::thread::spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..if cfg!(miri) { 100 } else { 4000usize } {
                        let size = 1 + (round * 97 + tag as usize * 13) % 3000;
                        // SAFETY: as above; the block is this thread's.
                        unsafe {
                            let block = InternalHeap.alloc(layout(size, 16));
                            block.write_bytes(tag, size);
                            kept.push((block, size));
                        }
                        if kept.len() > 64 {
                            let (block, size) = kept.swap_remove(round % 64);
                            // SAFETY: the block holds `size` bytes written above.
                            unsafe {
                                assert!((0..size).step_by(STEP).all(|at| *block.add(at) == tag));
                                InternalHeap.dealloc(block, layout(size, 16));
                            }
                        }
                    }
                    for (block, size) in kept {
                        // SAFETY: as above.
                        unsafe { InternalHeap.dealloc(block, layout(size, 16)) };
                    }
                })
            })
            .collect();
        // Miri forks no process.
        for _ in 0..if cfg!(miri) { 0 } else { 20 } {
            InternalHeap::lock_for_fork();
            // SAFETY: the child uses nothing but this heap and _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the copy of this thread holds the lock; alarm bounds a hang; the block is freed with
                // its layout.
                unsafe {
                    InternalHeap::unlock_in_child();
                    libc::alarm(10);
                    let block = InternalHeap.alloc(layout(1000, 8));
                    InternalHeap.dealloc(block, layout(1000, 8));
                    libc::_exit(0);
                }
            }
            // SAFETY: this thread holds the lock.
            unsafe { InternalHeap::unlock_in_parent() };
            let mut status = -1;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0, "the child could not allocate after the fork");
        }
        for worker in workers {
            worker.join().unwrap();
        }
    }
}
