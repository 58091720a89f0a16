//! Memory for keys: one area a process, out of the way of whatever copies memory elsewhere.
//!
//! The area is left out of core dumps (MADV_DONTDUMP) and locked page by page as it comes into use, so that
//! no kernel swap takes it. A secret is wiped when it is dropped, and making it leaves no copy on the
//! stack. A forked child has a copy of the area, as of all memory, but no lock on it: [`relock`] takes that
//! again. The area's lock is taken across a fork ([`lock_for_fork`]): a keeper makes keys before its process pages, when
//! forks do not wait for it.
//!
//! Not here:
//! - Keep what runs in the process from reading it, nor whoever may read the process's memory (ptrace,
//!   `/proc/PID/mem`): those have the pages that the keys protect, too.
//! - Wipe by itself at the end of a process: whoever keeps a secret drops it when it serves nobody any
//!   more. Of a process that is killed the kernel clears a page before it gives it to another.
//! - `memfd_secret`: its memory is shared by a process and its forked children, which shall not see each
//!   other's keys, and while there is any, no machine can hibernate.

use crate::futex_lock::FutexLock;
use crate::{Errno, memory};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use zeroize::Zeroize;

/// The unit of allocation: a cache line.
const GRAIN: usize = 64;
/// Addresses of the area. Memory is used as far as there are keys.
const AREA: usize = 16 << 20;
const GRAINS: usize = AREA / GRAIN;
/// Stack below a frame that is overwritten: more than making a key takes.
const STACK: usize = 4096;

/// One area a process; a forked child goes on with a copy of its parent's.
static AREA_STATE: LockedArea = LockedArea {
    lock: FutexLock::new(),
    area: UnsafeCell::new(Area {
        base: 0,
        used: [0; GRAINS / 64],
        pages: 0,
        refused: None,
    }),
};

struct LockedArea {
    lock: FutexLock,
    area: UnsafeCell<Area>,
}

// SAFETY: the area is reached only by `with`, under `lock`.
unsafe impl Sync for LockedArea {}

impl LockedArea {
    fn with<T>(&self, work: impl FnOnce(&mut Area) -> T) -> T {
        self.lock.acquire();
        // SAFETY: the lock makes this the only reference; `work` does not come back here.
        let result = work(unsafe { &mut *self.area.get() });
        self.lock.release();
        result
    }
}

struct Area {
    /// 0 until there is one.
    base: usize,
    /// The grains that are given out, one bit each.
    used: [u64; GRAINS / 64],
    /// Pages from `base` on that were ever used.
    pages: usize,
    /// The reason why some of those are not locked.
    refused: Option<Errno>,
}

/// The locked part of the area: its start, and pages. For [`lock_again`], on threads that may wait for nobody.
static LOCKED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

impl Area {
    fn make(&mut self) -> Result<(), Errno> {
        if self.base != 0 {
            return Ok(());
        }
        let base = memory::reserve(AREA)?;
        // SAFETY: advice that changes no content.
        unsafe { memory::madvise(base, AREA, libc::MADV_DONTDUMP)? };
        self.base = base;
        Ok(())
    }

    fn is_used(&self, grain: usize) -> bool {
        self.used[grain / 64] >> (grain % 64) & 1 == 1
    }

    fn mark(&mut self, first: usize, grains: usize, used: bool) {
        for grain in first..first + grains {
            let bit = 1 << (grain % 64);
            match used {
                true => self.used[grain / 64] |= bit,
                false => self.used[grain / 64] &= !bit,
            }
        }
    }

    /// The first grains side by side that are free.
    fn find(&self, grains: usize) -> Option<usize> {
        let mut run = 0;
        let mut at = 0;
        while at < GRAINS {
            if at.is_multiple_of(64) && self.used[at / 64] == u64::MAX {
                (run, at) = (0, at + 64);
                continue;
            }
            run = if self.is_used(at) { 0 } else { run + 1 };
            at += 1;
            if run == grains {
                return Some(at - grains);
            }
        }
        None
    }

