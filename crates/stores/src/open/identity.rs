//! Whether two names are of the same storage, so that a run uses none twice.
//!
//! A block device may have several names, and a loop device is the file it lies over. Partitions and devices of the
//! mapper are not traced to what they lie over: the kernel lets nobody claim both.

use super::error::OpenError;
use super::loop_device::{self, LoopDevice};
use super::spec::SwapSpec;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Stat};

/// A file or block device, by whatever name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileIdentity {
    /// A block device, which may have several names: its number.
    Block(u64),
    /// Anything else, or what a loop device lies over: its file system, and its number there.
    File(u64, u64),
}

impl FileIdentity {
    /// Refuses what `spec` names if it is one of our `own`, each with the path it was given by.
    ///
    /// # Errors
    /// [`OpenError::Own`].
    pub fn refuse<'a>(
        spec: &SwapSpec,
        mut own: impl Iterator<Item = (Option<Self>, &'a str)>,
    ) -> Result<(), OpenError> {
        let Some(named) = Self::named(spec) else {
            return Ok(());
        };
        match own.find(|(identity, _)| *identity == Some(named)) {
            Some((_, path)) => Err(OpenError::Own { path: path.into() }),
            None => Ok(()),
        }
    }

    /// The identity of what `spec` names; none if nothing is there, or it names nothing.
    pub fn named(spec: &SwapSpec) -> Option<Self> {
        let SwapSpec::At(place) = spec else {
            return None;
        };
        let named = rustix::fs::stat(place.path.as_ref()?).ok()?;
        Some(Self::by(&named))
    }

    /// That of an open file.
    pub fn of(opened: &OwnedFd) -> Option<Self> {
        let opened = rustix::fs::fstat(opened).ok()?;
        Some(Self::by(&opened))
    }

    fn by(stat: &Stat) -> Self {
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Self::File(stat.st_dev, stat.st_ino);
        }
        match loop_device::all().find(|device| device.number == stat.st_rdev) {
            Some(LoopDevice { file, .. }) => Self::File(file.0, file.1),
            None => Self::Block(stat.st_rdev),
        }
    }
}
