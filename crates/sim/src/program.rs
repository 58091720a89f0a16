//! The programs: threads that touch memory, call for memory and give it back, and know what each page must hold.
//!
//! A thread that makes a call claims the pages that it is about. Others may read them meanwhile, and find what was
//! there, zeros, or nothing. All other reads must find what was written last.

use crate::chance::Stream;
use crate::content::Content;
use crate::life;
use crate::memory::{Comes, Expected, MemoryModel, PLAIN, Run, each};
use crate::process::{self, may_lose, pager};
use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::vfork;
use crate::world::{Key, Role};
use ebb_memory_kernel::page_tables::Mapping;
use ebb_memory_kernel::{PAGE, Stop};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// How much of what a program does, in hundredths of its operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Memory calls.
    pub calls: usize,
    /// Transfers into pinned pages.
    pub transfers: usize,
    /// Forks, in thousandths.
    pub forks: usize,
    /// Execs, in thousandths.
    pub execs: usize,
    /// Children of `vfork`, in thousandths.
    pub vforks: usize,
    /// Changes of what devices are to leave, in thousandths.
    pub removals: usize,
    /// Writes among touches, in hundredths.
    pub writes: usize,
    /// Noise among what touches write, in hundredths, beside what chance makes of it: pages that find no room in a pool.
    pub noise: usize,
    /// The most pages of memory.
    pub most: usize,
    /// The thread that ends the program does it after so many operations of all; 0: none does.
    pub dies_after: u64,
}

/// Touches of a page that the pager works on, in hundredths: there it is that races are.
const NEAR: usize = 20;
/// Writes among these, at least. So a program that hardly writes, whose pages keep clean copies, writes pages that leave.
const NEAR_WRITES: usize = 50;

/// The program of a process.
pub struct Program {
    memory: RefCell<MemoryModel>,
    mix: Cell<Mix>,
    /// Threads that have not ended.
    threads: Cell<u32>,
    /// Operations left to all threads.
    left: Cell<u64>,
    done: Cell<u64>,
    stamps: Cell<u32>,
    forks: Cell<u32>,
    /// Devices in use, as last seen.
    devices: Cell<usize>,
    /// Flag: memory was mapped of which the pager was not told. Counters outlive an exec.
    behind: Cell<bool>,
}

thread_local! {
    /// That of this process.
    static PROGRAM: Program = const { Program {
        memory: RefCell::new(MemoryModel::new()),
        mix: Cell::new(Mix { calls: 0, transfers: 0, forks: 0, execs: 0, vforks: 0, removals: 0, writes: 0, noise: 0, most: 0, dies_after: 0 }),
        threads: Cell::new(0),
        left: Cell::new(0),
        done: Cell::new(0),
        stamps: Cell::new(0),
        forks: Cell::new(0),
        devices: Cell::new(0),
        behind: Cell::new(false),
    } };
}

fn with<R>(f: impl FnOnce(&Program) -> R) -> R {
    PROGRAM.with(f)
}

fn memory<R>(f: impl FnOnce(&mut MemoryModel) -> R) -> R {
    with(|program| f(&mut program.memory.borrow_mut()))
}

fn stamp() -> u32 {
    with(|program| {
        program.stamps.set(program.stamps.get() + 1);
        program.stamps.get()
    })
}

/// Prepares a program of so many threads, which do so many operations together.
pub fn prepare(mix: Mix, threads: u32, operations: u64) {
    with(|program| {
        program.mix.set(mix);
        program.threads.set(threads);
        program.left.set(operations);
    });
}

/// A thread of the program, from its begin to its end.
pub fn run(seed: u64, number: u64) {
    let mut thread = ProgramThread {
        id: scheduler().me().id.get(),
        stream: Stream::new(seed, number),
        scan: 0,
    };
    begin(number == 0);
    while thread.operation() {}
    let left = with(|program| {
        program.threads.set(program.threads.get() - 1);
        program.threads.get()
    });
    if left == 0 {
        thread.end();
    }
}

