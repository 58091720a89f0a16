//! Lanes: a bounce buffer and asynchronous reads, taken by one thread at a time.

use super::FileStore;
use super::on_demand::OnDemand;
use crate::transfer::bounce::{Bounce, StackPage};
use ebb_engine::PAGE_SIZE;
use ebb_sys::batch_reads::BatchReads;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

/// Threads that transfer at full speed at the same time; more share nothing but the device.
pub const LANES: usize = 4;
/// Pages of a lane's bounce buffer.
pub const BOUNCE_PAGES: usize = 64;

/// A lane.
pub struct Lane {
    pub bounce: Bounce,
    /// Asynchronous reads, made when the lane first has a batch of them, or one to watch for.
    pub reads: OnDemand<BatchReads>,
}

impl Lane {
    /// Frees the buffer, if no transfer has used the lane since the last call. Not what asynchronous reads have: it is a
    /// page or two, and the kernel takes tens of milliseconds to end it.
    pub fn free_idle(&mut self) {
        self.bounce.free_idle();
    }
}

/// The means by which a round moves its bytes.
pub struct Mover<'a> {
    pub fd: BorrowedFd<'a>,
    pub bounce: &'a mut [u8],
    pub reads: Option<&'a mut OnDemand<BatchReads>>,
    /// The time for which the thread watches for a read.
    pub patience: Duration,
}

impl FileStore {
    fn lane(&self) -> Option<MutexGuard<'_, Lane>> {
        self.lanes.iter().find_map(|lane| match lane.try_lock() {
            Ok(lane) => Some(lane),
            Err(TryLockError::Poisoned(lane)) => Some(lane.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Runs `f` with the descriptor and a lane, or a page of the stack if all are taken.
    pub(super) fn with_mover(&self, f: impl FnOnce(&mut Mover<'_>)) {
        let fd = match self.fd.read() {
            Ok(fd) => fd,
            Err(poisoned) => poisoned.into_inner(),
        };
        let fd = fd.as_fd();
        match self.lane() {
            Some(mut lane) => {
                let Lane { bounce, reads } = &mut *lane;
                f(&mut Mover {
                    fd,
                    bounce: bounce.get(),
                    reads: self.batches.load(Relaxed).then_some(reads),
                    patience: Duration::ZERO,
                });
            }
            None => f(&mut Mover {
                fd,
                bounce: &mut StackPage([0; PAGE_SIZE]).0,
                reads: None,
                patience: Duration::ZERO,
            }),
        }
    }

    /// Lets `f` read several runs at once. False: it did not, or not all of them.
    pub(super) fn at_once(
        &self,
        reads: Option<&mut OnDemand<BatchReads>>,
        f: impl FnOnce(&mut BatchReads) -> Result<(), Errno>,
    ) -> bool {
        let Some(reads) = reads else {
            return false;
        };
        let mut refused = 0;
        let made = reads.get(|| BatchReads::new().map_err(|errno| refused = errno.0).ok());
        let outcome = match made {
            Some(ready) => f(ready),
            None if refused == 0 => return false,
            None => Err(Errno::from_raw_os_error(refused)),
        };
        match outcome {
            Ok(()) => {}
            // All requests that the system has are taken, or it is short of memory: that passes.
            Err(Errno::AGAIN) if refused != 0 => *reads = OnDemand::Untried,
            Err(Errno::AGAIN) => {}
            Err(errno) => {
                self.refusal.store(errno.raw_os_error(), Relaxed);
                *reads = OnDemand::Refused;
            }
        }
        outcome.is_ok()
    }
}
