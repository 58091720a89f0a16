//! A dictionary for Zstandard, trained on the program's own pages.
//!
//! The coders copy one page of [`EVERY`] that they compress until there are [`SAMPLES`]. Training
//! takes some tens of milliseconds, so it waits for [`Dictionary::work`], which is called in the
//! background. From then on pages are compressed with the dictionary; those compressed before
//! are read without. It is trained once: a program that changes its data altogether has pages
//! that compress as without one.
//!
//! The dictionary is leaked: pages compressed with it exist as long as the process does.

use ebb_engine::{PAGE_SIZE, PageBytes};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use zstd_safe::{CDict, DDict};

/// One page of so many is a sample.
const EVERY: usize = 4;
/// Samples that training takes: 2 MiB.
const SAMPLES: usize = 512;
/// Bytes of the dictionary. Measured with `ebb lab corpus`.
const BYTES: usize = 32 << 10;

/// The result of training.
pub struct Trained {
    /// The form for compressing.
    pub compress: CDict<'static>,
    /// The form for reading back.
    pub decompress: DDict<'static>,
}

/// See the module.
pub struct Dictionary {
    level: i32,
    seen: AtomicUsize,
    full: AtomicBool,
    samples: Mutex<Vec<u8>>,
    trained: OnceLock<Option<&'static Trained>>,
}

impl Dictionary {
    /// Of no pages yet, for this level.
    pub fn new(level: i32) -> Self {
        Self {
            level,
            seen: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            samples: Mutex::default(),
            trained: OnceLock::new(),
        }
    }

    /// The result, once there is one.
    pub fn get(&self) -> Option<&'static Trained> {
        *self.trained.get()?
    }

    /// A page is about to be compressed.
    pub fn offer(&self, page: &PageBytes) {
        if self.full.load(Relaxed) || !self.seen.fetch_add(1, Relaxed).is_multiple_of(EVERY) {
            return;
        }
        // A thread that finds it locked lets this page go: there are others.
        let Ok(mut samples) = self.samples.try_lock() else {
            return;
        };
        if samples.len() < SAMPLES * PAGE_SIZE {
            samples.extend_from_slice(page);
        } else {
            self.full.store(true, Relaxed);
        }
    }

    /// Trains, if there are samples enough and it was not done; whether it did.
    pub fn work(&self) -> bool {
        if !self.full.load(Relaxed) || self.trained.get().is_some() {
            return false;
        }
        let samples =
            std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner));
        if samples.is_empty() {
            // Another thread is at it.
            return false;
        }
        // Pages that have nothing in common give none; then it stays so.
        let _ = self.trained.set(self.train(&samples));
        true
    }

    fn train(&self, samples: &[u8]) -> Option<&'static Trained> {
        let sizes = vec![PAGE_SIZE; samples.len() / PAGE_SIZE];
        let mut bytes = vec![0; BYTES];
        let len = zstd_safe::train_from_buffer(&mut bytes[..], samples, &sizes).ok()?;
        Some(Box::leak(Box::new(Trained {
            compress: CDict::create(&bytes[..len], self.level),
            decompress: DDict::create(&bytes[..len]),
        })))
    }

    /// Bytes held.
    pub fn memory(&self) -> usize {
        match (self.get(), self.trained.get()) {
            (Some(trained), _) => trained.compress.sizeof() + trained.decompress.sizeof(),
            (None, Some(None)) => 0,
            (None, _) => self.seen.load(Relaxed).min(EVERY * SAMPLES) / EVERY * PAGE_SIZE,
        }
    }
}
