//! Lanes: a bounce buffer and asynchronous transfers, taken by one thread at a time.

use super::FileStore;
use super::on_demand::OnDemand;
use crate::transfer::bounce::{Bounce, StackPage};
use ebb_engine::PAGE_SIZE;
use ebb_sys::transfers::Transfers;
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
    /// Asynchronous transfers, made when the lane first has a batch for them, or a read to watch for.
    pub transfers: OnDemand<Transfers>,
}

impl Lane {
    /// Frees the buffer, if no transfer has used the lane since the last call. Not what asynchronous transfers have: it
    /// is a page or two, and the kernel takes tens of milliseconds to end it.
    pub fn free_idle(&mut self) {
        self.bounce.free_idle();
    }
}

/// The means by which a round moves its bytes.
pub struct Mover<'a> {
    pub fd: BorrowedFd<'a>,
    pub bounce: &'a mut [u8],
    pub transfers: Option<&'a mut OnDemand<Transfers>>,
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
                let Lane { bounce, transfers } = &mut *lane;
                f(&mut Mover {
                    fd,
                    bounce: bounce.get(),
                    transfers: self.batches.load(Relaxed).then_some(transfers),
                    patience: Duration::ZERO,
                });
            }
            None => f(&mut Mover {
                fd,
                bounce: &mut StackPage([0; PAGE_SIZE]).0,
                transfers: None,
                patience: Duration::ZERO,
            }),
        }
    }

    /// Lets `f` move several runs at once. False: it did not, or not all of them.
    pub(super) fn at_once(
        &self,
        transfers: Option<&mut OnDemand<Transfers>>,
        f: impl FnOnce(&mut Transfers) -> Result<(), Errno>,
    ) -> bool {
        let Some(transfers) = transfers else {
            return false;
        };
        let make = || {
            let made = Transfers::new();
            made.inspect_err(|errno| self.refused(errno.0)).ok()
        };
        let Some(ready) = transfers.get(make) else {
            return false;
        };
        match f(ready) {
            Ok(()) => true,
            // Short of memory now: this batch goes the other way.
            Err(Errno::AGAIN) => false,
            Err(errno) => {
                self.refused(errno.raw_os_error());
                *transfers = OnDemand::Refused;
                false
            }
        }
    }

    fn refused(&self, errno: i32) {
        self.refusal.store(errno, Relaxed);
    }
}
