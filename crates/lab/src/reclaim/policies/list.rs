//! A doubly linked list of page numbers. The links of a page stand in arrays at the page's number, so each
//! operation takes constant time and allocates nothing.
//!
//! The ring closes at one number more than the last page's: its links are the first and the last page. A page on no
//! list has a link of its own, [`NOWHERE`]. A list does not know of other lists: a page may be on many.

/// Next of a page that is not on the list.
const NOWHERE: u32 = u32::MAX;

/// Pages in the order in which they came.
pub(super) struct List {
    /// Next page of each page, and the first page in the end.
    next: Vec<u32>,
    /// Page before each page, and the last page in the end.
    previous: Vec<u32>,
    /// Number of pages on the list.
    len: usize,
}

impl List {
    /// An empty list for pages numbered below `pages`.
    pub fn new(pages: usize) -> Self {
        let ring = u32::try_from(pages).expect("page numbers have 32 bits");
        assert!(ring != NOWHERE, "the last number marks pages on no list");
        let mut next = vec![NOWHERE; pages + 1];
        next[pages] = ring;
        let previous = next.clone();
        Self {
            next,
            previous,
            len: 0,
        }
    }

    /// The number that closes the ring.
    fn ring(&self) -> u32 {
        (self.next.len() - 1) as u32
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no page is on the list.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the page is on the list.
    pub fn contains(&self, page: u32) -> bool {
        self.next[page as usize] != NOWHERE
    }

    /// The page that came first.
    pub fn first(&self) -> Option<u32> {
        self.after(self.ring())
    }

    /// The page that came after `page`, which is on the list.
    pub fn after(&self, page: u32) -> Option<u32> {
        let next = self.next[page as usize];
        assert!(next != NOWHERE, "page {page} is not on the list");
        (next != self.ring()).then_some(next)
    }

    /// The page comes last. It is not yet on the list.
    pub fn push(&mut self, page: u32) {
        assert!(!self.contains(page), "page {page} is on the list already");
        let ring = self.ring();
        let last = self.previous[ring as usize];
        self.next[last as usize] = page;
        self.previous[page as usize] = last;
        self.next[page as usize] = ring;
        self.previous[ring as usize] = page;
        self.len += 1;
    }

    /// The page leaves the list: whether it was there.
    pub fn remove(&mut self, page: u32) -> bool {
        if !self.contains(page) {
            return false;
        }
        let (before, after) = (self.previous[page as usize], self.next[page as usize]);
        self.next[before as usize] = after;
        self.previous[after as usize] = before;
        self.next[page as usize] = NOWHERE;
        self.len -= 1;
        true
    }

    /// The page that came first leaves.
    pub fn pop(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// The page comes last, whether it was on the list or not: whether it was.
    pub fn renew(&mut self, page: u32) -> bool {
        let was = self.remove(page);
        self.push(page);
        was
    }

    /// The pages, the first first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(), |page| self.after(*page))
    }

    /// The links agree in both directions, and as many pages are linked as are counted.
    pub fn check(&self) {
        let mut before = self.ring();
        let mut linked = 0;
        for page in self.iter() {
            assert_eq!(self.previous[page as usize], before, "before {page}");
            before = page;
            linked += 1;
            assert!(linked <= self.len, "more pages than are counted");
        }
        assert_eq!(self.previous[self.ring() as usize], before, "the last");
        assert_eq!(linked, self.len, "linked pages");
        let marked = self.next.iter().filter(|next| **next != NOWHERE).count();
        assert_eq!(marked, self.len + 1, "marked pages and the ring");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;
    use std::collections::VecDeque;

    #[test]
    fn a_list_does_as_a_queue_does() {
        let mut random = Random::new(1);
        for pages in [1, 2, 9] {
            let mut list = List::new(pages);
            let mut model = VecDeque::new();
            for _ in 0..2000 {
                let page = random.below(pages) as u32;
                let place = model.iter().position(|other| *other == page);
                match random.below(4) {
                    0 => assert_eq!(list.pop(), model.pop_front()),
                    1 => {
                        assert_eq!(list.remove(page), place.is_some());
                        place.map(|place| model.remove(place));
                    }
                    2 if place.is_none() => {
                        list.push(page);
                        model.push_back(page);
                    }
                    _ => {
                        assert_eq!(list.renew(page), place.is_some());
                        place.map(|place| model.remove(place));
                        model.push_back(page);
                    }
                }
                list.check();
                assert_eq!(list.first(), model.front().copied());
                assert_eq!(list.is_empty(), model.is_empty());
                assert!(list.iter().eq(model.iter().copied()));
            }
        }
    }

    #[test]
    #[should_panic(expected = "page 3 is on the list already")]
    fn a_page_is_on_a_list_once() {
        let mut list = List::new(4);
        list.push(3);
        list.push(3);
    }

    #[test]
    #[should_panic(expected = "page 0 is not on the list")]
    fn nothing_follows_a_page_that_is_not_there() {
        List::new(4).after(0);
    }
}
