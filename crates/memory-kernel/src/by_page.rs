//! A table of something for each page, by address: [`ByPage`]. A page is found in one search among few chunks, and
//! neighbours lie side by side: a simulation looks pages up more often than it does anything else.

use crate::PAGE;
use std::ops::{Index, Range};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages of a chunk.
const CHUNK: usize = 512;
const SPAN: usize = CHUNK * PAGE;

#[derive(Clone)]
struct Chunk<T> {
    /// First address.
    start: usize,
    /// Pages that have something.
    count: usize,
    pages: Box<[Option<T>]>,
}

/// See the module. Addresses are those of pages.
pub struct ByPage<T> {
    /// Chunks with pages, in the order of their addresses.
    chunks: Vec<Chunk<T>>,
    /// Pages of all chunks.
    count: usize,
    /// The chunk that was found last: the next is often the same.
    last: AtomicUsize,
}

impl<T: Clone> Clone for ByPage<T> {
    fn clone(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            count: self.count,
            last: AtomicUsize::new(0),
        }
    }
}

impl<T> Default for ByPage<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ByPage<T> {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            count: 0,
            last: AtomicUsize::new(0),
        }
    }

    /// The chunk that has an address, or the place where it would stand.
    fn find(&self, at: usize) -> Result<usize, usize> {
        let start = at - at % SPAN;
        let last = self.last.load(Relaxed);
        if self.chunks.get(last).is_some_and(|c| c.start == start) {
            return Ok(last);
        }
        let found = self
            .chunks
            .binary_search_by_key(&start, |chunk| chunk.start);
        if let Ok(index) = found {
            self.last.store(index, Relaxed);
        }
        found
    }

    /// How many pages have something.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no page has.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The value of a page.
    pub fn get(&self, at: usize) -> Option<&T> {
        let chunk = self.find(at).ok()?;
        self.chunks[chunk].pages[at % SPAN / PAGE].as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let chunk = self.find(at).ok()?;
        self.chunks[chunk].pages[at % SPAN / PAGE].as_mut()
    }

    /// Whether it has something.
    pub fn contains(&self, at: usize) -> bool {
        self.get(at).is_some()
    }

    /// A page has this from now on.
    pub fn insert(&mut self, at: usize, value: T) -> &mut T {
        let index = self.find(at).unwrap_or_else(|index| {
            let chunk = Chunk {
                start: at - at % SPAN,
                count: 0,
                pages: (0..CHUNK).map(|_| None).collect(),
            };
            self.chunks.insert(index, chunk);
            index
        });
        let chunk = &mut self.chunks[index];
        let page = &mut chunk.pages[at % SPAN / PAGE];
        let new = usize::from(page.is_none());
        chunk.count += new;
        self.count += new;
        page.insert(value)
    }

    /// A page has nothing from now on; what it had.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        let index = self.find(at).ok()?;
        let chunk = &mut self.chunks[index];
        let value = chunk.pages[at % SPAN / PAGE].take()?;
        chunk.count -= 1;
        self.count -= 1;
        if chunk.count == 0 {
            self.chunks.remove(index);
        }
        Some(value)
    }

    /// Chunks that an area touches.
    fn touched(&self, area: &Range<usize>) -> Range<usize> {
        let first = self
            .chunks
            .partition_point(|c| c.start + SPAN <= area.start);
        let later = &self.chunks[first..];
        first..first + later.iter().take_while(|c| c.start < area.end).count()
    }

    /// Pages of an area that have something, in order.
    pub fn range(&self, area: Range<usize>) -> impl Iterator<Item = (usize, &T)> {
        let chunks = &self.chunks[self.touched(&area)];
        chunks.iter().flat_map(move |chunk| {
            let (first, end) = part(chunk.start, &area);
            let pages = chunk.pages[first..end].iter().enumerate();
            pages.filter_map(move |(i, page)| {
                Some((chunk.start + (first + i) * PAGE, page.as_ref()?))
            })
        })
    }

    /// The same, to be changed.
    pub fn range_mut(&mut self, area: Range<usize>) -> impl Iterator<Item = (usize, &mut T)> {
        let touched = self.touched(&area);
        self.chunks[touched].iter_mut().flat_map(move |chunk| {
            let (start, (first, end)) = (chunk.start, part(chunk.start, &area));
            let pages = chunk.pages[first..end].iter_mut().enumerate();
            pages.filter_map(move |(i, page)| Some((start + (first + i) * PAGE, page.as_mut()?)))
        })
    }

    /// All pages that have something, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.range(0..usize::MAX)
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.range_mut(0..usize::MAX)
    }

    /// Keeps those for which `f` holds.
    pub fn retain(&mut self, mut f: impl FnMut(usize, &T) -> bool) {
        let gone: Vec<usize> = self
            .iter()
            .filter(|(at, v)| !f(*at, v))
            .map(|(at, _)| at)
            .collect();
        gone.into_iter().for_each(|at| drop(self.remove(at)));
    }
}

/// The pages of a chunk that lie in an area.
fn part(chunk: usize, area: &Range<usize>) -> (usize, usize) {
    let first = area.start.saturating_sub(chunk) / PAGE;
    let end = (area.end - chunk).div_ceil(PAGE).min(CHUNK);
    (first.min(end), end)
}

impl<T> Index<usize> for ByPage<T> {
    type Output = T;
    fn index(&self, at: usize) -> &T {
        self.get(at).expect("the page has something")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_as_a_map() {
        let (mut table, mut map) = (ByPage::new(), BTreeMap::new());
        let mut random = Random::new(1);
        for step in 0..20_000 {
            let at = random.below(5 * CHUNK) * PAGE;
            let end = at + random.below(600) * PAGE;
            match random.below(16) {
                0..9 => {
                    table.insert(at, step);
                    map.insert(at, step);
                }
                9..14 => assert_eq!(table.remove(at), map.remove(&at)),
                14 => {
                    table.range_mut(at..end).for_each(|(_, v)| *v += 1);
                    map.range_mut(at..end).for_each(|(_, v)| *v += 1);
                }
                _ if step % 64 == 0 => {
                    table.retain(|at, v| (at ^ *v) & 0x3000 > 0);
                    map.retain(|at, v| (at ^ *v) & 0x3000 > 0);
                }
                _ => {}
            }
            assert_eq!(table.get(at), map.get(&at));
            assert_eq!(table.len(), map.len());
            let all = table.range(at..end).map(|(at, v)| (at, *v));
            assert!(all.eq(map.range(at..end).map(|(at, v)| (*at, *v))));
        }
    }
}
