//! Coders and their scratch room, one set for each processor.
//!
//! A set is *owned* while it is used, not locked: it is taken out of its processor's place and put back.
//! A thread that finds the place empty (it was moved, or another is in the middle of a page) takes a
//! neighbour's set, and makes one if all are out.

use super::CodecKind;
use super::unpacked::Unpacked;
use crate::codec::{Codec, Codecs, Coder};
use crate::entries::Handle;
use crate::pool::{MAX_COMPRESSED, Object, STEP, Sizes};
use crate::slots::{Extent, ExtentList};
use crate::sync::{Mutex, lock};
use crate::{BLOCK_PAGES, CLUSTER_SLOTS, Checksums, Cpu, EntryId, PAGE_SIZE, PageBytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The most that a coder may write of a page before it is known whether it is short enough.
const LONGEST: usize = 2 * PAGE_SIZE;
/// Room for compressed pages that go into the pool together, and behind them for what a coder
/// writes. More would be further from the processor.
pub struct Room(pub [u8; 8 * PAGE_SIZE]);

/// A coder, room for compressed bytes, and room for the slots of a batch.
pub struct Scratch {
    pub coder: Box<dyn Coder>,
    pub data: Box<Room>,
    pub run: Run,
    pub extents: ExtentList,
    pub checksums: Checksums,
    sizes: Arc<Sizes>,
    /// The processor whose objects it makes.
    cpu: Cpu,
    /// Made when there are blocks.
    pub unpacked: Option<Box<Unpacked>>,
}

/// Pages compressed aside, to go into the pool together.
const RUN: usize = 16;

/// A page of a batch, or a block of them, compressed aside.
#[derive(Clone, Copy)]
pub struct PackedObject {
    /// The number in the batch, of a block that of the first entry's.
    page: u8,
    /// The pages from that one on that are in it, as bits.
    mask: u8,
    codec: Codec,
    /// The place where its bytes begin in the room, unless it is kept as it is.
    at: u16,
    pub len: u16,
    pub checksum: u64,
    /// Once it is in the pool.
    pub handle: Option<Handle>,
}

impl PackedObject {
    /// The numbers of its pages in the batch.
    pub fn pages(&self) -> impl Iterator<Item = usize> {
        let (page, mask) = (self.page as usize, self.mask);
        let each = (0..BLOCK_PAGES).filter(move |k| mask & 1 << k != 0);
        each.map(move |k| page + k)
    }
}

/// The pages whose bytes lie in a scratch, in the order of their batch.
pub struct Run {
    pages: [PackedObject; RUN],
    len: usize,
    /// Bytes of the room that they take.
    bytes: usize,
}

impl Run {
    const fn new() -> Self {
        let none = PackedObject {
            page: 0,
            mask: 0,
            codec: Codec::Raw,
            at: 0,
            len: 0,
            checksum: 0,
            handle: None,
        };
        Self {
            pages: [none; RUN],
            len: 0,
            bytes: 0,
        }
    }

    pub fn clear(&mut self) {
        (self.len, self.bytes) = (0, 0);
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn pages(&self) -> &[PackedObject] {
        &self.pages[..self.len]
    }

    /// One more, whose bytes take so many of the room.
    fn push(&mut self, k: usize, mask: u8, codec: Codec, len: usize, checksum: u64, taken: usize) {
        self.pages[self.len] = PackedObject {
            page: k as u8,
            mask,
            codec,
            at: self.bytes as u16,
            len: len as u16,
            checksum,
            handle: None,
        };
        self.len += 1;
        self.bytes += taken;
    }
}

impl Scratch {
    /// Whether so many more pages can be packed aside, one by one or together.
    pub fn has_room_for(&self, pages: usize) -> bool {
        let bytes = (pages - 1) * MAX_COMPRESSED + LONGEST;
        self.run.len + pages <= RUN && self.run.bytes + bytes <= size_of::<Room>()
    }

    /// Compresses page `k` of a batch behind those that are in the run; whether it was too poor at
    /// that, and is kept as it is.
    pub fn pack_aside(&mut self, kind: CodecKind, k: usize, page: &PageBytes) -> bool {
        let at = self.run.bytes;
        let packed = self.pack(kind, page, at);
        let (codec, bytes) = match packed {
            Some((codec, len)) => (codec, &self.data.0[at..][..len]),
            None => (Codec::Raw, &page[..]),
        };
        let (len, checksum) = (bytes.len(), self.checksums.of(codec, bytes));
        let taken = packed.map_or(0, |(_, len)| len);
        self.run.push(k, 1, codec, len, checksum, taken);
        packed.is_none()
    }

    /// The same for the block whose first page is page `k`; false if it is too poor at that. There must
    /// be room ([`Scratch::has_room_for`]).
    pub fn pack_block_aside(&mut self, k: usize, mask: u8, block: &[&PageBytes]) -> bool {
        let at = self.run.bytes;
        let Some(len) = self.pack_pages(mask, block, at) else {
            return false;
        };
        let checksum = self.checksums.of(Codec::Block, &self.data.0[at..][..len]);
        self.run.push(k, mask, Codec::Block, len, checksum, len);
        true
    }

    /// The objects that lie aside, for the pool, and the places of their handles.
    pub fn objects<'a>(
        &'a mut self,
        pages: &'a [&PageBytes],
        owners: impl Fn(usize) -> EntryId + 'a,
    ) -> impl Iterator<Item = (Object<'a>, &'a mut Option<Handle>)> {
        let data = &self.data.0;
        self.run.pages[..self.run.len].iter_mut().map(move |page| {
            let data = match page.codec {
                Codec::Raw => &pages[page.page as usize][..],
                _ => &data[page.at as usize..][..page.len as usize],
            };
            let object = Object {
                codec: page.codec,
                data,
                owner: owners(page.page as usize),
                pages: page.mask.count_ones() as u8,
            };
            (object, &mut page.handle)
        })
    }

    /// Compresses a page for the pool into `data` from `at` on, where there is room, padded to
    /// whole steps: the codec, and how many bytes. None: it does not compress well enough, and is
    /// kept as it is.
    pub fn pack(&mut self, kind: CodecKind, page: &PageBytes, at: usize) -> Option<(Codec, usize)> {
        let codec = match kind {
            CodecKind::Lz4 | CodecKind::Lz4ThenZstd { .. } => Codec::Lz4,
            CodecKind::Zstd { .. } => Codec::Zstd,
            CodecKind::None => return None,
        };
        let room = &mut self.data.0[at..at + LONGEST];
        let len = self.coder.compress(codec, page, room)?;
        if len > MAX_COMPRESSED {
            return None;
        }
        // The usual number of bytes: a known length is a store or two, and its bytes can be read again
        // at once.
        room[len..][..STEP].fill(0);
        Some((codec, self.pad(codec, at, len)))
    }

    /// Fills up what `codec` wrote to `at` in the room to the size that its object is to have; how many
    /// bytes that is.
    pub fn pad(&mut self, codec: Codec, at: usize, len: usize) -> usize {
        let size = self.sizes.fitting(self.cpu, codec, len);
        self.data.0[at..][len..size].fill(0);
        size
    }
}

/// Where a processor's set waits, on a line of its own: taking it writes the lock.
#[repr(align(64))]
#[derive(Default)]
struct CoderSlot {
    scratch: Mutex<Option<Box<Scratch>>>,
    /// Flag: it was used since it was last looked at.
    used: AtomicBool,
}

pub struct Coders {
    slots: Box<[CoderSlot]>,
    codecs: Arc<dyn Codecs>,
    checksums: Checksums,
    sizes: Arc<Sizes>,
    /// Flag: there will be blocks to unpack.
    blocks: bool,
    made: AtomicUsize,
}

impl Coders {
    pub fn new(
        cpus: usize,
        codecs: Arc<dyn Codecs>,
        checksums: Checksums,
        kind: CodecKind,
        sizes: Arc<Sizes>,
    ) -> Self {
        Self {
            sizes,
            slots: (0..cpus.max(1)).map(|_| CoderSlot::default()).collect(),
            codecs,
            checksums,
            blocks: kind.has_blocks(),
            made: AtomicUsize::new(0),
        }
    }

    /// A set for whoever keeps it.
    pub fn make(&self) -> Box<Scratch> {
        self.made.fetch_add(1, Relaxed);
        Box::new(Scratch {
            coder: self.codecs.coder(),
            data: Box::new(Room([0; _])),
            run: Run::new(),
            extents: ExtentList::new(),
            checksums: self.checksums,
            sizes: self.sizes.clone(),
            cpu: Cpu(0),
            unpacked: self.blocks.then(Unpacked::new),
        })
    }

    /// Takes the processor's set, or another.
    pub fn take(&self, cpu: Cpu) -> Taken<'_> {
        let n = self.slots.len();
        let found = (0..n)
            .map(|i| (cpu.index() + i) % n)
            .find_map(|place| lock(&self.slots[place].scratch).take());
        let mut scratch = found.unwrap_or_else(|| self.make());
        scratch.forget();
        scratch.cpu = cpu;
        Taken {
            scratch: Some(scratch),
            coders: self,
            cpu,
        }
    }

    /// Makes the processors' sets now, so that no load or store has to.
    pub fn fill(&self) {
        for place in &self.slots {
            lock(&place.scratch).get_or_insert_with(|| self.make());
        }
    }

    /// Frees the sets that were not used since the last call: a process that is idle keeps none.
    pub fn free_idle(&self) {
        for place in &self.slots {
            if place.used.swap(false, Relaxed) {
                continue;
            }
            let idle = lock(&place.scratch).take();
            self.made.fetch_sub(usize::from(idle.is_some()), Relaxed);
        }
    }

    pub fn bytes(&self) -> usize {
        let one = size_of::<Scratch>()
            + size_of::<Room>()
            + CLUSTER_SLOTS * size_of::<Extent>()
            + usize::from(self.blocks) * size_of::<Unpacked>()
            + self.codecs.coder_bytes();
        self.made.load(Relaxed) * one
            + self.slots.len() * size_of::<CoderSlot>()
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
        let n = self.coders.slots.len();
        for i in 0..n {
            let slot = &self.coders.slots[(self.cpu.index() + i) % n];
            let mut place = lock(&slot.scratch);
            if place.is_none() {
                *place = self.scratch.take();
                slot.used.store(true, Relaxed);
                return;
            }
        }
        self.coders.made.fetch_sub(1, Relaxed);
    }
}