    /// Locks the pages up to the end of these bytes that were never used before.
    fn lock_up_to(&mut self, end: usize) {
        let pages = end.div_ceil(memory::PAGE);
        if pages > self.pages {
            let from = self.base + self.pages * memory::PAGE;
            let locked = memory::mlock(from, (pages - self.pages) * memory::PAGE, 0);
            self.refused = self.refused.or(locked.err());
            self.pages = pages;
            LOCKED[0].store(self.base, SeqCst);
            LOCKED[1].store(pages, SeqCst);
        }
    }

    fn take(&mut self, grains: usize) -> Result<usize, Errno> {
        self.make()?;
        let first = self.find(grains).ok_or(Errno(libc::ENOMEM))?;
        self.mark(first, grains, true);
        self.lock_up_to((first + grains) * GRAIN);
        Ok(self.base + first * GRAIN)
    }
}

/// Takes the area's lock so that a fork finds it free, and the area whole. No key is made or dropped on this thread until
/// [`unlock_after_fork`]. Whoever holds it waits for addresses of our own alone.
pub fn lock_for_fork() {
    AREA_STATE.lock.acquire();
}

/// Releases the lock after the fork, in parent and child.
///
/// # Safety
/// The calling thread took it by [`lock_for_fork`], or is the child's copy of one that did.
pub unsafe fn unlock_after_fork() {
    AREA_STATE.lock.release();
}

/// In a forked child, for which no key is made meanwhile: locks what it has inherited.
pub fn relock() {
    AREA_STATE.with(|area| {
        if area.pages > 0 {
            area.refused = memory::mlock(area.base, area.pages * memory::PAGE, 0).err();
        }
    });
}

/// After a call that unlocked all memory of the process. It takes no lock: a child that shares the memory may have been
/// killed with it.
pub fn lock_again() {
    let (base, pages) = (LOCKED[0].load(SeqCst), LOCKED[1].load(SeqCst));
    if pages > 0 {
        // As before: refused, if it was.
        let _ = memory::mlock(base, pages * memory::PAGE, 0);
    }
}

/// Why not all keys are locked in memory, if so: mostly RLIMIT_MEMLOCK.
pub fn refused() -> Option<Errno> {
    AREA_STATE.with(|area| area.refused)
}

/// A value in the area, wiped when it is dropped.
pub struct Secret<T>(NonNull<T>);

// SAFETY: it owns its value, as a box does.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    const GRAINS: usize = {
        assert!(align_of::<T>() <= GRAIN && size_of::<T>() > 0);
        size_of::<T>().div_ceil(GRAIN)
    };

    /// Makes a value where it stays. The stack that `make` used is overwritten, up to 4 KiB.
    ///
    /// # Errors
    /// There is no memory, or no room in the area (ENOMEM).
    pub fn new(make: impl FnOnce() -> T) -> Result<Self, Errno> {
        let place = AREA_STATE.with(|area| area.take(Self::GRAINS))?;
        let place = std::ptr::with_exposed_provenance_mut::<MaybeUninit<T>>(place);
        // SAFETY: the grains are ours, as long and as aligned as a T, and nobody else's.
        fill(unsafe { &mut *place }, make);
        overwrite_stack();
        NonNull::new(place.cast())
            .map(Self)
            .ok_or(Errno(libc::ENOMEM))
    }

    /// The value for as long as the process lives.
    pub fn leak(self) -> &'static T {
        let place = self.0;
        std::mem::forget(self);
        // SAFETY: it is never given back.
        unsafe { place.as_ref() }
    }
}

/// In a frame of its own, so that what it leaves lies below its caller's.
#[inline(never)]
fn fill<T>(place: &mut MaybeUninit<T>, make: impl FnOnce() -> T) {
    place.write(make());
}

#[inline(never)]
fn overwrite_stack() {
    let mut stack = [0xa5u8; STACK];
    std::hint::black_box(&mut stack).zeroize();
}

impl<T> Deref for Secret<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: made by `new`, and ours.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Secret<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the value is ours and used no more; its grains stay readable and writable.
        let bytes = unsafe {
            self.0.drop_in_place();
            std::slice::from_raw_parts_mut(
                self.0.as_ptr().cast::<MaybeUninit<u8>>(),
                size_of::<T>(),
            )
        };
        bytes.zeroize();
        AREA_STATE.with(|area| {
            let first = (self.0.addr().get() - area.base) / GRAIN;
            area.mark(first, Self::GRAINS, false);
        });
    }
}

