//! Lanes: a bounce buffer and an io_uring, taken by one thread at a time.

use super::FileStore;
use super::on_demand::OnDemand;
use crate::transfer::batch::PIECES;
use crate::transfer::bounce::{Bounce, StackPage};
use ebb_engine::PAGE_SIZE;
use ebb_sys::ring::Ring;
use ebb_sys::watched_read::WatchedReader;
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
    /// An io_uring, made when the lane first has a batch for it.
    pub ring: OnDemand<Ring>,
    /// A reader whose reads are watched, made when the lane first has one.
    pub watched: OnDemand<WatchedReader>,
}

impl Lane {
    /// Frees buffer and ring, if no transfer has used the lane since the last call. Not the reader: it has a page or
    /// two, and the kernel takes tens of milliseconds to end it.
    pub fn free_idle(&mut self) {
        if self.bounce.free_idle() && self.ring.made().is_some() {
            self.ring = OnDemand::Untried;
        }
    }
}

/// The means by which a round moves its bytes.
pub struct Mover<'a> {
    pub fd: BorrowedFd<'a>,
    pub bounce: &'a mut [u8],
    pub ring: Option<&'a mut OnDemand<Ring>>,
    pub watched: Option<&'a mut OnDemand<WatchedReader>>,
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
                let Lane {
                    bounce,
                    ring,
                    watched,
                } = &mut *lane;
                f(&mut Mover {
                    fd,
                    bounce: bounce.get(),
                    ring: self.use_ring.load(Relaxed).then_some(ring),
                    watched: Some(watched),
                    patience: Duration::ZERO,
                });
            }
            None => f(&mut Mover {
                fd,
                bounce: &mut StackPage([0; PAGE_SIZE]).0,
                ring: None,
                watched: None,
                patience: Duration::ZERO,
            }),
        }
    }

    /// Lets `f` move `runs` runs through the ring. False: it did not, or not all of them.
    /// A single run is not worth the ring: one system call moves it either way.
    pub(super) fn through_ring(
        &self,
        ring: Option<&mut OnDemand<Ring>>,
        runs: usize,
        f: impl FnOnce(&mut Ring) -> Result<(), Errno>,
    ) -> bool {
        let Some(ring) = ring.filter(|_| runs > 1) else {
            return false;
        };
        let make = || {
            let made = Ring::new(PIECES as u32);
            made.inspect_err(|errno| self.ring_refused(*errno)).ok()
        };
        let Some(ready) = ring.get(make) else {
            return false;
        };
        match f(ready) {
            Ok(()) => true,
            // Short of memory now: this batch goes the other way.
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => false,
            Err(errno) => {
                self.ring_refused(errno);
                *ring = OnDemand::Refused;
                false
            }
        }
    }

    fn ring_refused(&self, errno: Errno) {
        self.ring_refusal.store(errno.raw_os_error(), Relaxed);
    }
}