/// Flag in the numbers of threads as long as they handle a signal: what a handler claims is its own.
const HANDLES: u32 = 1 << 31;

/// The handler of signals touches memory and makes calls, as any thread may.
pub fn handle_signal() {
    if !pager().pages() {
        return;
    }
    let mut handler = ProgramThread {
        id: scheduler().me().id.get() | HANDLES,
        stream: Stream::new(world().seed.get(), world().events.get()),
        scan: 0,
    };
    let mix = with(|program| program.mix.get());
    match handler.stream.below(4) {
        0 => handler.call(),
        _ => handler.touches(mix.writes, mix.noise),
    }
}

/// A thread of a program begins, of which it may be the first: once its memory is paged.
fn begin(is_first: bool) {
    if is_first {
        pager().start_first_keeper();
    }
    while !pager().pages() {
        rest(Duration::from_micros(20));
    }
}

fn rest(time: Duration) {
    scheduler().wait(Key::Never, Some(time));
}

/// The mapping at an address, as the kernel has it.
fn mapping(at: usize) -> Option<Mapping> {
    let kernel = pager().kernel();
    kernel.tables(|tables| tables.mappings.get(at).copied())
}

/// Its number.
fn number(at: usize) -> Option<u32> {
    mapping(at).map(|mapping| mapping.number)
}

/// Whether a page is in memory.
fn is_there(at: usize) -> bool {
    pager().kernel().tables(|tables| tables.pages.contains(at))
}

/// What a thread may find at an address.
enum May {
    /// This.
    Find(Expected),
    /// Content that another thread's call leaves there for now, or may bring. None: nothing is known of it.
    FindAny(Option<Expected>),
}

impl May {
    /// Whether a page may hold this.
    fn hold(&self, bytes: &[u8; PAGE]) -> bool {
        match self {
            May::Find(page) => page.content.is(bytes),
            May::FindAny(None) => true,
            May::FindAny(Some(page)) => page.meanwhile(bytes),
        }
    }
}

struct ProgramThread {
    id: u32,
    stream: Stream,
    scan: usize,
}

impl ProgramThread {
    fn fail(&self, why: String) -> ! {
        world().fail(&why);
        scheduler().leave()
    }

    /// One operation; whether there are more.
    fn operation(&mut self) -> bool {
        let (mix, left, done) = with(|program| {
            let (left, done) = (program.left.get(), program.done.get());
            program.left.set(left.saturating_sub(1));
            program.done.set(done + 1);
            (program.mix.get(), left, done)
        });
        if left == 0 || world().enough.get() != 0 {
            return false;
        }
        scheduler().begins();
        if mix.dies_after != 0 && done >= mix.dies_after {
            life::kill_program();
            scheduler().leave();
        }
        let pages = memory(|memory| memory.count());
        if pages < mix.most / 4 || pages < mix.most && self.stream.percent(1) {
            self.map(mix.most);
        } else if self.stream.percent(mix.calls) {
            self.call();
        } else if self.stream.percent(mix.transfers) {
            self.transfer();
        } else if mix.forks > 0 && self.stream.below(1000) < mix.forks {
            self.fork();
        } else if mix.execs > 0 && self.stream.below(1000) < mix.execs {
            self.exec();
        } else if mix.vforks > 0 && self.stream.below(1000) < mix.vforks {
            self.vfork(mix);
        } else if mix.removals > 0 && self.stream.below(1000) < mix.removals {
            self.device_leaves();
        } else {
            self.touches(mix.writes, mix.noise);
        }
        true
    }

