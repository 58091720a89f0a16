//! The keys of a process: one that it writes with, and those of what it may read.
//!
//! # Which key encrypts a slot
//! A process makes a key when it first writes after it began to page, and after each fork, parent and child
//! each its own ([`Keyring::rotate`]). So two processes know of each other's keys only those that they had
//! in common at the fork, when the child got a copy of all memory anyway. Neither can read the other's
//! later writes, nor can anybody who has the keys of one. Nobody hands keys out.
//!
//! # How a slot's key is found again
//! [`SlotKeys`] say by number which key each slot was written with; a forked child has a copy of slot keys
//! and keys. A key of no slot is wiped ([`Ring::drop_unneeded`]): in a child at once, in a parent when it
//! has twice as many keys as last time. So there are as many keys as forks, in a chain of them, of which
//! something is still on devices, and at most 65,534. A process that has so many goes on with its key,
//! until some of what it wrote is gone.
//!
//! # Where keys are
//! In [`Secret`] memory, 64 bytes each; of those used lately the round keys too. They are wiped when the
//! program has ended ([`Keyring::wipe`]). The ring's lock is held
//! while pages are encrypted, which readers do side by side, and never across a transfer. A fork
//! finds it free: no transfer is under way then.
//!
//! Not here: protection from those who may read a process's memory.

use super::key_id::KeyId;
use super::slot_keys::SlotKeys;
use super::xts::Xts;
use ebb_engine::CHECKSUM_KEY_BYTES;
use ebb_sys::Errno;
use ebb_sys::secret::Secret;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Bytes of a key: two AES-256 keys.
pub const KEY_BYTES: usize = 64;
/// Keys whose round keys are at hand.
const CACHED_CIPHERS: usize = 16;
/// Tries to come by the ring at the end, each of which lets other threads run.
const WIPE_TRIES: u32 = 1000;
/// Keys below which nobody looks which of them are still needed.
const FEW: usize = 16;

type Key = [u8; KEY_BYTES];

/// See the module.
pub struct Keyring(RwLock<Ring>);

struct Ring {
    /// The most keys.
    most: usize,
    /// The key to write with, if there was a write since the last fork.
    writing: Option<KeyId>,
    keys: Vec<Option<Secret<Key>>>,
    /// Keys that there are.
    held: usize,
    /// Keys, of those after the last look, that are needed.
    needed: usize,
    /// Keys by number, modulo how many there are.
    ciphers: [Option<(KeyId, Secret<Xts>)>; CACHED_CIPHERS],
}

fn random<const N: usize>() -> Result<Secret<[u8; N]>, Errno> {
    let mut secret = Secret::new(|| [0; N])?;
    ebb_sys::random::fill(&mut secret[..]).map_err(|e| Errno(e.raw_os_error()))?;
    Ok(secret)
}

/// The key of the checksums of a process, and of those it forks.
///
/// # Errors
/// The system gives no random numbers, or no memory.
pub fn checksum_key() -> Result<&'static [u8; CHECKSUM_KEY_BYTES], Errno> {
    random().map(Secret::leak)
}

impl Default for Keyring {
    fn default() -> Self {
        Self::of(usize::from(u16::MAX) - 1)
    }
}

impl Keyring {
    fn of(most: usize) -> Self {
        Self(RwLock::new(Ring::of(most)))
    }

    fn read(&self) -> RwLockReadGuard<'_, Ring> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Ring> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key to write with, which is made if there is none.
    ///
    /// # Errors
    /// The system gives no random numbers, or no memory.
    pub(crate) fn writing(&self) -> Result<KeyId, Errno> {
        let there = self.read().writing;
        there.map_or_else(|| self.change().writing_now(), Ok)
    }

    /// The ciphers, until the result is dropped: for as long as no transfer takes.
    pub(crate) fn open(&self) -> Ciphers<'_> {
        Ciphers {
            keyring: self,
            ring: Some(self.read()),
        }
    }

    /// After a fork, on either side, and with no transfer under way: what is written from now on has a
    /// key of its own. `devices` are the slot keys of all devices.
    pub fn rotate<'a>(&self, is_child: bool, devices: impl Iterator<Item = &'a SlotKeys>) {
        let mut ring = self.change();
        if is_child || ring.held >= (2 * ring.needed).max(FEW).min(ring.most) {
            ring.drop_unneeded(devices);
        }
        if ring.held < ring.most {
            ring.writing = None;
        }
    }

    /// Wipes all keys, for good, when nobody needs a page of this process any more: what is read after it
    /// is not the page, and nothing is written. False if a thread that has ended, or one that does not get
    /// on, is in the midst of using them.
    pub fn wipe(&self) -> bool {
        let unused = (0..WIPE_TRIES).find_map(|_| match self.0.try_write() {
            Ok(ring) => Some(ring),
            Err(TryLockError::Poisoned(ring)) => Some(ring.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                None
            }
        });
        let Some(mut ring) = unused else { return false };
        ring.wipe();
        true
    }

    /// Whether [`wipe`](Self::wipe) has been.
    pub fn is_wiped(&self) -> bool {
        self.read().most == 0
    }

    /// How many keys it has.
    pub fn held(&self) -> usize {
        self.read().held
    }
}

