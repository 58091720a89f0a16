//! Recompression: pages that have been in the pool for long are compressed again with the
//! denser codec, in the background, where the pool is configured so. Loading such a page
//! is slower; that is why only the older half of a group's clusters is taken.

use super::writeback::Background;
use super::{CodecKind, Swap, checksum};
use crate::codec::Codec;
use crate::pool::{MAX_COMPRESSED, Object, STEP};
use crate::vswap::{CLUSTER_ENTRIES, Group, Handle, Location, Word};
use crate::{Cpu, EntryId, PAGE_SIZE};

/// Pages compressed in one step: some hundred microseconds.
const PAGES: usize = 16;
/// Cluster numbers looked at in one step.
const LOOKS: u32 = 64;

impl Swap {
    /// One step; whether there was anything to compress.
    pub(super) fn recompress_step(&self, cpu: Cpu, background: &mut Background) -> bool {
        if !matches!(self.config.codec, CodecKind::Lz4ThenZstd { .. }) {
            return false;
        }
        let from = background.recompress_from;
        let Some(cluster) = self.space.find_cold(from, LOOKS) else {
            background.recompress_from = self.space.wrap(from + LOOKS);
            return false;
        };
        // Pages that gain nothing stay as they are: it must not begin with them again.
        let mut at = if cluster == from {
            background.recompress_at
        } else {
            0
        };
        background.recompress_from = cluster;
        let first = EntryId(cluster * CLUSTER_ENTRIES as u32);
        let mut done = 0;
        while at < CLUSTER_ENTRIES as u32 {
            if done == PAGES {
                background.recompress_at = at;
                return true;
            }
            done += usize::from(self.recompress(cpu, first.plus(at)));
            at += 1;
        }
        background.recompress_at = 0;
        if let Some(mut locked) = self.space.lock_if_used(first) {
            locked.set_dense(true);
        }
        true
    }

    /// Compresses one page again if it is cold; whether it was tried.
    fn recompress(&self, cpu: Cpu, entry: EntryId) -> bool {
        let mut scratch = self.coders.take(cpu);
        let Some(mut locked) = self.space.lock_if_used(entry) else {
            return false;
        };
        let word = locked.word();
        let Location::Pool(handle) = word.location() else {
            return false;
        };
        if word.busy() || word.cached() || word.referenced() {
            return false;
        }
        let (len, codec) = self.pool.read(handle, &mut scratch.data.0);
        if codec != Codec::Lz4 {
            return false;
        }
        let group = locked.cluster().group().clone();
        let busy = word.with_busy(true);
        locked.set(busy);
        drop(locked);
        let mut page = [0; PAGE_SIZE];
        let scratch = &mut *scratch;
        let data = &mut scratch.data.0;
        let good = word.checksum_matches(checksum(Codec::Lz4, &data[..len]))
            && scratch
                .coder
                .decompress(Codec::Lz4, &data[..len], &mut page)
                .is_ok();
        let dense = good
            .then(|| scratch.coder.compress(Codec::Zstd, &page, data))
            .flatten()
            .map(|dense| (dense, dense.next_multiple_of(STEP)))
            // An eighth is the least that is worth a slower load.
            .filter(|&(_, padded)| padded <= MAX_COMPRESSED && padded * 8 <= len * 7);
        let new = dense.and_then(|(dense, padded)| {
            data[dense..padded].fill(0);
            let object = Object {
                codec: Codec::Zstd,
                data: &data[..padded],
                owner: entry,
            };
            let handle = self.pool.insert(cpu, object).ok()?;
            Some((
                handle,
                checksum(Codec::Zstd, &data[..padded]),
                padded as u64,
            ))
        });
        self.replace(&group, entry, busy, handle, new);
        true
    }

    /// Names the denser object, if nothing became of the entry meanwhile.
    fn replace(
        &self,
        group: &Group,
        entry: EntryId,
        busy: Word,
        old: Handle,
        new: Option<(Handle, u64, u64)>,
    ) {
        let Some((handle, checksum, bytes)) = new else {
            self.space.repoint(entry, busy, busy.with_busy(false));
            return;
        };
        // Before it is named: who frees it uncharges.
        group.charge(bytes);
        let named = self
            .space
            .repoint(entry, busy, Word::pool(handle, checksum));
        self.free_object(group, if named.is_some() { old } else { handle });
    }
}
