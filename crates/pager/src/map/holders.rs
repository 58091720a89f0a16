//! The holders of memory that stays for a while: threads on stacks that the program brought, and robust mutexes. Plain data
//! under the lock.
//!
//! The attribute of a range says that some holder is there (`Pinned::held`). Here is which, by its bytes: two may have
//! parts of one page. A stack is held until its thread has *ended*, which the system says of the thread's number. A
//! join does not tell: threads may be detached. A number that is used again holds the stack for longer, nothing else.
//! A mutex is held until it is destroyed.
//!
//! A holder that has ended is noted as *gone*. The keeper makes an end of the pages' stay, as it alone can protect pages
//! that relatives share.
//!
//! Holders of memory that was unmapped go with it. Of memory that moved they stay behind, and its pins are for good.

use std::ops::Range;

/// A stretch of addresses, of bytes or pages.
pub type Area = (usize, usize);

/// Bytes of a mutex.
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();

/// A stack that the program brought.
#[derive(Clone, Copy)]
struct Stack {
    start: usize,
    end: usize,
    /// The thread; none: it has not begun to run.
    thread: Option<u32>,
}

/// All holders of the process. Both lists are sorted: there are few stacks, and mutexes are mostly made in the order of
/// their addresses.
pub struct Holders {
    /// Stacks, of which none overlaps another.
    stacks: Vec<Stack>,
    /// The first bytes of robust mutexes.
    mutexes: Vec<usize>,
    /// Areas whose holders are gone.
    gone: Vec<Area>,
    /// The thread that forks.
    forker: u32,
}

impl Holders {
    /// None.
    pub const fn new() -> Self {
        Self {
            stacks: Vec::new(),
            mutexes: Vec::new(),
            gone: Vec::new(),
            forker: 0,
        }
    }

    /// The stacks that overlap an area, by their places in the list.
    fn stacks_in(&self, (start, end): Area) -> Range<usize> {
        let first = self.stacks.partition_point(|stack| stack.end <= start);
        let last = self.stacks.partition_point(|stack| stack.start < end);
        first..last.max(first)
    }

    /// The same of mutexes.
    fn mutexes_in(&self, (start, end): Area) -> Range<usize> {
        let first = self.mutexes.partition_point(|at| at + MUTEX <= start);
        let last = self.mutexes.partition_point(|at| *at < end);
        first..last.max(first)
    }

    /// A thread is about to be made on a stack. Older stacks there are none any more.
    pub fn add_stack(&mut self, start: usize, end: usize) {
        let over = self.stacks_in((start, end));
        let at = over.start;
        for stack in self.stacks.drain(over) {
            self.gone.push((stack.start, stack.end));
        }
        let thread = None;
        self.stacks.insert(at, Stack { start, end, thread });
    }

    /// The place of a stack in the list.
    fn find(&self, start: usize) -> Option<usize> {
        self.stacks.binary_search_by_key(&start, |s| s.start).ok()
    }

    /// The thread of a stack runs.
    pub fn begin(&mut self, start: usize, thread: u32) {
        if let Some(at) = self.find(start) {
            self.stacks[at].thread = Some(thread);
        }
    }

    /// The thread of a stack has ended, or was never made.
    pub fn end_stack(&mut self, start: usize, thread: Option<u32>) {
        if let Some(at) = self.find(start)
            && self.stacks[at].thread == thread
        {
            let stack = self.stacks.remove(at);
            self.gone.push((stack.start, stack.end));
        }
    }

    /// The first stack behind an address whose thread runs, and that.
    pub fn next_thread(&self, behind: usize) -> Option<(usize, u32)> {
        let first = self.stacks.partition_point(|stack| stack.start <= behind);
        let running = |stack: &Stack| Some((stack.start, stack.thread?));
        self.stacks[first..].iter().find_map(running)
    }

    /// A robust mutex is made.
    pub fn add_mutex(&mut self, start: usize) {
        if let Err(at) = self.mutexes.binary_search(&start) {
            self.mutexes.insert(at, start);
        }
    }

    /// One is destroyed.
    pub fn end_mutex(&mut self, start: usize) {
        if let Ok(at) = self.mutexes.binary_search(&start) {
            self.mutexes.remove(at);
            self.gone.push((start, start + MUTEX));
        }
    }

    /// An area whose holder is gone, once for each.
    pub fn take_gone(&mut self) -> Option<Area> {
        let gone = self.gone.pop();
        if self.gone.is_empty() {
            self.gone = Vec::new();
        }
        gone
    }

    /// The first that is held of an area.
    pub fn next_held(&self, (start, end): Area) -> Option<Area> {
        let stack = self.stacks.get(self.stacks_in((start, end)).start);
        let mutex = self.mutexes.get(self.mutexes_in((start, end)).start);
        let stack = stack.map(|stack| (stack.start, stack.end));
        let mutex = mutex.map(|mutex| (*mutex, mutex + MUTEX));
        let first = stack.into_iter().chain(mutex).min()?;
        let held = (first.0.max(start), first.1.min(end));
        (held.0 < held.1).then_some(held)
    }

