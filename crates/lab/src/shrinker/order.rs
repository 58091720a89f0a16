//! How often the wrong page went to the device, in simulated runs: who swaps is watched, and asked in
//! the end where each page is.

use super::Swapping;
use std::collections::HashMap;

/// Remembers what was stored when.
pub struct Watched<'a> {
    pub inner: &'a mut dyn Swapping,
    /// Of each page that is out: the number of its store, and its group.
    stored: HashMap<u64, (u64, u16)>,
    next: u64,
}

impl<'a> Watched<'a> {
    pub fn new(inner: &'a mut dyn Swapping) -> Self {
        Self {
            inner,
            stored: HashMap::new(),
            next: 0,
        }
    }
    pub fn store(&mut self, group: u16, pages: &[u64]) {
        for &page in pages {
            self.stored.insert(page, (self.next, group));
            self.next += 1;
        }
        self.inner.store(group, pages);
    }
    pub fn load(&mut self, page: u64) {
        self.stored.remove(&page);
        self.inner.load(page);
    }
    pub fn free(&mut self, page: u64) {
        self.stored.remove(&page);
        self.inner.free(page);
    }

    /// Of all pairs of a page on the device and one in the pool, stored by the same group, in how
    /// many percent the one on the device was stored later.
    pub fn inverted_percent(&self) -> f64 {
        let mut pages: Vec<(u16, u64, bool)> = self
            .stored
            .iter()
            .map(|(&page, &(at, group))| (group, at, self.inner.on_device(page)))
            .collect();
        pages.sort_unstable();
        let (mut inverted, mut pairs) = (0u64, 0u64);
        for group in pages.chunk_by(|a, b| a.0 == b.0) {
            let on_device = group.iter().filter(|page| page.2).count() as u64;
            pairs += on_device * (group.len() as u64 - on_device);
            // In order of age: each page on the device counts those in the pool before it.
            let mut pooled = 0;
            for &(_, _, device) in group {
                if device {
                    inverted += pooled;
                } else {
                    pooled += 1;
                }
            }
        }
        if pairs == 0 {
            0.0
        } else {
            inverted as f64 / pairs as f64 * 100.0
        }
    }
}
