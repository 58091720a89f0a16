//! The virtual swap space: entries, made on demand in clusters of 512, and the words that
//! say where their pages are.
//!
//! # Protocol
//!
//! Every cluster has one lock, and **an entry's word is read and written under its
//! cluster's lock only**. So readers see one consistent word, and a place changes in one
//! step. The lock is held for a few instructions or the copy of a block's compressed pages,
//! never across compression, a transfer, or a wait.
//!
//! - A *load* from the pool copies the compressed bytes out under the lock. A load from a
//!   device cannot: it reads without the lock, then takes it again and looks whether the
//!   word still names the slot it read. If not, what it read is thrown away, and it starts
//!   again from the new word.
//! - *Writeback* marks the word busy and copies the bytes under the lock, writes without
//!   it, then takes it again. Only if the word is still the busy one does it repoint the
//!   entry; else the slot is given up. The old place is released after the new one is named.
//!   There is one writer-back at a time, so a busy word is never mistaken for a later one.
//!   *Recompression* does the same with another object for the old. The second step of both is
//!   [`Space::repoint`].
//! - *Compaction* moves pool objects under the lock, and passes over busy words.
//! - Up to four consecutive entries, a *block*, may name one object, which has the pages of all. They
//!   are in one cluster, so under its lock a glance at the others tells who is the last to name it
//!   ([`Vacated`]), and no count is kept.
//! - *Free* may happen at any time. It clears the word first and releases the place after,
//!   so nobody can reach a place that is being released.
//! - *Store* reserves entries, makes their places, and then names those in the words. Until
//!   then compaction and writeback see a reserved word and leave it.
//!
//! A cluster is allocated in by the one processor whose cursor has it open. Cursors take single entries
//! and runs from different clusters, so that runs stay whole. While a cluster lasts, an allocation takes
//! locks, and writes cache lines, of its processor alone: cursor, place in the directory (`numbers`),
//! cluster, and the copies of the cursor's [`Hold`] on the group. A group's charge is one sum, written
//! once for a batch.
//!
//! Lock order: cursor, cluster, group lists, class, arena, leaves (free cluster numbers,
//! spare words, free windows). Two clusters are never locked at once, nor two arenas.
//!
//! Not here: what a place means (the pool, devices), or when to move pages (shrinker).

pub mod cluster;
pub mod entry_word;
pub mod fifo;
pub mod group;
#[cfg(all(test, loom))]
mod models;
mod numbers;
mod space;

pub use cluster::{CLUSTER_ENTRIES, Cluster, Dense, Vacated};
pub use entry_word::{EntryWord, Handle, Location, SlotPlace};
pub use group::{Group, Hold};
#[cfg(all(test, not(loom)))]
pub(crate) use space::SPARE;
pub use space::{Locked, NoEntries, Space, Visit};
