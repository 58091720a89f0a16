//! Encryption of what devices hold: the store, its keys, which key each slot has, the cipher.

mod encrypted;
mod key_id;
mod keyring;
mod slot_keys;
mod xts;

pub use encrypted::Encrypted;
pub use keyring::{KEY_BYTES, Keyring, checksum_key};
pub use slot_keys::{KeyedLender, SlotKeys};