    /// Touches some pages: one after the other, or here and there.
    fn touches(&mut self, writes: usize, noise: usize) {
        let in_order = self.stream.percent(50);
        for _ in 0..16 {
            let next = self.scan + PAGE;
            let at = match in_order && memory(|memory| memory.get(next).is_some()) {
                true => Some(next),
                false => memory(|memory| memory.any(&mut self.stream)),
            };
            let near = self.near(NEAR);
            let Some(at) = near.or(at) else { return };
            self.scan = at;
            let writes = near.map_or(writes, |_| writes.max(NEAR_WRITES));
            let content = match (self.stream.percent(writes), self.stream.percent(noise)) {
                (false, _) => None,
                (true, true) => Some(Content::Noise(stamp())),
                (true, false) => Some(Content::of(self.stream.number(), stamp())),
            };
            self.touch(at, content);
        }
    }

    /// Now and then, a page that the pager works on.
    fn near(&mut self, percent: usize) -> Option<usize> {
        if !self.stream.percent(percent) {
            return None;
        }
        let at = world().near.get() + self.stream.below(4) * PAGE;
        memory(|memory| memory.get(at).map(|_| at))
    }

    /// Touches a page until that has come to something.
    fn touch(&mut self, at: usize, write: Option<Content>) {
        scheduler().begins();
        loop {
            scheduler().step("touch", [at as u64, u64::from(write.is_some())]);
            let may = match memory(|memory| memory.get(at)) {
                Some(page) if page.claimed == 0 || page.claimed == self.id => May::Find(page),
                page => May::FindAny(page),
            };
            let writes = match (&may, write) {
                (May::Find(page), Some(content)) if page.prot & libc::PROT_WRITE != 0 => {
                    Some(content)
                }
                _ => None,
            };
            let mut found = true;
            let touched = pager()
                .kernel()
                .access(self.id, at, writes.is_some(), |frame| {
                    match (writes, &may) {
                        (Some(content), _) => content.fill(frame.own()),
                        (None, may) => found = may.hold(frame.bytes()),
                    }
                });
            match (touched, may) {
                // A write may wait beside a fork, for which the page is protected until it is copied.
                (Err(Stop::Waits), May::Find(page)) if page.locked && !is_there(at) => {
                    self.fail(format!("{at:#x} is locked, and has left: {page:?}"))
                }
                (Err(Stop::Waits), _) => {
                    // A signal ends the wait, and the page is asked for again once it was handled.
                    if scheduler().is_signalled() {
                        pager().kernel().interrupt(self.id);
                        scheduler().signal();
                    } else {
                        scheduler().wait(Key::Page(self.id), None);
                    }
                    continue;
                }
                (Ok(()), May::Find(_)) if let Some(content) = writes => {
                    memory(|memory| memory.change(at, |page| page.content = content));
                }
                (Ok(()), May::Find(page) | May::FindAny(Some(page))) if !found => {
                    self.differs(at, page)
                }
                (Err(Stop::Unmapped), May::Find(page)) if page.prot & libc::PROT_READ != 0 => {
                    self.fail(format!("{at:#x} is not there, and should be {page:?}"))
                }
                (Err(Stop::Poisoned), May::Find(_)) if may_lose() => {
                    memory(|memory| memory.change(at, |page| page.content = Content::Lost));
                }
                (Err(Stop::Poisoned), May::Find(page)) => {
                    let said = process::messages();
                    self.fail(format!("{at:#x} is lost, and should be {page:?}: {said}"))
                }
                _ => {}
            }
            return vfork::goes_on();
        }
    }

    fn differs(&self, at: usize, page: Expected) -> ! {
        let mut is = [0; 16];
        let _ = pager().kernel().access(self.id, at, false, |frame| {
            is.copy_from_slice(&frame.bytes()[..16])
        });
        self.fail(format!("{at:#x} holds {is:02x?}.. and should be {page:?}"))
    }

    fn map(&mut self, most: usize) {
        let pages = 1 + self.stream.below(most / 4);
        world().note(What::Do, "map", [pages as u64, 0]);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of the kernel in memory, here and below.
        match unsafe { pager().mmap(0, pages * PAGE, PLAIN, flags, -1, 0) } {
            Ok(start) => memory(|memory| memory.add((start, pages), Expected::NEW)),
            Err(libc::ENOMEM) => {}
            Err(error) => self.fail(format!("mmap: {error}")),
        }
    }