impl<T> std::fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    type Bytes = [u8; 200];

    fn secret(byte: u8) -> Secret<Bytes> {
        Secret::new(|| [byte; 200]).unwrap()
    }

    /// The entry of `/proc/self/smaps` for an address: flags, and how much is locked.
    fn mapping(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut ours = false;
        let mut text = String::new();
        for line in maps.lines() {
            let bounds = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((start, end)) = bounds
                && let (Some(start), Some(end)) = (number(start), number(end))
            {
                ours = (start..end).contains(&address);
            }
            if ours {
                text += line;
                text.push('\n');
            }
        }
        text
    }

    #[test]
    fn it_is_locked_left_out_of_dumps_and_wiped() {
        let kept = secret(1);
        let dropped = secret(0xfe);
        let place = std::ptr::from_ref(&*dropped).addr();
        let shown = mapping(place);
        let flags = shown
            .lines()
            .find(|line| line.starts_with("VmFlags"))
            .unwrap();
        assert!(flags.contains(" dd"), "not left out of core dumps: {shown}");
        assert!(
            flags.contains(" lo") || refused().is_some(),
            "not locked: {shown}"
        );
        assert!(dropped.iter().all(|&byte| byte == 0xfe));
        drop(dropped);
        // SAFETY: the area stays mapped; other tests put nothing but bytes there.
        let left = unsafe { std::slice::from_raw_parts(place as *const u8, 64) };
        assert!(left.iter().all(|&byte| byte != 0xfe), "not wiped");
        assert!(kept.iter().all(|&byte| byte == 1));
        assert_eq!(format!("{kept:?}"), "Secret(..)");
    }

    #[test]
    fn none_overlap_and_room_is_used_again() {
        let mut secrets: Vec<_> = (0..100).map(secret).collect();
        let pages = AREA_STATE.with(|area| area.pages);
        for _ in 0..20 {
            secrets.drain(20..60);
            secrets.extend((0..40).map(|byte| secret(byte + 100)));
        }
        assert!(
            AREA_STATE.with(|area| area.pages) <= pages + 1,
            "what was dropped is not used again"
        );
        for secret in &secrets {
            assert!(secret.iter().all(|&byte| byte == secret[0]));
        }
        let mut places: Vec<_> = secrets.iter().map(|s| s.0.addr().get()).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 200));
    }

    /// Another thread makes keys while a process forks, as a keeper does before its process pages.
    #[test]
    #[cfg_attr(miri, ignore = "it forks")]
    fn a_forked_child_finds_the_area_free() {
        let over = AtomicBool::new(false);
        let mut stuck = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    drop(secret(3));
                }
            });
            for _ in 0..300 {
                lock_for_fork();
                // SAFETY: the child makes system calls alone, and ends.
                let child = unsafe { libc::fork() };
                // SAFETY: taken above, by this thread.
                unsafe { unlock_after_fork() };
                if child == 0 {
                    // SAFETY: as above. Who waits for ever is ended.
                    unsafe {
                        libc::alarm(5);
                        relock();
                        libc::_exit(0);
                    }
                }
                let mut status = -1;
                // SAFETY: a child of ours.
                unsafe { libc::waitpid(child, &mut status, 0) };
                stuck += i32::from(status != 0);
                if stuck > 0 {
                    break;
                }
            }
            over.store(true, SeqCst);
        });
        assert_eq!(stuck, 0);
    }

    /// A frame that is as deep as the one in which a key is made.
    #[inline(never)]
    fn below() -> [u8; STACK] {
        let stack = MaybeUninit::<[u8; STACK]>::uninit();
        // SAFETY: reads what the stack holds, by volatile reads, as bytes of any value.
        unsafe { std::ptr::read_volatile(std::hint::black_box(&stack).as_ptr()) }
    }

    #[test]
    fn making_one_leaves_nothing_on_the_stack() {
        let made = Secret::new(|| std::hint::black_box([0xc3u8; 300])).unwrap();
        let left = below();
        assert!(!left.windows(16).any(|bytes| bytes == [0xc3; 16]));
        assert!(made.iter().all(|&byte| byte == 0xc3));
    }
}
