//! Stores: the devices behind the engine's [`Store`](ebb_engine::env::Store).
//!
//! [`open`] turns a [`SwapSpec`] into a descriptor and its [`Facts`]; both can be sent to
//! another process, where [`FileStore::from_fd`] makes a store of them.
#![forbid(unsafe_code)]

mod batch;
mod bounce;
mod encrypted;
mod errno;
mod facts;
mod faulty;
mod file;
mod open;
mod ram;
mod size;
mod spec;
mod sysfs;
mod xts;

pub use encrypted::{Encrypted, KEY_BYTES, Key};
pub use facts::Facts;
pub use faulty::{FAULTS_VARIABLE, Faults, FaultsError, FaultyStore};
pub use file::{FileStore, InUse};
pub use open::{OpenError, OpenedDevice, open};
pub use ram::RamStore;
pub use size::{MAX_SIZE, Size, SizeError, human};
pub use spec::{MAX_NODE, MAX_PRIORITY, Place, SpecError, SwapSpec};