    /// A memory call about some pages.
    fn call(&mut self) {
        let most = [4, 16, 64, 256][self.stream.below(4)];
        let near = self.near(2 * NEAR);
        let start = near.or_else(|| memory(|memory| memory.any(&mut self.stream)));
        let run = start.and_then(|at| memory(|memory| memory.run_from(at, &mut self.stream, most)));
        let Some(run) = run else { return };
        let first = memory(|memory| memory.get(run.0)).expect("it is there");
        // A child has no locked memory of its own.
        let is_child = scheduler().me().child.get() != 0;
        if is_child && first.locked {
            return;
        }
        memory(|memory| memory.claim(run, self.id));
        let which = self.stream.below(if is_child { 90 } else { 100 });
        world().note(What::Do, "call", [which as u64, run.0 as u64]);
        match which {
            _ if first.locked => self.unlock(run),
            0..15 => self.unmap(run),
            15..22 => self.map_over(run, first),
            22..26 => self.map_behind(run),
            _ if first.behind => {}
            26..42 => self.drop_content(run),
            42..50 => self.advise(run, first),
            50..68 => self.protect(run),
            68..90 => self.remap(run, first),
            _ => self.lock(run, first),
        }
        memory(|memory| memory.let_go(run, self.id));
    }

    fn unmap(&mut self, run: Run) {
        scheduler().begins();
        memory(|memory| memory.change_all(run, |page| page.comes = Comes::Any));
        // SAFETY: as above.
        match unsafe { pager().munmap(run.0, run.1 * PAGE) } {
            Ok(()) => memory(|memory| memory.remove(run, self.id)),
            // All is as it was.
            Err(libc::ENOMEM) => {
                memory(|memory| memory.change_all(run, |page| page.comes = Comes::Nothing));
            }
            Err(error) => self.fail(format!("munmap: {error}")),
        }
    }

    /// Unmaps a page that it has claimed, if it is still of this mapping. Else it is gone, and others may have mapped memory
    /// there, whose calls have not come back yet.
    fn give_up(&mut self, (at, was): (usize, Option<u32>)) {
        while memory(|memory| memory.get(at)).is_some_and(|page| page.claimed == self.id) {
            match was.is_some() && number(at) == was {
                true => self.unmap((at, 1)),
                false => memory(|memory| memory.remove((at, 1), self.id)),
            }
        }
    }

