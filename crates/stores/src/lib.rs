//! Stores: the devices behind the engine's [`Store`](ebb_engine::env::Store).
//!
//! [`open`] turns a [`SwapSpec`] into a descriptor and its [`Facts`]; both can be sent to
//! another process, where [`Device::new`] puts the device together: a [`FileStore`], under
//! test a [`FaultyStore`] over it, and [`Encrypted`] on top. [`RamStore`] serves the lab.
//!
//! Not here: which slots are in use and who may write them (the engine), checksums (the
//! engine's, kept in RAM), and how descriptors travel (the process tree's).
#![forbid(unsafe_code)]

mod batch;
mod bounce;
pub mod codec;
mod content;
mod device;
mod dictionary;
mod encrypted;
mod errno;
mod facts;
mod faulty;
mod file;
mod key_id;
pub mod keyring;
mod open;
mod open_error;
mod ram;
mod read_ahead;
mod size;
mod slot_keys;
mod spec;
mod swap_header;
mod sysfs;
mod xts;

pub use content::SearchTime;
pub use device::Device;
pub use encrypted::Encrypted;
pub use facts::Facts;
pub use faulty::{FAULTS_VARIABLE, Faults, FaultsError, FaultyStore};
pub use file::{FileStore, InUse};
pub use keyring::{KEY_BYTES, Keyring};
pub use open::{OpenedDevice, open};
pub use open_error::OpenError;
pub use ram::RamStore;
pub use size::{MAX_SIZE, Size, SizeError, human};
pub use slot_keys::{KeyedLender, SlotKeys};
pub use spec::{MAX_NODE, MAX_PRIORITY, SpecError, SwapSpec, SwapTarget};
pub use swap_header::PendingHeader;
