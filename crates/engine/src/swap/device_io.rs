//! Pages on devices: the transfers with their second chances. How a slot holds a page is in `slot_format`.

use super::Swap;
use super::coders::Scratch;
use super::error::{LoadError, Source};
use super::slot_format::{decode_slot, place};
use super::store::Aim;
use super::write_batch::{BATCH, Retry, write_runs};
use crate::codec::Codec;
use crate::entries::{EntryWord, Location, SlotPlace};
use crate::env::{IoError, ReadOp, WriteOp};
use crate::slots::{Devices, ExtentList};
use crate::{Cpu, DeviceId, EntryId, MAX_DEVICES, PageBytes};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Attempts at writing a page, each in another slot.
const WRITE_TRIES: usize = 3;

/// Says of the place of an entry, whose lock is held, whether it is only a copy.
pub(super) fn set_cache_only(devices: &Devices, place: SlotPlace, yes: bool) {
    if let Err(error) = devices.set_cache_only(place.device, place.slot, yes) {
        panic!("{error}");
    }
}

/// Whether `b` is the entry after `a`.
const fn is_next(a: &EntryId, b: &EntryId) -> bool {
    a.0 + 1 == b.0
}

impl Swap {
    /// Notes that someone uses the devices: the shrinker stands back.
    fn note(&self, when: &AtomicU64) {
        when.store(self.env.clock.now_ns(), Relaxed);
    }

    /// Notes that the pool refused a page: the shrinker's work comes too late.
    pub(super) fn note_refused(&self) {
        self.note(&self.last_refused_ns);
    }

    /// Whether no device takes pages, as this process may write no file so large.
    pub fn file_limited(&self) -> bool {
        let devices = self.devices.as_ref();
        devices.is_some_and(|devices| devices.is_file_limited())
    }

    /// Whether a device takes no pages for that, whatever others do.
    pub fn met_file_limit(&self) -> bool {
        let devices = self.devices.as_ref();
        devices.is_some_and(|devices| devices.met_file_limit())
    }

    /// The same, once.
    pub fn is_newly_file_limited(&self) -> bool {
        self.met_file_limit() && !self.file_limit_told.swap(true, Relaxed)
    }

    /// Takes one slot for `owner`.
    fn take_slot(&self, cpu: Cpu, owner: EntryId, extents: &mut ExtentList) -> Option<SlotPlace> {
        let devices = self.devices.as_ref()?;
        extents.clear();
        devices.allocate(cpu, 1, owner, extents).ok()?;
        Some(place(extents[0], 0, true))
    }

    /// A slot could not be written: it leaves service, or is free again.
    pub(super) fn write_failed(&self, cpu: Cpu, owner: EntryId, place: SlotPlace, error: IoError) {
        let Some(devices) = &self.devices else { return };
        self.env.counters.write_error.add(1);
        if let Err(error) = devices.write_failed(cpu, place.device, place.slot, error) {
            panic!("{error}");
        }
        if error != IoError::Slot {
            self.free_slot(cpu, owner, place);
        }
    }

    /// The word of a page that is to be written to a slot as it is.
    fn raw_word(&self, slot: SlotPlace, page: &PageBytes) -> EntryWord {
        EntryWord::slot(slot, self.env.checksums.of(Codec::Raw, page))
    }

    /// Takes slots side by side for each run of consecutive entries, in order, and appends them to `extents`; false,
    /// and none, if there is too little room for all.
    fn take_runs(&self, cpu: Cpu, entries: &[EntryId], extents: &mut ExtentList) -> bool {
        let Some(devices) = &self.devices else {
            return false;
        };
        let mut runs = entries.chunk_by(is_next);
        let taken = runs.all(|run| {
            let got = devices.allocate(cpu, run.len() as u16, run[0], extents);
            got.is_ok()
        });
        if !taken {
            let mut entries = entries;
            for &extent in extents.iter() {
                self.free_slots(cpu, entries[0], extent);
                entries = &entries[usize::from(extent.len)..];
            }
            extents.clear();
        }
        taken
    }