impl Ring {
    /// Drops all keys, for good. No memory is freed: a program that was killed as it forked has the heap's lock for ever.
    fn wipe(&mut self) {
        (self.most, self.held, self.needed, self.writing) = (0, 0, 0, None);
        self.keys.fill_with(|| None);
        self.ciphers.fill_with(|| None);
    }

    /// An empty one, for so many keys.
    fn of(most: usize) -> Self {
        Self {
            most,
            writing: None,
            keys: Vec::new(),
            held: 0,
            needed: 0,
            ciphers: [const { None }; CACHED_CIPHERS],
        }
    }

    fn writing_now(&mut self) -> Result<KeyId, Errno> {
        if let Some(key) = self.writing {
            return Ok(key);
        }
        let free = self.keys.iter().position(Option::is_none);
        let at = free.unwrap_or(self.keys.len());
        let id = u16::try_from(at + 1).ok().and_then(KeyId::new);
        let id = id.filter(|_| self.held < self.most);
        let id = id.ok_or(Errno(rustix::io::Errno::NOSPC.raw_os_error()))?;
        let key = random()?;
        match self.keys.get_mut(at) {
            Some(place) => *place = Some(key),
            None => self.keys.push(Some(key)),
        }
        self.held += 1;
        self.expand(id)?;
        self.writing = Some(id);
        Ok(id)
    }

    /// Has the round keys of a key at hand; false if there is no such key.
    fn expand(&mut self, id: KeyId) -> Result<bool, Errno> {
        let Some(key) = self.keys.get(id.index()).and_then(Option::as_ref) else {
            return Ok(false);
        };
        let cipher = Secret::new(|| Xts::new(key))?;
        self.ciphers[id.index() % CACHED_CIPHERS] = Some((id, cipher));
        Ok(true)
    }

    fn cipher(&self, id: KeyId) -> Option<&Xts> {
        match &self.ciphers[id.index() % CACHED_CIPHERS] {
            Some((there, cipher)) if *there == id => Some(cipher),
            _ => None,
        }
    }

    /// Wipes the keys that no slot was written with.
    fn drop_unneeded<'a>(&mut self, devices: impl Iterator<Item = &'a SlotKeys>) {
        let mut needed = vec![false; self.keys.len()];
        for slot_keys in devices {
            slot_keys.keys(|id| {
                if let Some(needed) = needed.get_mut(id.index()) {
                    *needed = true;
                }
            });
        }
        for (key, _) in self
            .keys
            .iter_mut()
            .zip(&needed)
            .filter(|(_, needed)| !**needed)
        {
            *key = None;
        }
        let is_needed = |id: KeyId| needed.get(id.index()) == Some(&true);
        for place in &mut self.ciphers {
            place.take_if(|(id, _)| !is_needed(*id));
        }
        self.writing = self.writing.filter(|id| is_needed(*id));
        self.held = needed.iter().filter(|needed| **needed).count();
        self.needed = self.held;
    }
}

/// The ciphers of a ring, which does not change meanwhile.
pub(crate) struct Ciphers<'a> {
    keyring: &'a Keyring,
    ring: Option<RwLockReadGuard<'a, Ring>>,
}