    fn map_over(&mut self, run: Run, first: Expected) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: as above.
        match unsafe { pager().mmap(run.0, run.1 * PAGE, PLAIN, flags, -1, 0) } {
            Ok(_) => memory(|memory| {
                memory.remove(run, self.id);
                memory.add(
                    run,
                    Expected {
                        claimed: self.id,
                        ..Expected::NEW
                    },
                );
            }),
            Err(libc::ENOMEM) => {}
            Err(error) => self.fail(format!("mmap over {first:?}: {error}")),
        }
    }

    /// The same by instructions of the program's own, of which the pager is not told. Not while a thread of the pager has asked
    /// what is mapped, and has not moved it yet: what is mapped just there is lost (decision 0001).
    fn map_behind(&mut self, run: Run) {
        scheduler().step("map_behind", [run.0 as u64, run.1 as u64]);
        if scheduler().any_has_asked() {
            return;
        }
        pager().kernel().map_behind(run.0, run.1);
        with(|program| program.behind.set(true));
        memory(|memory| {
            memory.change_all(run, |page| {
                *page = Expected {
                    claimed: page.claimed,
                    behind: true,
                    ..Expected::NEW
                }
            });
        });
    }

    fn drop_content(&mut self, run: Run) {
        // SAFETY: as above.
        match unsafe { pager().madvise(run.0, run.1 * PAGE, libc::MADV_DONTNEED) } {
            Ok(()) => memory(|memory| memory.change_all(run, |page| page.content = Content::Zero)),
            Err(error) => self.fail(format!("madvise: {error}")),
        }
    }

    /// Advice that changes no content here, and perhaps the part that a child has.
    fn advise(&mut self, run: Run, first: Expected) {
        let all = [
            libc::MADV_POPULATE_WRITE,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_WILLNEED,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_WIPEONFORK,
            libc::MADV_KEEPONFORK,
        ];
        let advice = all[self.stream.below(all.len())];
        world().note(What::Do, "advice", [advice as u64, run.1 as u64]);
        let populates = advice == libc::MADV_POPULATE_WRITE;
        if populates && first.prot & libc::PROT_WRITE == 0 {
            return;
        }
        // SAFETY: as above.
        match unsafe { pager().madvise(run.0, run.1 * PAGE, advice) } {
            Ok(()) => memory(|memory| {
                memory.change_all(run, |page| page.in_child.follow(advice));
            }),
            // A page of it was lost.
            Err(_) if populates && may_lose() => {}
            Err(libc::ENOMEM) if !populates => {}
            Err(error) => self.fail(format!("madvise {advice}: {error}")),
        }
    }

    fn protect(&mut self, run: Run) {
        let prots = [
            PLAIN,
            PLAIN,
            libc::PROT_READ,
            libc::PROT_NONE,
            PLAIN | libc::PROT_EXEC,
        ];
        let prot = prots[self.stream.below(prots.len())];
        // SAFETY: as above.
        match unsafe { pager().mprotect(run.0, run.1 * PAGE, prot) } {
            Ok(()) => memory(|memory| memory.change_all(run, |page| page.prot = prot)),
            Err(libc::ENOMEM) => self.follow_kernel(run, |page, mapping| {
                let known = [page.prot, prot].contains(&mapping.prot);
                page.prot = mapping.prot;
                known
            }),
            Err(error) => self.fail(format!("mprotect: {error}")),
        }
    }

    /// A call was done in part: takes over what the kernel has of it. `take` says whether that can be.
    fn follow_kernel(&self, run: Run, take: impl Fn(&mut Expected, &Mapping) -> bool) {
        for at in each(run) {
            let mapping = mapping(at);
            let mut good = false;
            memory(|memory| {
                memory.change(at, |page| good = mapping.is_some_and(|m| take(page, &m)));
            });
            if !good {
                self.fail(format!("{at:#x} is {mapping:?} after a call that failed"));
            }
        }
    }

    fn lock(&mut self, run: Run, first: Expected) {
        if first.prot != PLAIN {
            return;
        }
        let run = (run.0, run.1.min(4));
        if each(run).any(|at| memory(|m| m.get(at)).is_some_and(|p| p.content == Content::Lost)) {
            return;
        }
        // SAFETY: as above.
        match unsafe { pager().mlock(run.0, run.1 * PAGE, 0) } {
            Ok(()) => memory(|memory| memory.change_all(run, |page| page.locked = true)),
            // A page of it was lost.
            Err(_) if may_lose() => self.unlock(run),
            Err(libc::ENOMEM) => self.follow_kernel(run, |page, mapping| {
                page.locked = mapping.locked;
                true
            }),
            Err(error) => self.fail(format!("mlock: {error}")),
        }
    }

    fn unlock(&mut self, run: Run) {
        // SAFETY: as above.
        match unsafe { pager().munlock(run.0, run.1 * PAGE) } {
            Ok(()) => memory(|memory| memory.change_all(run, |page| page.locked = false)),
            Err(error) => self.fail(format!("munlock: {error}")),
        }
    }

    /// Moves pages elsewhere, or makes them more or fewer.
    fn remap(&mut self, run: Run, first: Expected) {
        let target = match self.stream.percent(40) {
            true => memory(|memory| memory.run(&mut self.stream, run.1)),
            false => None,
        };
        let len = match (target, self.stream.below(3)) {
            (Some(target), _) => target.1,
            (None, 0) => run.1.div_ceil(2),
            (None, _) => run.1 + 1 + self.stream.below(16),
        };
        let (flags, to) = match target {
            Some(target) => {
                memory(|memory| memory.claim(target, self.id));
                // Others are to touch, just before, what is replaced: their faults are about other memory then.
                world().near.set(target.0);
                scheduler().is_tense();
                (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, target.0)
            }
            None => (libc::MREMAP_MAYMOVE, 0),
        };
        let kept = run.1.min(len);
        let pages: Vec<_> = each((run.0, kept))
            .map(|at| memory(|m| m.get(at)))
            .collect();
        memory(|memory| {
            memory.change_all(run, |page| page.comes = Comes::Any);
            for (at, page) in each((to, kept)).zip(&pages) {
                let coming = page.map_or(Comes::Any, |page| Comes::This(page.content));
                memory.change(at, |page| page.comes = coming);
            }
        });
        world().note(What::Do, "remap", [to as u64, len as u64]);
        let replaced = each(target.unwrap_or((0, 0))).map(|at| (at, number(at)));
        let replaced: Vec<_> = replaced.collect();
        // SAFETY: as above.
        let moved = unsafe { pager().mremap(run.0, run.1 * PAGE, len * PAGE, flags, to) };
        match moved {
            Ok(new) => {
                world().note(What::Do, "remapped", [new as u64, len as u64]);
                memory(|memory| {
                    memory.remove(run, self.id);
                    // What grows is like the last.
                    let last = pages.last().copied().flatten();
                    let page = Expected {
                        content: Content::Zero,
                        claimed: self.id,
                        in_child: last.map_or(first.in_child, |page| page.in_child),
                        ..first
                    };
                    memory.add((new, len), page);
                    for (at, page) in each((new, kept)).zip(pages) {
                        let page = page.expect("claimed pages stay");
                        memory.change(at, |to| {
                            (to.content, to.in_child) = (page.content, page.in_child)
                        });
                    }
                    memory.let_go((new, len), self.id);
                });
            }
            Err(libc::ENOMEM | libc::EFAULT | libc::EINVAL) => {
                // What was to be replaced may be gone all the same.
                replaced.into_iter().for_each(|page| self.give_up(page));
                memory(|memory| memory.change_all(run, |page| page.comes = Comes::Nothing));
            }
            Err(error) => self.fail(format!("mremap: {error}")),
        }
    }

    /// A device writes pages by itself, which are pinned meanwhile.
    fn transfer(&mut self) {
        let Some(run) = memory(|memory| memory.run(&mut self.stream, 8)) else {
            return;
        };
        let first = memory(|memory| memory.get(run.0)).expect("it is there");
        if first.prot & libc::PROT_WRITE == 0 {
            return;
        }
        memory(|memory| memory.claim(run, self.id));
        world().note(What::Do, "transfer", [run.0 as u64, run.1 as u64]);
        let pinned: Vec<_> = each(run).filter(|at| self.pin(*at)).collect();
        rest(Duration::from_nanos(
            1 + self.stream.below(2_000_000) as u64,
        ));
        for at in pinned {
            let content = Content::of(self.stream.number(), stamp());
            let written = pager().kernel().tables(|tables| {
                let page = tables.pages.get_mut(at).filter(|page| page.pins > 0);
                page.map(|page| {
                    page.pins = 0;
                    content.fill(page.own());
                })
            });
            if written.is_none() {
                self.fail(format!(
                    "the page at {at:#x} was moved while a device wrote it"
                ));
            }
            memory(|memory| memory.change(at, |page| page.content = content));
        }
        memory(|memory| memory.let_go(run, self.id));
    }

    /// Brings a page in to be written, and pins it; whether it is.
    fn pin(&mut self, at: usize) -> bool {
        scheduler().begins();
        loop {
            scheduler().step("pin", [at as u64, 0]);
            let pinned = pager().kernel().access(self.id, at, true, |frame| {
                frame.own();
                frame.pins = 1;
            });
            match pinned {
                Ok(()) => return true,
                Err(Stop::Waits) => {
                    scheduler().wait(Key::Page(self.id), None);
                }
                Err(Stop::Poisoned) if may_lose() => {
                    memory(|memory| memory.change(at, |page| page.content = Content::Lost));
                    return false;
                }
                Err(stop) => self.fail(format!("{at:#x} cannot be pinned: {stop:?}")),
            }
        }
    }

    /// The last thread looks at all memory, gives it back, and sees that nothing is left.
    fn end(&mut self) {
        world().note(What::Do, "ends", [0, 0]);
        scheduler().mask_signals(true);
        if life::others_are_gone() {
            world().be_calm();
        }
        for at in memory(|memory| memory.all()) {
            self.touch(at, None);
        }
        for run in process::mapped() {
            // In a forked child, calls of other threads were under way: what they mapped is its own as well.
            if memory(|memory| memory.get(run.0).is_none()) {
                // The system may refuse it for a while.
                // SAFETY: as above.
                while unsafe { pager().munmap(run.0, run.1 * PAGE) } == Err(libc::ENOMEM) {}
            }
        }
        // The system may refuse it for a while.
        while memory(|memory| memory.count()) > 0 {
            for run in memory(|memory| memory.runs()) {
                memory(|memory| memory.claim(run, self.id));
                self.unmap(run);
            }
        }
        process::leaves_nothing(with(|program| program.behind.get()));
        life::kill_program();
    }

    /// The process becomes another program, which this thread begins.
    fn exec(&mut self) {
        if !process::may_exec() {
            return;
        }
        process::exec();
        let threads = 1 + self.stream.below(3) as u32;
        with(|program| {
            *program.memory.borrow_mut() = MemoryModel::new();
            program.threads.set(threads);
            program.left.set(program.left.get().max(100) / 2);
            program.forks.set(0);
        });
        let seed = self.stream.number();
        for number in 1..u64::from(threads) {
            scheduler().spawn(Role::Program, move || run(seed, number));
        }
        self.stream = Stream::new(seed, 0);
        begin(true);
    }

    /// A device is to leave, or stays after all. Others of the tree keep theirs.
    fn device_leaves(&mut self) {
        let (index, leaves) = (self.stream.below(2), self.stream.percent(75));
        let left = pager().devices();
        if with(|program| program.devices.replace(left)) > left {
            world().note(What::Do, "device gone", [left as u64, 0]);
        }
        let about = [index as u64, u64::from(leaves)];
        world().note(What::Do, "device leaves", about);
        pager().leave_device(index, leaves);
    }

    /// A child in the same memory touches it and makes calls. What it has claimed when it is killed stays so for ever.
    fn vfork(&mut self, mix: Mix) {
        let (seed, operations) = (self.stream.number(), 1 + self.stream.below(6));
        vfork::run_child(move || {
            let mut child = ProgramThread {
                id: scheduler().me().id.get(),
                stream: Stream::new(seed, 1),
                scan: 0,
            };
            for _ in 0..operations {
                match child.stream.below(8) {
                    0 => child.map(mix.most / 8),
                    1..6 => child.call(),
                    _ => child.touches(mix.writes, mix.noise),
                }
            }
        });
    }

    fn fork(&mut self) {
        if with(|program| program.forks.get()) >= 2 {
            return;
        }
        with(|program| program.forks.set(program.forks.get() + 1));
        world().note(What::Do, "fork", [0, 0]);
        // As the handlers of a fork do.
        scheduler().mask_signals(true);
        let child = process::fork();
        scheduler().mask_signals(false);
        let Some(child) = child else { return };
        if child {
            let thread = scheduler().me().id.get();
            with(|program| {
                program.memory.borrow_mut().become_child(self.id);
                program.threads.set(1);
                program.left.set(program.left.get() / 4);
                program.forks.set(3);
            });
            self.id = thread;
            self.stream = Stream::new(self.stream.number(), 77);
        }
    }
}
