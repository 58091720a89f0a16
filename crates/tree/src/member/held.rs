//! The leases of the devices that a member holds.

use crate::MAX_DEVICES;
use crate::lease::Leases;
use crate::table::DeviceRow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The leases of the devices that a member holds, by row.
///
/// The lock is held for a copy only; whoever forks brings the threads that use it to rest.
#[derive(Default)]
pub(crate) struct Held(Mutex<[Option<(u64, Leases<'static>)>; MAX_DEVICES]>);

impl Held {
    /// The leases by row, with the serial number of the device.
    pub fn lock(&self) -> MutexGuard<'_, [Option<(u64, Leases<'static>)>; MAX_DEVICES]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these are the leases of every device that the rows tell of.
    pub fn is_all_of(&self, rows: &[DeviceRow; MAX_DEVICES]) -> bool {
        let held = self.lock();
        rows.iter().zip(held.iter()).all(|(row, held)| {
            row.device()
                .is_none_or(|(serial, _)| held.is_some_and(|held| held.0 == serial))
        })
    }

    #[cfg(test)]
    pub fn hold(&self, row: usize, serial: u64, leases: Leases<'static>) {
        self.lock()[row] = Some((serial, leases));
    }

    pub fn each(&self, f: impl FnMut(Leases<'static>)) {
        let held = *self.lock();
        held.into_iter().flatten().map(|(_, l)| l).for_each(f);
    }
}
