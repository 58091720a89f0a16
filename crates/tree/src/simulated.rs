//! In debug builds: a tree in a simulation, whose supervisor and members take turns on one thread.
//!
//! A member that waits for a packet gives its turn up, and one that waits for news is told of it by the simulation. The
//! supervisor does all but measure: the memory of simulated programs is not that of processes of the system. Devices
//! have leases and no file.

use crate::lease::Leases;
use crate::supervisor::Supervisor;
use crate::table::{clusters_of, create_leases};
pub use crate::waits::{Helpers, Waits, begin};
use rustix::io::Errno;

/// The leases of a device without a file, for supervisor and members alike.
#[derive(Clone, Copy)]
pub struct SimulatedDevice(pub(crate) Leases<'static>);

impl SimulatedDevice {
    /// For a device of so many slots.
    ///
    /// # Errors
    /// There is no shared memory for them.
    pub fn new(slots: u64) -> Result<Self, Errno> {
        create_leases(clusters_of(slots)).map(|(leases, _)| Self(leases))
    }
}

impl Supervisor {
    /// Takes back the leases of these devices, too, when a process is gone.
    pub fn add_simulated(&mut self, devices: &[SimulatedDevice]) {
        self.without_files = devices.iter().map(|device| device.0).collect();
    }

    /// Looks whether dead processes have left something behind, when no other is there.
    ///
    /// # Errors
    /// Something is left.
    pub fn leaves_nothing(&self) -> Result<(), String> {
        self.check()?;
        let (members, charged) = (self.members(), self.totals().used_pages);
        if (members, charged) != (0, 0) {
            return Err(format!(
                "{members} places are taken, {charged} pages charged"
            ));
        }
        for leases in self.each_leases() {
            let taken = leases.owner.len() as u64 - leases.free();
            if taken > 0 {
                return Err(format!("{taken} clusters of nobody are taken"));
            }
        }
        Ok(())
    }
}