    /// Writes pages as they are to slots: the way out when the pool takes none. Pages that find no
    /// room keep the word of a free entry; with [`Aim::All`] none is written then.
    pub(super) fn store_on_devices(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        pages: &[&PageBytes],
        entries: &[EntryId],
        words: &mut [EntryWord],
        aim: Aim,
    ) {
        self.note(&self.last_refused_ns);
        debug_assert!(pages.len() <= BATCH);
        debug_assert!(words.len() == pages.len() && entries.len() == pages.len());
        words.fill(EntryWord::FREE);
        // Pages that only happen to lie side by side are no folio, as for the kernel a single page is none.
        let is_folio = aim == Aim::All && pages.len() > 1;
        let mut extents = std::mem::take(&mut scratch.extents);
        extents.clear();
        // A folio gets neighbouring slots, but for those of its pages that need none; single pages get them one
        // by one, which are neighbours too while the processor's cluster lasts.
        if is_folio || pages.len() > 1 && entries.is_sorted_by(is_next) {
            if !self.take_runs(cpu, entries, &mut extents) && is_folio {
                // There is no room for all of it, one by one neither.
                scratch.extents = extents;
                return;
            }
            let slots = extents
                .iter()
                .flat_map(|extent| (0..u32::from(extent.len)).map(|i| place(*extent, i, true)));
            for ((word, page), slot) in words.iter_mut().zip(pages).zip(slots) {
                *word = self.raw_word(slot, page);
            }
        }
        let runs = extents.len() as u64;
        self.write_pages(cpu, &mut extents, pages, entries, words, aim);
        scratch.extents = extents;
        let written = words.iter().filter(|word| !word.is_free()).count();
        let counters = &self.env.counters;
        if is_folio && written == pages.len() {
            let order = pages.len().next_power_of_two().trailing_zeros() as usize;
            counters.swpout[order].add(1);
            counters.swpout_runs.add(runs);
        }
        counters.pswpout.add(written as u64);
        self.note(&self.last_refused_ns);
    }

    /// Writes each page to the slot its word names, or, where that is free, to a new one; what
    /// fails goes to another slot. The words of those that were written name slots afterwards, no
    /// others.
    fn write_pages(
        &self,
        cpu: Cpu,
        taken: &mut ExtentList,
        pages: &[&PageBytes],
        entries: &[EntryId],
        words: &mut [EntryWord],
        aim: Aim,
    ) {
        let undo = |words: &mut [EntryWord]| {
            for (i, word) in words.iter_mut().enumerate() {
                if let Location::Slot(place) = word.location() {
                    self.free_slot(cpu, entries[i], place);
                    *word = EntryWord::FREE;
                }
            }
        };
        let mut done = [false; BATCH];
        for _ in 0..WRITE_TRIES {
            let mut room = true;
            for i in 0..pages.len() {
                if words[i].is_free() {
                    let Some(slot) = self.take_slot(cpu, entries[i], taken) else {
                        room = false;
                        break;
                    };
                    words[i] = self.raw_word(slot, pages[i]);
                }
            }
            if !room && aim == Aim::All {
                return undo(words);
            }
            for device in (0..MAX_DEVICES).map(|n| DeviceId(n as u8)) {
                self.write_to_device(cpu, device, pages, entries, words, &mut done);
            }
            if !room || done[..pages.len()].iter().all(|&d| d) {
                return;
            }
        }
        if aim == Aim::All {
            undo(words);
        }
    }

    /// Writes those of the pages whose words name slots of a device, and that are not done, in one batch.
    fn write_to_device(
        &self,
        cpu: Cpu,
        device: DeviceId,
        pages: &[&PageBytes],
        entries: &[EntryId],
        words: &mut [EntryWord],
        done: &mut [bool; BATCH],
    ) {
        let Some(devices) = &self.devices else { return };
        let mut which = [(0, SlotPlace::NONE); BATCH];
        let mut ops = [WriteOp { slot: 0, data: &[] }; BATCH];
        let mut n = 0;
        for i in 0..pages.len() {
            if let Location::Slot(place) = words[i].location()
                && place.device == device
                && !done[i]
            {
                which[n] = (i, place);
                ops[n] = WriteOp {
                    slot: u64::from(place.slot.0),
                    data: pages[i],
                };
                n += 1;
            }
        }
        if n == 0 {
            return;
        }
        let mut results = [Err(IoError::Device); BATCH];
        let good = write_runs(devices, device, &ops[..n], &mut results[..n], Retry::Every);
        devices.wrote(device, good);
        for (&(i, place), result) in which[..n].iter().zip(results) {
            match result {
                Ok(()) => done[i] = true,
                Err(error) => {
                    words[i] = EntryWord::FREE;
                    self.write_failed(cpu, entries[i], place, error);
                }
            }
        }
    }

