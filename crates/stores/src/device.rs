//! A device put together as the engine is to see it: file, faults if a test asks for them,
//! encryption.

use crate::{Encrypted, Facts, Faults, FaultyStore, FileStore, Keyring, SlotKeys};
use ebb_engine::env::Store;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// A device of this process.
#[derive(Clone)]
pub struct Device {
    /// The file itself: after a fork, [`FileStore::reattach`] gives it the child's descriptor.
    pub file: Arc<FileStore>,
    /// The store that the engine uses.
    pub store: Arc<dyn Store>,
    /// The key that each slot was written with, if it is encrypted.
    pub slot_keys: Option<Arc<SlotKeys>>,
}

impl Device {
    /// Puts a device together. `number` tells the devices that share `keys` apart. Faults
    /// strike under the encryption, as a failing disk would.
    pub fn new(
        fd: OwnedFd,
        facts: Facts,
        number: u64,
        keys: Option<&Arc<Keyring>>,
        faults: Option<Faults>,
    ) -> Self {
        let file = Arc::new(FileStore::from_fd(fd, facts));
        let below: Arc<dyn Store> = match faults {
            Some(faults) => Arc::new(FaultyStore::new(file.clone(), faults)),
            None => file.clone(),
        };
        let Some(keys) = keys else {
            return Self {
                file,
                store: below,
                slot_keys: None,
            };
        };
        let encrypted = Encrypted::new(below, keys.clone(), number);
        Self {
            file,
            slot_keys: Some(encrypted.slot_keys().clone()),
            store: Arc::new(encrypted),
        }
    }
}
