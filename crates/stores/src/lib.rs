//! Stores: the devices behind the engine's [`Store`](ebb_engine::env::Store).
//!
//! [`open`] turns a [`SwapSpec`] into a descriptor and its [`Facts`]; both can be sent to another process.
//! There [`Device::new`] puts the device together: a [`FileStore`], under test a [`FaultyStore`] over it,
//! and [`Encrypted`] on top. [`RamStore`] serves the lab.
//!
//! Not here: which slots are in use and who may write them (the engine), checksums (the
//! engine's, kept in RAM), and how descriptors travel (the process tree's).
#![forbid(unsafe_code)]

pub mod codec;
mod device;
mod encryption;
mod facts;
mod faulty;
mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod open;
mod pass_through;
mod ram;
mod size;
mod transfer;

pub use device::Device;
pub use encryption::{Encrypted, KEY_BYTES, KeyedLender, Keyring, SlotKeys, checksum_key};
pub use facts::Facts;
pub use faulty::{FAULTS_VARIABLE, Faults, FaultsError, FaultyStore};
pub use file::{FileStore, InUse};
pub use open::{
    FileIdentity, MAX_NODE, MAX_PRIORITY, OpenError, OpenedDevice, PendingHeader, SearchTime,
    SpecError, SwapSpec, SwapTarget, active_swaps, open,
};
pub use ram::RamStore;
pub use size::{MAX_SIZE, Size, SizeError, human, human_at_least};

// The system and the engine agree on the size of a page.
const _: () = assert!(ebb_sys::memory::PAGE == ebb_engine::PAGE_SIZE);