    /// Brings back the pages whose words name slots, all of them in flight at once. They were
    /// there a moment ago; those that moved since are loaded from where they are.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn load_from_devices(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        entries: &[EntryId],
        words: &[EntryWord],
        out: &mut [&mut PageBytes],
        keep: bool,
        results: &mut [Result<Source, LoadError>],
    ) {
        debug_assert!(entries.len() <= BATCH);
        let Some(devices) = &self.devices else { return };
        self.note(&self.last_load_ns);
        let mut io = [Err(IoError::Device); BATCH];
        for device in 0..MAX_DEVICES {
            let on = |word: &EntryWord| match word.location() {
                Location::Slot(place) if place.device.index() == device => Some(place.slot),
                _ => None,
            };
            let mut ops: [Option<ReadOp<'_>>; BATCH] = [const { None }; BATCH];
            let mut n = 0;
            for (word, out) in words.iter().zip(out.iter_mut()) {
                if let Some(slot) = on(word) {
                    ops[n] = Some(ReadOp {
                        slot: u64::from(slot.0),
                        data: &mut out[..],
                    });
                    n += 1;
                }
            }
            if n == 0 {
                continue;
            }
            let mut got = [Err(IoError::Device); BATCH];
            if let Some(store) = devices.store(DeviceId(device as u8)) {
                // The stack has room for them all; the store wants them in one piece.
                let mut ops = ops.map(|op| {
                    op.unwrap_or(ReadOp {
                        slot: 0,
                        data: &mut [],
                    })
                });
                store.read(&mut ops[..n], &mut got[..n]);
            }
            let mut next = got.iter();
            for (i, word) in words.iter().enumerate() {
                if on(word).is_some() {
                    io[i] = next.next().copied().unwrap_or(Err(IoError::Device));
                }
            }
        }
        for i in 0..entries.len() {
            if words[i].is_free() {
                continue;
            }
            results[i] = self.finish_read(cpu, scratch, entries[i], words[i], out[i], keep, io[i]);
        }
        self.note(&self.last_load_ns);
    }

    /// Says that these pages, at most 64, will probably be loaded soon, in this order: those on
    /// devices may be on their way then. Neither waits nor promises anything.
    pub fn expect(&self, entries: &[EntryId]) {
        debug_assert!(entries.len() <= BATCH);
        let Some(devices) = &self.devices else { return };
        let mut words = [EntryWord::FREE; BATCH];
        self.space.words(entries, &mut words[..entries.len()]);
        let places = words.map(|word| match word.location() {
            Location::Slot(place) => Some(place),
            _ => None,
        });
        if places.iter().all(Option::is_none) {
            return;
        }
        for device in 0..MAX_DEVICES {
            let mut runs = [const { 0..0 }; BATCH];
            let mut n = 0;
            for place in places.iter().flatten() {
                if place.device.index() != device {
                    continue;
                }
                let slot = u64::from(place.slot.0);
                if n > 0 && runs[n - 1].end == slot {
                    runs[n - 1].end += 1;
                } else {
                    runs[n] = slot..slot + 1;
                    n += 1;
                }
            }
            if n > 0
                && let Some(store) = devices.store(DeviceId(device as u8))
            {
                store.expect(&runs[..n]);
            }
        }
    }

    /// Decodes and checks the bytes read; a failure of the device gets one more read.
    #[allow(clippy::too_many_arguments)]
    fn finish_read(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        entry: EntryId,
        mut word: EntryWord,
        out: &mut PageBytes,
        keep: bool,
        first: Result<(), IoError>,
    ) -> Result<Source, LoadError> {
        let mut io = first;
        let mut again = false;
        loop {
            let Location::Slot(place) = word.location() else {
                return self.load_with(cpu, scratch, entry, out, keep);
            };
            let decoded = io
                .is_ok()
                .then(|| decode_slot(scratch, word, out))
                .flatten();
            // Only now is it sure that the slot was not given to another while it was read.
            let locked = self.space.lock(entry);
            let now = locked.word();
            if !locked.is_at(word.location()) {
                // Another place has a second read of its own.
                (word, again) = (now, false);
                drop(locked);
            } else if decoded.is_some() {
                self.env.counters.pswpin.add(1);
                drop(locked);
                self.loaded(cpu, entry, keep);
                return Ok(Source::Device);
            } else {
                drop(locked);
                let counters = &self.env.counters;
                let (device, slot) = (place.device, place.slot);
                if io == Err(IoError::Again) {
                    return Err(LoadError::Again { device, slot });
                }
                if again {
                    return Err(match io {
                        Ok(()) => {
                            counters.checksum_error.add(1);
                            LoadError::Corrupt { device, slot }
                        }
                        Err(_) => {
                            counters.read_error.add(1);
                            LoadError::Io { device, slot }
                        }
                    });
                }
                again = true;
                counters.read_again.add(1);
            }
            if let Location::Slot(place) = word.location() {
                io = self.read_slot(place, out);
            }
        }
    }

    pub(super) fn read_slot(&self, place: SlotPlace, out: &mut PageBytes) -> Result<(), IoError> {
        let store = self
            .devices
            .as_ref()
            .and_then(|devices| devices.store(place.device));
        let store = store.ok_or(IoError::Device)?;
        let mut result = [Err(IoError::Device)];
        store.read(
            &mut [ReadOp {
                slot: u64::from(place.slot.0),
                data: out,
            }],
            &mut result,
        );
        result[0]
    }
}
