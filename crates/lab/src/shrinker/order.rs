//! How often the wrong page went to the device, in simulated runs: who swaps is watched, and asked in
//! the end where each page is.

use super::Swapping;
use std::collections::HashMap;

/// Remembers what was stored when.
pub struct Watched<'a> {
    pub inner: &'a mut dyn Swapping,
    /// The number of its store, and its group, for each page that is out.
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

    /// The percentage of pairs, of a page on the device and one in the pool, in which the one on the
    /// device was stored later: pairs of the same group, and of different groups.
    pub fn inverted_percent(&self) -> (f64, f64) {
        let mut pages: Vec<(u16, u64, bool)> = self
            .stored
            .iter()
            .map(|(&page, &(at, group))| (group, at, self.inner.on_device(page)))
            .collect();
        pages.sort_unstable();
        let mut same = Pairs::default();
        for group in pages.chunk_by(|a, b| a.0 == b.0) {
            same.add(group.iter().map(|page| page.2));
        }
        pages.sort_unstable_by_key(|page| page.1);
        let mut all = Pairs::default();
        all.add(pages.iter().map(|page| page.2));
        let different = Pairs {
            inverted: all.inverted - same.inverted,
            all: all.all - same.all,
        };
        (same.percent(), different.percent())
    }
}

/// Pairs of a page on the device and one in the pool.
#[derive(Default)]
struct Pairs {
    inverted: u64,
    all: u64,
}

impl Pairs {
    /// Adds those of some pages, of which it is said in order of age whether they are on the device.
    fn add(&mut self, pages: impl Iterator<Item = bool>) {
        let (mut pooled, mut on_device) = (0, 0);
        for device in pages {
            if device {
                on_device += 1;
                self.inverted += pooled;
            } else {
                pooled += 1;
            }
        }
        self.all += pooled * on_device;
    }

    fn percent(&self) -> f64 {
        self.inverted as f64 / self.all.max(1) as f64 * 100.0
    }
}
