//! The cells of a device's clusters, found by the cluster's number.
//!
//! They lie in blocks, each made when one of its clusters is first used. An unused device costs next to
//! nothing, and a used one pays for its clusters and no others, as the last block is as short as the
//! device. Blocks stay until the device goes, so a cell is found without a lock.

use super::Cell;
use crate::types::ClusterIndex;
use std::sync::OnceLock;

/// Cells of a block.
const BLOCK: usize = if cfg!(loom) { 2 } else { 256 };
/// Cells one after the other, of which a cache line may hold parts of two.
const STRIDE: usize = if cfg!(loom) { BLOCK } else { 4 };

/// From the beginning of a cache line on.
#[repr(align(64))]
struct Line([Cell; STRIDE]);

type Block = Box<[Line]>;

/// The cells of a device.
pub(in crate::slots) struct ClusterDirectory {
    clusters: usize,
    blocks: Box<[OnceLock<Block>]>,
}

/// The line of a cluster's cell in a block of so many, and its place there. Cells that share a cache
/// line are at least a quarter of the block apart in number: 128 MiB of the device, or less behind the
/// last whole block. So processors that fill it side by side share none.
const fn place(c: ClusterIndex, lines: usize) -> (usize, usize) {
    const LINES: usize = BLOCK / STRIDE;
    let within = c.index() % BLOCK;
    // Of a whole block it takes no division.
    match lines {
        LINES => (within % LINES, within / LINES),
        _ => (within % lines, within / lines),
    }
}

impl ClusterDirectory {
    pub fn new(clusters: u32) -> Self {
        let clusters = clusters as usize;
        let blocks = (0..clusters.div_ceil(BLOCK)).map(|_| OnceLock::new());
        Self {
            clusters,
            blocks: blocks.collect(),
        }
    }

    /// The cell of a cluster, if the cluster was ever used, or one of its block.
    #[inline]
    pub fn get(&self, c: ClusterIndex) -> Option<&Cell> {
        let block = self.blocks.get(c.index() / BLOCK)?.get()?;
        let (line, at) = place(c, block.len());
        block[line].0.get(at)
    }

    /// The cell of a cluster of the device, made if need be.
    pub fn make(&self, c: ClusterIndex) -> &Cell {
        let before = c.index() / BLOCK * BLOCK;
        let block = self.blocks[c.index() / BLOCK].get_or_init(|| {
            let lines = (self.clusters - before).min(BLOCK).div_ceil(STRIDE);
            let line = || Line(std::array::from_fn(|_| Cell::new()));
            std::iter::repeat_with(line).take(lines).collect()
        });
        let (line, at) = place(c, block.len());
        &block[line].0[at]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        let cells: usize = blocks.map(|block| size_of_val(&**block)).sum();
        size_of_val(&*self.blocks) + cells
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// On devices that end anywhere in a block, each cluster has a cell of its own, no line of which is
    /// its neighbour's. At most three cells are nobody's, and only those are found beyond the end.
    #[test]
    fn each_cluster_has_a_cell_of_its_own() {
        for clusters in (1..=12).chain([255, 256, 257, 300, 511, 512, 513]) {
            let cells = ClusterDirectory::new(clusters);
            let idle = cells.bytes();
            let each = (0..clusters).map(ClusterIndex);
            assert!(each.clone().all(|c| cells.get(c).is_none()));
            let at = |cell: &Cell| std::ptr::from_ref(cell) as usize;
            let made: Vec<usize> = each.clone().map(|c| at(cells.make(c))).collect();
            let found = each.map(|c| at(cells.get(c).unwrap()));
            assert!(found.eq(made.iter().copied()));
            let own: BTreeSet<usize> = made.iter().copied().collect();
            assert_eq!(own.len(), made.len());
            for beyond in clusters..clusters + 600 {
                let cell = cells.get(ClusterIndex(beyond));
                assert!(cell.is_none_or(|cell| !own.contains(&at(cell))));
            }
            for block in made.chunks(BLOCK).filter(|block| block.len() > STRIDE) {
                let last_line = |cell: &usize| (cell + size_of::<Cell>() - 1) / 64;
                let apart = |a: &usize, b: &usize| last_line(a) < b / 64 || last_line(b) < a / 64;
                assert!(block.is_sorted_by(apart));
            }
            let spare = cells.bytes() - idle - made.len() * size_of::<Cell>();
            assert!(spare <= 3 * size_of::<Cell>(), "{clusters} clusters");
        }
    }
}
