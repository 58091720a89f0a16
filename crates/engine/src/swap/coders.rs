//! Coders and their scratch room, one set for each processor.
//!
//! A set is *owned* while it is used, not locked: it is taken out of its processor's
//! place and put back. Who finds the place empty (its thread was moved, or another is in
//! the middle of a page) takes a neighbour's, and makes one if all are out.

use super::CodecKind;
use crate::codec::{Codec, Codecs, Coder};
use crate::pool::{MAX_COMPRESSED, STEP};
use crate::slots::{Extent, ExtentList};
use crate::sync::{Mutex, lock};
use crate::{CLUSTER_SLOTS, Cpu, PAGE_SIZE, PageBytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Room for what a coder writes before it is known whether it is short enough.
pub struct Room(pub [u8; 2 * PAGE_SIZE]);

/// A coder, room for compressed bytes, and room for the slots of a batch.
pub struct Scratch {
    pub coder: Box<dyn Coder>,
    pub data: Box<Room>,
    pub extents: ExtentList,
}

impl Scratch {
    /// Compresses a page for the pool into `data`, padded to whole steps: the codec, and how many
    /// bytes. None: it does not compress well enough, and is kept as it is.
    pub fn pack(&mut self, kind: CodecKind, page: &PageBytes) -> Option<(Codec, usize)> {
        let codec = match kind {
            CodecKind::Lz4 | CodecKind::Lz4ThenZstd { .. } => Codec::Lz4,
            CodecKind::Zstd { .. } => Codec::Zstd,
            CodecKind::None => return None,
        };
        let len = self.coder.compress(codec, page, &mut self.data.0)?;
        if len > MAX_COMPRESSED {
            return None;
        }
        let padded = len.next_multiple_of(STEP);
        self.data.0[len..padded].fill(0);
        Some((codec, padded))
    }
}

/// Where a processor's set waits, on a line of its own: taking it writes the lock.
#[repr(align(64))]
#[derive(Default)]
struct Place(Mutex<Option<Box<Scratch>>>);

pub struct Coders {
    places: Box<[Place]>,
    codecs: Arc<dyn Codecs>,
    made: AtomicUsize,
}

impl Coders {
    pub fn new(cpus: usize, codecs: Arc<dyn Codecs>) -> Self {
        Self {
            places: (0..cpus.max(1)).map(|_| Place::default()).collect(),
            codecs,
            made: AtomicUsize::new(0),
        }
    }

    fn make(&self) -> Box<Scratch> {
        self.made.fetch_add(1, Relaxed);
        Box::new(Scratch {
            coder: self.codecs.coder(),
            data: Box::new(Room([0; 2 * PAGE_SIZE])),
            extents: ExtentList::new(),
        })
    }

    /// Takes the processor's set, or another.
    pub fn take(&self, cpu: Cpu) -> Taken<'_> {
        let n = self.places.len();
        let found = (0..n)
            .map(|i| (cpu.index() + i) % n)
            .find_map(|place| lock(&self.places[place].0).take());
        Taken {
            scratch: Some(found.unwrap_or_else(|| self.make())),
            coders: self,
            cpu,
        }
    }

    /// Makes the processors' sets now, so that no load or store has to.
    pub fn fill(&self) {
        for place in &self.places {
            lock(&place.0).get_or_insert_with(|| self.make());
        }
    }

    pub fn bytes(&self) -> usize {
        let one = size_of::<Scratch>()
            + 2 * PAGE_SIZE
            + CLUSTER_SLOTS * size_of::<Extent>()
            + self.codecs.coder_bytes();
        self.made.load(Relaxed) * one
            + self.places.len() * size_of::<Place>()
            + self.codecs.shared_bytes()
    }
}

/// A set in use; it goes back when dropped.
pub struct Taken<'a> {
    scratch: Option<Box<Scratch>>,
    coders: &'a Coders,
    cpu: Cpu,
}

impl std::ops::Deref for Taken<'_> {
    type Target = Scratch;
    fn deref(&self) -> &Scratch {
        self.scratch.as_ref().unwrap_or_else(|| unreachable!())
    }
}

impl std::ops::DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        self.scratch.as_mut().unwrap_or_else(|| unreachable!())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let n = self.coders.places.len();
        for i in 0..n {
            let mut place = lock(&self.coders.places[(self.cpu.index() + i) % n].0);
            if place.is_none() {
                *place = self.scratch.take();
                return;
            }
        }
        self.coders.made.fetch_sub(1, Relaxed);
    }
}
