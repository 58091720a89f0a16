//! The lease area of a device: made by the supervisor, mapped by every member.

use crate::MAX_MEMBERS;
use crate::lease::{LeaseHeader, Leases, row_words};
use ebb_engine::{CLUSTER_SLOTS, PAGE_SIZE};
use ebb_sys::shm::{Area, Shared};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

// SAFETY: `repr(C)`, atomics only.
#[allow(unsafe_code)]
unsafe impl Shared for LeaseHeader {}

/// Where the parts of a lease area lie.
struct LeaseLayout {
    owner: usize,
    fill: usize,
    rows: usize,
    len: usize,
}

impl LeaseLayout {
    fn new(clusters: usize) -> Self {
        let owner = size_of::<LeaseHeader>().next_multiple_of(64);
        let fill = (owner + clusters * 4).next_multiple_of(PAGE_SIZE);
        let rows = (fill + clusters * 4).next_multiple_of(PAGE_SIZE);
        Self {
            owner,
            fill,
            rows,
            len: rows + MAX_MEMBERS * row_words(clusters) * 8,
        }
    }
}

/// Whole clusters of a device of `slots` slots; what is left over at its end is not used.
pub(crate) fn clusters_of(slots: u64) -> u32 {
    u32::try_from(slots / CLUSTER_SLOTS as u64)
        .unwrap_or(u32::MAX)
        // A slot number has 32 bits.
        .min(u32::MAX / CLUSTER_SLOTS as u32)
}

fn leases_in(area: Area, clusters: u32) -> Result<Leases<'static>, Errno> {
    let layout = LeaseLayout::new(clusters as usize);
    let leases = || {
        Some(Leases {
            header: area.one(0)?,
            owner: area.many(layout.owner, clusters as usize)?,
            fill: area.many(layout.fill, clusters as usize)?,
            rows: area.many(layout.rows, MAX_MEMBERS * row_words(clusters as usize))?,
        })
    };
    leases().ok_or(Errno::INVAL)
}

/// Makes the lease area of a device.
pub(crate) fn create_leases(clusters: u32) -> Result<(Leases<'static>, OwnedFd), Errno> {
    let (area, fd) = Area::create("ebb-leases", LeaseLayout::new(clusters as usize).len)?;
    let leases = leases_in(area, clusters)?;
    leases.init();
    Ok((leases, fd))
}

/// Maps the lease area that another process made.
pub(crate) fn map_leases(fd: BorrowedFd<'_>, clusters: u32) -> Result<Leases<'static>, Errno> {
    leases_in(Area::map(fd)?, clusters)
}
