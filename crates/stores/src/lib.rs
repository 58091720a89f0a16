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
pub mod keyring;
mod mark;
mod marks;
mod open;
mod ram;
mod read_ahead;
mod size;
mod spec;
mod sysfs;
mod xts;

pub use device::Device;
pub use encrypted::Encrypted;
pub use facts::Facts;
pub use faulty::{FAULTS_VARIABLE, Faults, FaultsError, FaultyStore};
pub use file::{FileStore, InUse};
pub use keyring::{KEY_BYTES, Keyring};
pub use mark::Unmarked;
pub use marks::{MarkedLender, Marks};
pub use open::{Look, OpenError, OpenedDevice, open};
pub use ram::RamStore;
pub use size::{MAX_SIZE, Size, SizeError, human};
pub use spec::{MAX_NODE, MAX_PRIORITY, Place, SpecError, SwapSpec};