    /// Memory was unmapped: who lies in it alone is no holder.
    pub fn forget(&mut self, (start, end): Area) {
        let stacks = self.stacks_in((start, end));
        if !stacks.is_empty() {
            self.stacks.retain(|s| s.start < start || s.end > end);
        }
        let mutexes = self.mutexes_in((start, end));
        if !mutexes.is_empty() {
            self.mutexes.drain(mutexes);
        }
    }

    /// A thread is about to fork.
    pub fn forks(&mut self, thread: u32) {
        self.forker = thread;
    }

    /// In the child: its one thread, of that number, is on the stack of the one that forked. Others have ended here.
    pub fn reset_in_child(&mut self, thread: u32) {
        let forker = self.forker;
        for stack in &mut self.stacks {
            if stack.thread == Some(forker) {
                stack.thread = Some(thread);
            }
        }
        // A thread that had not begun to run is not here, and will not say so. The one that forked had begun.
        let gone = &mut self.gone;
        self.stacks.retain(|stack| {
            if stack.thread.is_none() {
                gone.push((stack.start, stack.end));
            }
            stack.thread.is_some()
        });
    }

    /// Stacks do not overlap, and both lists are sorted.
    pub fn check(&self) {
        let stacks = |two: &[Stack]| two[0].end <= two[1].start;
        assert!(self.stacks.windows(2).all(stacks));
        assert!(self.stacks.iter().all(|stack| stack.start < stack.end));
        assert!(self.mutexes.is_sorted());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: usize = 1 << 16;

    fn held(holders: &Holders, (mut start, end): Area) -> Vec<Area> {
        let next = || {
            let held = holders.next_held((start, end))?;
            start = held.1;
            Some(held)
        };
        std::iter::from_fn(next).collect()
    }

    fn threads(holders: &Holders) -> Vec<(usize, u32)> {
        let next = |last: &(usize, u32)| holders.next_thread(last.0);
        std::iter::successors(holders.next_thread(0), next).collect()
    }

    #[test]
    fn a_stack_is_held_until_its_own_thread_has_ended() {
        let mut holders = Holders::new();
        holders.add_stack(STACK, 2 * STACK);
        assert_eq!(threads(&holders), [], "it has not begun");
        holders.begin(STACK, 7);
        assert_eq!(threads(&holders), [(STACK, 7)]);
        holders.end_stack(STACK, None);
        holders.end_stack(STACK, Some(8));
        assert_eq!(holders.take_gone(), None);
        // Another there, before anybody saw that the first has ended.
        holders.add_stack(STACK + 100, 3 * STACK);
        holders.begin(STACK + 100, 9);
        holders.end_stack(STACK, Some(7));
        assert_eq!(holders.take_gone(), Some((STACK, 2 * STACK)));
        assert_eq!(holders.take_gone(), None);
        assert_eq!(held(&holders, (0, 2 * STACK)), [(STACK + 100, 2 * STACK)]);
        holders.check();
        holders.end_stack(STACK + 100, Some(9));
        assert_eq!(holders.take_gone(), Some((STACK + 100, 3 * STACK)));
        assert_eq!(held(&holders, (0, usize::MAX)), []);
    }

    #[test]
    fn neighbours_share_pages() {
        let mut holders = Holders::new();
        holders.add_stack(STACK + 100, 2 * STACK + 100);
        holders.add_stack(100, STACK + 100);
        holders.add_mutex(STACK + 50);
        holders.add_mutex(STACK - 8);
        holders.add_mutex(STACK + 50);
        holders.check();
        let page = (STACK, STACK + 4096);
        assert_eq!(
            held(&holders, page).last(),
            Some(&(STACK + 100, STACK + 4096))
        );
        holders.end_mutex(STACK + 50);
        holders.end_mutex(STACK + 50);
        assert_eq!(holders.take_gone(), Some((STACK + 50, STACK + 50 + MUTEX)));
        assert_eq!(holders.take_gone(), None);
        holders.forget((100, STACK + 200));
        assert_eq!(held(&holders, page), [(STACK + 100, STACK + 4096)]);
        holders.add_mutex(STACK - 8);
        let reaching = (STACK, STACK - 8 + MUTEX);
        assert_eq!(
            held(&holders, page),
            [reaching, (STACK + 100, STACK + 4096)]
        );
    }

    #[test]
    fn a_child_runs_on_the_stack_of_the_one_that_forked() {
        let mut holders = Holders::new();
        for (n, thread) in [(1, 5), (2, 6)] {
            holders.add_stack(n * STACK, (n + 1) * STACK);
            holders.begin(n * STACK, thread);
        }
        holders.add_stack(3 * STACK, 4 * STACK);
        holders.forks(6);
        holders.reset_in_child(30);
        assert_eq!(threads(&holders), [(STACK, 5), (2 * STACK, 30)]);
        assert_eq!(holders.take_gone(), Some((3 * STACK, 4 * STACK)));
        holders.check();
    }
}
