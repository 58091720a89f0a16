//! Reading ahead: reads of pages that the program will probably touch soon run while it works.
//!
//! A read goes into memory of the store's own, and its bytes are copied out when they are asked
//! for. So only the store knows of it, and a read that nobody asks for does no harm.
//!
//! Protocol. The reader is behind a lock that is only ever tried: a thread that finds it taken
//! reads from the device as usual. A writer notes the bytes that it wrote *after* its write, in a
//! list under a lock of its own that is held for a few instructions. The next user of the reader
//! invalidates those bytes first. So bytes taken are never older than the last write that had
//! ended when they were asked for.

use super::on_demand::OnDemand;
use ebb_sys::aio::AioReader;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Pages of its memory: 512 KiB.
const AHEAD_PAGES: usize = 128;
/// Writes noted one by one; one more invalidates everything.
const NOTED: usize = 64;

type Reader = OnDemand<Box<AioReader>>;

/// Stretches of the file that were written since the reader last looked.
struct Written {
    stretches: [(u64, usize); NOTED],
    count: usize,
    overflow: bool,
}

/// See the module.
pub struct ReadAhead {
    reader: Mutex<Reader>,
    written: Mutex<Written>,
    /// Flag: something may have been read ahead. Writers must tell.
    active: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadAhead {
    /// Nothing is made before it is first used.
    pub fn new() -> Self {
        Self {
            reader: Mutex::new(Reader::Untried),
            written: Mutex::new(Written {
                stretches: [(0, 0); NOTED],
                count: 0,
                overflow: false,
            }),
            active: AtomicBool::new(false),
        }
    }

    fn reader(&self) -> Option<MutexGuard<'_, Reader>> {
        let mut reader = match self.reader.try_lock() {
            Ok(reader) => reader,
            Err(TryLockError::Poisoned(reader)) => reader.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if let Some(aio) = reader.made() {
            let mut written = lock(&self.written);
            if written.overflow {
                aio.invalidate_all();
            } else {
                for &(offset, len) in &written.stretches[..written.count] {
                    aio.invalidate(offset, len);
                }
            }
            (written.count, written.overflow) = (0, false);
        }
        Some(reader)
    }

    /// Starts to read stretches of the file, (offset, bytes), as far as there is room.
    pub fn begin(&self, fd: BorrowedFd<'_>, stretches: impl Iterator<Item = (u64, usize)>) {
        let Some(mut reader) = self.reader() else {
            return;
        };
        let mut passes = false;
        let make = || {
            let made = AioReader::new(AHEAD_PAGES);
            // All requests that the system has are taken, or it is short of memory.
            const PASS: [Errno; 2] = [Errno::AGAIN, Errno::NOMEM];
            let refused = made
                .as_ref()
                .err()
                .map(|errno| Errno::from_raw_os_error(errno.0));
            passes = refused.is_some_and(|errno| PASS.contains(&errno));
            made.ok().map(Box::new)
        };
        if reader.get(make).is_none() && passes {
            *reader = Reader::Untried;
        }
        let Some(aio) = reader.made() else {
            return;
        };
        self.active.store(true, SeqCst);
        aio.poll();
        for (offset, len) in stretches {
            aio.begin(offset, len);
        }
        aio.submit(fd);
    }

    /// Takes what was read ahead into each of `wanted`, (offset, room), and says which it did; none
    /// stands for what is no place of the file. Watches for the end of each for at most `patience`.
    pub fn take<'a>(
        &self,
        patience: Duration,
        wanted: impl Iterator<Item = Option<(u64, &'a mut [u8])>>,
        mut done: impl FnMut(usize),
    ) {
        if !self.active.load(SeqCst) {
            return;
        }
        let Some(mut reader) = self.reader() else {
            return;
        };
        let Some(aio) = reader.made() else {
            return;
        };
        for (i, wanted) in wanted.enumerate() {
            if let Some((offset, room)) = wanted
                && aio.take(offset, room, patience)
            {
                done(i);
            }
        }
    }

    /// These bytes of the file were written. Called when the write has ended.
    pub fn written(&self, offset: u64, len: usize) {
        if !self.active.load(SeqCst) {
            return;
        }
        let mut written = lock(&self.written);
        let count = written.count;
        match written.stretches.get_mut(count) {
            Some(stretch) => {
                *stretch = (offset, len);
                written.count += 1;
            }
            None => written.overflow = true,
        }
    }

    /// In a forked child: forgets everything. False: somebody used it at the fork.
    pub fn abandon(&self) -> bool {
        let (Ok(mut reader), Ok(mut written)) = (self.reader.try_lock(), self.written.try_lock())
        else {
            return false;
        };
        if let Some(aio) = reader.take() {
            (*aio).abandon();
        }
        (written.count, written.overflow) = (0, false);
        self.active.store(false, SeqCst);
        true
    }
}