impl Ciphers<'_> {
    /// The cipher of a key; none if the ring has no such key, or no memory for its round keys.
    pub fn cipher(&mut self, id: KeyId) -> Option<&Xts> {
        // Another thread may take the place for another key each time: rarely twice.
        while self
            .ring
            .as_ref()
            .is_none_or(|ring| ring.cipher(id).is_none())
        {
            self.ring = None;
            if !self.keyring.change().expand(id).unwrap_or(false) {
                return None;
            }
            self.ring = Some(self.keyring.read());
        }
        self.ring.as_ref()?.cipher(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encrypted, RamStore};
    use ebb_engine::env::{ReadOp, Store, WriteOp};
    use ebb_engine::{CLUSTER_SLOTS, ClusterIndex, PAGE_SIZE};
    use std::sync::Arc;

    const CLUSTER: u64 = CLUSTER_SLOTS as u64;

    /// A process with one device.
    struct Of {
        ring: Arc<Keyring>,
        store: Encrypted<Arc<RamStore>>,
    }

    impl Of {
        fn new(clusters: u64, ring: Keyring) -> Self {
            let ring = Arc::new(ring);
            let ram = Arc::new(RamStore::new(clusters * CLUSTER));
            let store = Encrypted::new(ram, ring.clone(), 1);
            Self { ring, store }
        }

        fn write(&self, slot: u64, byte: u8) {
            let data = [byte; PAGE_SIZE];
            let op = WriteOp { slot, data: &data };
            let mut results = [Ok(())];
            self.store.write(&[op], &mut results);
            assert_eq!(results, [Ok(())]);
        }

        fn holds(&self, slot: u64, byte: u8) -> bool {
            let mut data = [0; PAGE_SIZE];
            let op = ReadOp {
                slot,
                data: &mut data,
            };
            let mut results = [Ok(())];
            self.store.read(&mut [op], &mut results);
            results == [Ok(())] && data == [byte; PAGE_SIZE]
        }

        fn fork(&self, is_child: bool) {
            self.ring
                .rotate(is_child, [&**self.store.slot_keys()].into_iter());
        }

        fn key(&self) -> Option<KeyId> {
            self.ring.read().writing
        }
    }

    /// Each process of the chain has written a page, and the last reads them all.
    #[test]
    fn a_chain_of_a_thousand_forks_reads_all_and_holds_no_more_keys_than_that() {
        let last = Of::new(1000, Keyring::default());
        for n in 0..1000 {
            last.write(n * CLUSTER, n as u8);
            assert!(last.holds(n * CLUSTER, n as u8));
            last.fork(true);
        }
        assert_eq!(last.ring.held(), 1000);
        for n in 0..1000 {
            assert!(last.holds(n * CLUSTER, n as u8), "{n}");
        }
        // Pages that it reads no more have no keys.
        for n in 0..990 {
            last.store.slot_keys().forget(ClusterIndex(n));
        }
        last.fork(true);
        assert_eq!(last.ring.held(), 10);
        for n in 990..1000 {
            assert!(last.holds(n * CLUSTER, n as u8), "{n}");
        }
        assert!(!last.holds(0, 0));
    }

    /// As one that forks programs does: the slots that it frees are written again.
    #[test]
    fn forks_without_end_leave_as_many_keys_as_pages_need() {
        let parent = Of::new(2, Keyring::default());
        for n in 0..5000u64 {
            parent.write(n % 100, n as u8);
            parent.fork(false);
            assert!(parent.ring.held() <= 202, "{} keys", parent.ring.held());
        }
        for n in 4900..5000u64 {
            assert!(parent.holds(n % 100, n as u8));
        }
    }

    #[test]
    fn each_write_after_a_fork_has_another_key_and_none_before_it() {
        let process = Of::new(1, Keyring::default());
        process.fork(false);
        assert_eq!((process.key(), process.ring.held()), (None, 0));
        process.write(0, 1);
        let first = process.key();
        process.write(1, 1);
        assert_eq!(process.key(), first);
        process.fork(true);
        process.write(2, 1);
        assert!(process.key().is_some() && process.key() != first);
    }

    #[test]
    fn with_all_the_keys_that_there_can_be_it_goes_on_with_the_last() {
        let process = Of::new(1, Keyring::of(3));
        for n in 0..10 {
            process.write(n, n as u8);
            process.fork(n % 2 == 0);
        }
        assert_eq!(process.ring.held(), 3);
        assert!((0..10).all(|n| process.holds(n, n as u8)));
        // Pages go, and there are keys again.
        process.store.slot_keys().forget(ClusterIndex(0));
        process.fork(false);
        process.write(1, 5);
        assert_eq!(process.ring.held(), 1);
    }

    #[test]
    fn wiped_keys_are_gone_for_good() {
        let process = Of::new(1, Keyring::default());
        process.write(0, 1);
        let held = process.ring.read();
        assert!(!process.ring.wipe(), "while they are used");
        drop(held);
        assert!(process.ring.wipe());
        assert!(!process.holds(0, 1));
        let data = [2; PAGE_SIZE];
        let mut results = [Ok(())];
        let op = WriteOp {
            slot: 0,
            data: &data,
        };
        process.store.write(&[op], &mut results);
        assert_eq!(results, [Err(ebb_engine::env::IoError::NoSpace)]);
        process.fork(false);
        assert!(process.ring.writing().is_err());
    }

    #[test]
    fn threads_that_want_more_keys_than_are_at_hand_get_them() {
        let process = Of::new(40, Keyring::default());
        for n in 0..40 {
            process.write(n * CLUSTER, n as u8);
            process.fork(true);
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let process = &process;
                scope.spawn(move || {
                    for n in (0..2000).map(|n| (n * 7 + thread * 3) % 40) {
                        assert!(process.holds(n * CLUSTER, n as u8));
                    }
                });
            }
        });
    }

    #[test]
    fn no_two_keys_are_alike_and_round_keys_are_few_bytes() {
        let keys: Vec<Secret<Key>> = (0..10).map(|_| random().unwrap()).collect();
        for (n, key) in keys.iter().enumerate() {
            assert!(keys[..n].iter().all(|other| **other != **key));
            assert!(key.iter().any(|&byte| byte != 0));
        }
        assert!(checksum_key().unwrap() != checksum_key().unwrap());
        assert!(size_of::<Xts>() <= 12 * 64, "{}", size_of::<Xts>());
    }
}
