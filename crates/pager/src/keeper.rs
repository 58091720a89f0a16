//! The keeper: the thread that does everything that need not happen inside a fault.
//!
//! While the tree still fits its budget it only waits. When the tree starts paging it takes the
//! process under management (`adopt`), then: registers ranges the program maps (`REGISTER`),
//! measures what the pager does not manage, answers requests for memory from other processes of
//! the tree, gives unused charges back, lets the engine work in the background, and rescues
//! starved service threads.

use crate::balance::Costs;
use crate::bays::Bays;
use crate::clean::Keeping;
use crate::embed::{self, Embedded};
use crate::errand;
use crate::fork;
use crate::generations;
use crate::growth;
use crate::hooks::UNREGISTERED;
use crate::map::{Page, PageMap, PageNumber, UNIT, UNIT_BYTES};
use crate::place::Refusal;
use crate::process::{Process, cpu};
use crate::refuge::Memory;
use crate::resolve::Desk;
use crate::room::Step;
use crate::service::Services;
use crate::sharing::Sharing;
use crate::shortage::Shortage;
use crate::state::{State, lock_service};
use ebb_engine::PAGE_SIZE;
use ebb_sys::fault::FaultFd;
use ebb_sys::memory_file::MemoryFile;
use ebb_sys::pagemap::PageMapFile;
use ebb_sys::{Errno, memory, proc, thread, user};
use ebb_tree::{JoinError, Member, Mode};
use std::ops::ControlFlow::{Break, Continue};
use std::os::unix::process::parent_id;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The keeper's thread, by its number in the system: a forked child finds its parent's.
static KEEPER: AtomicU32 = AtomicU32::new(0);

/// Bumped when requests of the program's threads were answered.
pub static ANSWERED: AtomicU32 = AtomicU32::new(0);

/// How often the keeper looks while faults are being served. Not more often: each time it goes
/// back to sleep, its processor is idle anew and the scheduler moves the program's thread there.
const BUSY: Duration = Duration::from_millis(20);
/// While a memory call of a child's has to be made again: what a transit takes.
const OWING: Duration = Duration::from_micros(50);
/// While pages move from a device that is to go.
const MOVING: Duration = Duration::from_millis(1);
/// For how long a process that was asked for memory and had none to give is not asked again before
/// others: relatives that have the same pages all have them for old.
const SPARED: Duration = Duration::from_millis(500);
/// How often, when asked for memory, a process looks on where nothing that it has may leave.
const LOOKS_APART: usize = 128;
/// Pages that go when the system has none for us.
const REFUSED: u64 = 256;
/// A pool that holds less gives nothing to devices for others' sake: what it takes to write would cost
/// them as much.
const WORTH: u64 = 1 << 20;
/// Pages given back at once: each time, those are woken who wait for room.
const AT_ONCE: i64 = 4 * UNIT as i64;
/// How often it is seen whether the supervisor is there.
const SUPERVISED: Duration = Duration::from_millis(200);
/// While nothing happens.
const QUIET: Duration = Duration::from_millis(250);

/// The keeper's entry point.
pub extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    let _ = thread::private_descriptors();
    let Some(control) = crate::hooks::control() else {
        crate::hooks::keeper_ends();
        return std::ptr::null_mut();
    };
    let process = match fork::inherited() {
        Some(parent) => {
            // The child of a process that pages: its program waits until this is done.
            let (member, devices) = (parent.member, &parent.embedded.devices);
            let attached = match member.rejoin(control) {
                Ok(()) => devices.reattach(member),
                // The supervisor is gone, and what it gives the parent has too.
                Err(JoinError::Connect(_)) => {
                    let keeper = KEEPER.load(SeqCst);
                    devices.reattach_from(member, |fd| {
                        proc::reopen(parent_id(), keeper, fd).map_err(|e| e.to_string())
                    })
                }
                Err(e) => Err(e.to_string()),
            };
            match attached.and_then(|()| adopt(member, parent.embedded, true)) {
                Ok(process) => process,
                Err(why) => parent.fail(&format!(
                    "a forked child cannot be served and is ended: {why}; `ebb doctor` says what is low \
                     or missing here"
                )),
            }
        }
        None => {
            // Without a supervisor there is nobody to account to: the program runs as it would
            // without us.
            let Ok(member) = Member::join(control, None) else {
                crate::hooks::keeper_ends();
                return std::ptr::null_mut();
            };
            let member: &'static Member = Box::leak(Box::new(member));
            fork::WATCHING.store(std::ptr::from_ref(member).cast_mut(), SeqCst);
            growth::news();
            errand::attend();
            let mut seen = 0;
            while member.mode() != Mode::Paging {
                seen = member.wait(seen, Some(QUIET));
                user::follow();
                errand::run();
                member.pass_wish_on();
            }
            let adopted = embed::swap(member)
                .and_then(|e| adopt(member, e, false).inspect_err(|_| e.devices.abandon(member)));
            fork::WATCHING.store(std::ptr::null_mut(), SeqCst);
            match adopted {
                Ok(process) => {
                    growth::news();
                    process
                }
                Err(why) => {
                    member.message(&format!(
                        "process {} runs unmanaged, its memory stays in RAM: {why}; \
                         `ebb doctor` says what is low or missing here",
                        std::process::id()
                    ));
                    crate::hooks::keeper_ends();
                    // The connection stays: it stands for the process.
                    user::follow_for_ever();
                }
            }
        }
    };
    errand::attend();
    fork::CHILD_READY.store(1, SeqCst);
    ebb_sys::futex::wake(&fork::CHILD_READY, i32::MAX, false);
    tend(process)
}

static CHECKING: AtomicBool = AtomicBool::new(false);

/// For tests: every invariant of the pager is checked again and again while the program runs, and that
/// no thread of ours faults.
pub fn checking() -> bool {
    CHECKING.load(SeqCst)
}

/// Whether this thread is the keeper.
pub fn is(thread: u32) -> bool {
    KEEPER.load(SeqCst) == thread
}

/// Milliseconds of CLOCK_MONOTONIC, as far as pages are dated.
fn now_ms() -> u32 {
    (ebb_sys::proc::monotonic_ns() / 1_000_000) as u32
}

/// Takes the process under management.
fn adopt(
    member: &'static Member,
    embedded: &'static Embedded,
    forked: bool,
) -> Result<&'static Process, String> {
    if !forked {
        // As long as nothing of it can be out; a forked child has the answer from its parent.
        CHECKING.store(std::env::var_os("EBB_CHECK").is_some(), SeqCst);
    }
    let fault = FaultFd::open().map_err(|e| e.to_string())?;
    let pagemap =
        PageMapFile::open().map_err(|e| format!("cannot open /proc/self/pagemap: {e}"))?;
    let memory = MemoryFile::open().map_err(|e| format!("cannot open /proc/self/mem: {e}"))?;
    let cpus = thread::allowed_cpus();
    if !thread::can_spawn(cpus.len().min(crate::service::MAX_CPUS)) {
        return Err(
            "it was forked by _Fork or clone from a process with threads, where libc \
             can start none; use fork, or exec after it"
                .into(),
        );
    }
    let process = Process {
        fault,
        pagemap,
        memory,
        member,
        swap: &embedded.swap,
        embedded,
        services: Services::new(&cpus),
        gate: Mutex::new(()),
        forked: AtomicBool::new(false),
        costs: Costs::new(),
        shortage: Shortage::default(),
        keeping: Keeping::new(),
        behind: AtomicBool::new(false),
        is_refused: AtomicBool::new(false),
        refusal: Refusal::of(embedded.devices.faults()),
    };
    // The limit is what others leave, this process among them until it charges for itself.
    let count = (process.member.budget() as usize / UNIT / 4).clamp(256, 32768);
    let base = memory::reserve(count * UNIT_BYTES)
        .map_err(|e| format!("no addresses for the staging area: {e}"))?;
    process
        .fault
        .register(base, count * UNIT_BYTES)
        .map_err(|e| format!("cannot register the staging area: {e}"))?;
    // SAFETY: advice that changes no content. A child makes a staging area of its own.
    let _ = unsafe { memory::madvise(base, count * UNIT_BYTES, libc::MADV_DONTFORK) };
    // Before the state is locked and the first fault can come: libc allocates for a new thread, and
    // where the program brings its own malloc, another thread may be in the midst of that, in a
    // memory call of ours or touching a page.
    if let Err(e) = process.services.start() {
        process.fail(&format!(
            "cannot start a thread to serve page faults: {e}; raise `ulimit -u`"
        ));
    }
    let mut state = lock_service();
    state.bays = Some(Bays::new(base, count));
    state.parked.reserve(1024);
    state
        .queue
        .reserve(process.member.budget() as usize / UNIT * 2);
    if forked {
        // Its charge was copied from its parent's.
        process.member.start_paging(0);
    } else {
        // Charged at once, so that nobody takes the room it is in while its pages are counted.
        let pages = memory::resident_anonymous_pages().unwrap_or(0);
        process.member.start_paging(pages);
        state.account.begins_with(pages as i64);
    }
    // What is there now is as old as now, not as the machine.
    state.queue.now_ms = now_ms();
    // A fork that needs no pager takes this lock too: none comes between these looks.
    process
        .forked
        .store(forked || fork::before_paging(), SeqCst);
    if forked || fork::before_paging() && member.has_relatives() {
        state.sharing.begins();
    }
    errand::paging_begins(&mut state);
    process.register_all(&mut state);
    process.measure(&mut state);
    process.share_budget(&mut state);
    process.services.compete(Crowd::new().look());
    // Published under the lock: the hooks see it together with the registered ranges.
    let process = Process::publish(Box::new(process));
    drop(state);
    process.services.until_running();
    Ok(process)
}

/// The keeper's work, for ever.
pub fn tend(process: &'static Process) -> ! {
    KEEPER.store(thread::id(), SeqCst);
    let mut supervised = Instant::now();
    let mut desk = Desk::new();
    let (mut seen, mut served, mut moving, mut owing) = (0, 0, false, false);
    let mut crowd = Crowd::new();
    let mut measured = Instant::now();
    let mut heard = Instant::now();
    let checking = checking();
    let fails_after = process.embedded.devices.faults().keeper_after;
    loop {
        let now_served = process.services.served();
        assert!(
            fails_after.is_none_or(|after| now_served < after),
            "EBB_FAULTS asks for it"
        );
        let busy = now_served != served;
        served = now_served;
        let starved = !busy && process.fault.wait(0);
        if busy || starved {
            heard = Instant::now();
            process.services.compete(crowd.look() || starved);
        }
        let pause = match () {
            _ if owing => OWING,
            _ if moving => MOVING,
            // A request may have ended the last wait before there was a fault.
            _ if heard.elapsed() < 2 * BUSY => BUSY,
            _ => QUIET,
        };
        seen = process.member.wait(seen, Some(pause));
        user::follow();
        process.behind.store(false, SeqCst);
        fork::attend(process, &mut desk);
        owing = errand::run();
        process.register_new();
        {
            let mut state = lock_service();
            state.queue.now_ms = now_ms();
            process.tend_sharing(&mut state);
            if measured.elapsed() > Duration::from_millis(20) {
                measured = Instant::now();
                process.measure(&mut state);
                process.share_budget(&mut state);
                if checking {
                    state.check();
                    process.check_copies(&state);
                }
                if state.spared.is_none_or(|since| since.elapsed() > SPARED) {
                    state.spared = None;
                    process.publish_oldest(&state);
                }
            }
        }
        if supervised.elapsed() > SUPERVISED {
            supervised = Instant::now();
            if !process.member.supervised() {
                process.member.bury_dead();
            }
        }
        let mut wanted = process.member.take_reclaim_request();
        let refused = process.is_refused.swap(false, SeqCst);
        if refused {
            wanted = wanted.max(REFUSED);
        }
        if wanted > 0 {
            let before = process.counters().evicted.get();
            let charged = lock_service().account.charged();
            process.shed(&mut desk, wanted as i64);
            let mut state = lock_service();
            let gave = process.counters().evicted.get() - before;
            state.appetite.gave(gave);
            if gave > 0 || state.account.charged() < charged {
                state.spared = None;
                process.publish_oldest(&state);
            } else {
                state.spared = Some(Instant::now());
                process.member.publish_oldest(0);
                process.tell_pool(&mut state);
            }
            drop(state);
            if refused {
                // What it gave up may be somebody else's by now, and nobody but it gives up more.
                process.wake_again(&mut desk);
            } else {
                process.serve_again(&mut desk);
            }
        }
        let gate = crate::process::gate(process);
        let Embedded { devices, swap } = process.embedded;
        let mut memory = Memory {
            process,
            desk: &mut desk,
        };
        moving = devices.tend(process.member, swap, cpu(), &mut memory);
        for _ in 0..64 {
            // Somebody may be waiting for what is asked for.
            process.swap.others_loaded(process.member.last_load_ns());
            if !process.swap.work(cpu()) || process.member.is_asked() {
                break;
            }
        }
        drop(gate);
        process.serve_again(&mut desk);
    }
}

/// Watches whether the processors are taken: whether more threads want to run than there are
/// processors, our own left out.
struct Crowd {
    processors: i32,
    /// Decaying mean of the threads that want to run, in sixteenths.
    mean: i32,
    crowded: bool,
}

impl Crowd {
    fn new() -> Self {
        Self {
            processors: thread::processors() as i32,
            mean: Self::others() * 16,
            crowded: false,
        }
    }

    fn others() -> i32 {
        // This thread is one, and a service thread with idle urgency that waits for its turn
        // while the program runs is another.
        thread::running().unwrap_or(0).saturating_sub(2) as i32
    }

    /// One more look; whether the processors are taken.
    fn look(&mut self) -> bool {
        self.mean += (Self::others() * 16 - self.mean) / 8;
        let full = self.processors * 16;
        self.crowded = if self.crowded {
            self.mean > full * 5 / 8
        } else {
            self.mean > full * 7 / 8
        };
        self.crowded
    }
}

/// Registered memory is about to be moved by `mremap`: marks it, so that the kernel does not merge it
/// with what lies beside its new place. The kernel takes the registration away from the mapping that
/// results, and with it the neighbours would lose theirs, unnoticed: what of them is out would read as
/// zeros (Linux 6.18, `move_vma`). Advice on the order of accesses keeps mappings apart and is of no
/// other use for anonymous memory.
///
/// # Errors
/// The process has too many mappings: nothing may be moved then.
pub fn set_apart(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no content.
    unsafe { memory::madvise(start, len, libc::MADV_RANDOM) }
}

/// Takes the mark away: what was moved is registered, or it was not moved.
pub fn join_again(start: usize, len: usize) {
    // SAFETY: advice that changes no content.
    let _ = unsafe { memory::madvise(start, len, libc::MADV_NORMAL) };
}

/// In a forked child: pages of which its parent had only read zeros, which the kernel does not copy,
/// are missing here; `there` are the runs of those that are not.
fn forget_missing(map: &mut PageMap, start: usize, end: usize, there: &[(usize, usize)]) {
    let mut missing = Vec::new();
    let mut runs = there.iter().peekable();
    map.each(PageNumber::of(start), PageNumber::of(end), |page, is| {
        let at = page.address();
        while runs.next_if(|run| run.1 <= at).is_some() {}
        if is == Page::Resident(None) && runs.peek().is_none_or(|run| at < run.0) {
            missing.push(page);
        }
        Continue(())
    });
    for page in missing {
        map.set(page, Page::Untouched);
    }
}

impl Process {
    /// Registers what was mapped or moved since the last time, and says so to who waits for that.
    pub fn register_new(&self) {
        let mut state = lock_service();
        if state.ranges.all().any(|r| !r.attributes.registered) {
            self.register_all(&mut state);
            ANSWERED.fetch_add(1, SeqCst);
            ebb_sys::futex::wake(&ANSWERED, i32::MAX, false);
        }
    }

    /// Registers every range that is not, and learns which of its pages are present.
    pub fn register_all(&self, state: &mut State) {
        UNREGISTERED.store(0, SeqCst);
        let mut at = 0;
        while let Some(range) = state.ranges.next(at, usize::MAX) {
            at = range.end;
            if range.attributes.registered {
                continue;
            }
            let len = range.end - range.start;
            // SAFETY: advice that changes no content. Huge pages would be filled behind our back.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_NOHUGEPAGE) };
            // SAFETY: the same. Pages that the kernel merges lose their protection.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_UNMERGEABLE) };
            if let Err(error) = self.fault.register(range.start, len) {
                // Not what we took it for (unmapped or replaced behind libc's back): not ours, and
                // harmless, unless some of it is swapped out, which would now read as zeros.
                let mut lost = false;
                let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
                state.map.each(first, end, |_, page| {
                    lost = !matches!(page, Page::Resident(_));
                    if lost { Break(()) } else { Continue(()) }
                });
                if lost {
                    self.fail(&format!(
                        "memory at {:#x}..{:#x} cannot be registered again ({error}), and part of it is \
                         swapped out; raise vm.max_map_count if that is low",
                        range.start, range.end
                    ));
                }
                state.drop_pages(Some(self.swap), cpu(), range.start, range.end);
                state.ranges.remove(range.start, range.end);
                continue;
            }
            // A child of a system call that we do not see has it not at all, rather than with zeros
            // for what is out.
            // SAFETY: advice that changes no content.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_DONTFORK) };
            join_again(range.start, len);
            if state.sharing == Sharing::Protected {
                // New, or moved by mremap, which leaves the protection behind.
                self.protect(state, range.start, len);
                self.give_up_written(state, range.start, range.end);
            }
            state
                .ranges
                .change(range.start, range.end, |a| a.registered = true);
            let State { map, queue, .. } = &mut *state;
            let forked = self.forked.load(SeqCst);
            let mut there = Vec::new();
            let scanned = self.pagemap.present(range.start, range.end, |start, end| {
                if forked {
                    there.push((start, end));
                }
                let (mut page, end) = (PageNumber::of(start), PageNumber::of(end));
                while page < end {
                    let unit = page.unit();
                    let stop = PageNumber(end.0.min(unit.first().0 + UNIT));
                    let mut mask = 0;
                    while page < stop {
                        match map.get(page) {
                            Page::Untouched => {
                                map.set(page, Page::Resident(None));
                                mask |= 1 << page.within();
                            }
                            // Swapped out, and yet there is a page: in a forked child libc touched
                            // it before it was registered, and the kernel gave it zeros.
                            Page::Swapped(_) | Page::Poisoned => {
                                self.drop_pages(&[(page.address(), PAGE_SIZE)]);
                            }
                            // In transit (memory that has just grown is registered already): who
                            // brings or captures it says what it is.
                            Page::Resident(_)
                            | Page::Staged(_)
                            | Page::Loading(_)
                            | Page::Storing(_) => {}
                        }
                        page = page.plus(1);
                    }
                    if mask != 0 {
                        queue.brought(map, unit, mask);
                    }
                }
            });
            if scanned.is_ok() && forked {
                forget_missing(map, range.start, range.end, &there);
            }
        }
    }

    /// Measures the anonymous memory of this process, and charges what is not managed.
    pub fn measure(&self, state: &mut State) {
        let Some(measured) = memory::resident_anonymous_pages() else {
            return;
        };
        state.count_tables(self.swap);
        let used = state.used(self.swap);
        state
            .account
            .acknowledge(self.member, used, measured as i64);
        let stock = state.account.stock();
        state.account.settle(self.member, used, stock);
    }

    /// Moves the line between resident pages and pool, where pages can go to devices; and limits
    /// the pool accordingly, and as the user wants it.
    pub fn share_budget(&self, state: &mut State) {
        let budget = self.member.budget() as usize;
        let elsewhere = self.embedded.devices.stays(self.member) && self.member.writeback();
        let mut limit = budget;
        if elsewhere {
            self.balance(state);
            // With what is free: what the pool gives up would else lower its limit further.
            let free = self.member.limit().saturating_sub(self.member.charged()) as usize;
            let charged = state.account.charged().max(0) as usize + free;
            // What relatives share would be no more for the program if it went to devices.
            let shared = match self.member.has_relatives() {
                true => generations::inherited(self.swap) as usize / PAGE_SIZE,
                false => 0,
            };
            let own = charged.min(budget).saturating_sub(shared);
            limit = (shared + state.balance.limit(budget, own)).min(budget);
        }
        self.tell_pool(state);
        embed::limit_pool(self.swap, self.member, limit as u64);
    }

    fn balance(&self, state: &mut State) {
        let memory = self.swap.memory();
        let frames = (memory.pool_bytes as usize).div_ceil(PAGE_SIZE);
        // Of its data: emptied windows that it still holds say nothing of what others would hold.
        let data = (memory.pool_data_bytes as usize).div_ceil(PAGE_SIZE);
        let density = if data < UNIT {
            2 * 16
        } else {
            memory.pool_pages as usize * 16 / data
        };
        let budget = state.account.charged().max(0) as usize;
        let resident = state.map.resident();
        state.pool_price = self.costs.price(density);
        state
            .balance
            .adjust(resident, frames, density, budget, &self.costs);
    }

    /// Whether what is resident is little beside the pool: it is the least that is wanted then, and the pool
    /// that can give.
    fn most_is_out(state: &State) -> bool {
        8 * state.map.resident() as i64 <= state.account.charged()
    }

    /// Tells the tree when the oldest page here came, if there is one to be given.
    fn publish_oldest(&self, state: &State) {
        let oldest = state.queue.oldest_ms(&state.map);
        let oldest = oldest.filter(|_| !Self::most_is_out(state));
        self.member.publish_oldest(published(oldest, state));
    }

    /// Whether what is in the pool can go elsewhere. Relatives that share it each write it, and it is free
    /// when all have: idle ones are asked in turn.
    fn gives_pool(&self) -> bool {
        self.embedded.devices.stays(self.member)
    }

    /// Tells the tree what the pool holds, and since when what of it may go to devices so that others have the
    /// room.
    fn tell_pool(&self, state: &mut State) {
        let bytes = self.swap.pool_bytes();
        let (came, oldest) = self.swap.pool_order();
        let now = state.queue.now_ms;
        state.dates.note(came, now);
        let oldest = oldest.filter(|_| bytes >= WORTH && self.gives_pool());
        state.pool_oldest_ms = oldest.map(|n| state.dates.of(n, now));
        // Who just had nothing to give is not asked at once again.
        let asked = state.pool_oldest_ms.filter(|_| state.spared.is_none());
        self.member.tell_pool(bytes, published(asked, state));
    }

    /// Gives `pages` of the charge back, evicting what it takes; where little but the pool is left, writing
    /// that to devices. What the program charges meanwhile is not made up for: of a program that goes on,
    /// all would be evicted.
    pub fn shed(&self, desk: &mut Desk, pages: i64) {
        let (from_pool, aim) = {
            let state = lock_service();
            let from_pool = Self::most_is_out(&state) && self.gives_pool();
            (from_pool, state.account.charged() - pages)
        };
        if from_pool && self.shed_pool(aim) || self.shed_resident(desk, pages, aim) {
            return;
        }
        // What is here is in the pool. Who needs more than it was asks again.
        self.shed_pool(aim);
        let mut state = lock_service();
        let used = state.used(self.swap);
        state.account.settle(self.member, used, 0);
    }

    /// Evicts until no more than `aim` pages are charged; whether anything was.
    fn shed_resident(&self, desk: &mut Desk, pages: i64, aim: i64) -> bool {
        /// Pages evicted at most for each that is to be given back: what is evicted takes room in
        /// the pool.
        const EACH: u64 = 2;
        let evicted = || self.counters().evicted.get();
        let begin = evicted();
        let most = begin + EACH * pages as u64 + UNIT as u64;
        let mut looks = lock_service().queue.looks_apart(LOOKS_APART);
        while evicted() < most {
            {
                let mut state = lock_service();
                let left = state.account.charged() - aim;
                let used = state.used(self.swap);
                if -state.account.over(used) >= left.min(AT_ONCE) {
                    state.account.settle(self.member, used, 0);
                }
                if state.account.charged() <= aim {
                    return true;
                }
                if self.give_back(&mut state) {
                    continue;
                }
            }
            match self.evict_some(desk) {
                Step::Progress => {}
                // What stood apart for long may be this process's alone by now, behind what is not.
                Step::Nothing if looks > 0 => looks -= 1,
                _ => break,
            }
        }
        let mut state = lock_service();
        let used = state.used(self.swap);
        state.account.settle(self.member, used, 0);
        evicted() > begin
    }

    /// Makes the pool hold less until no more than `aim` pages are charged; whether it does. A part at a
    /// time: who waits for room has it at once, and a fork its turn. No more than it takes now: what relatives
    /// share frees nothing when it is written.
    fn shed_pool(&self, aim: i64) -> bool {
        let mut left = lock_service().account.charged() - aim;
        let mut any = false;
        while left > 0 {
            let part = left.min(AT_ONCE);
            let gate = crate::process::gate(self);
            let less = self.swap.shrink_pool(cpu(), part as u64 * PAGE_SIZE as u64);
            drop(gate);
            if less == 0 {
                break;
            }
            any = true;
            left -= part.max((less / PAGE_SIZE as u64) as i64);
            let mut state = lock_service();
            self.part_with_given_back(&mut state);
            let used = state.used(self.swap);
            state.account.settle(self.member, used, 0);
            left = left.min(state.account.charged() - aim);
        }
        any
    }
}

/// Monotonic nanoseconds of a page's date, which is kept in fewer bits; 0: there is none.
fn published(oldest_ms: Option<u32>, state: &State) -> u64 {
    let age = |oldest| u64::from(state.queue.now_ms.wrapping_sub(oldest)) * 1_000_000;
    oldest_ms.map_or(0, |oldest| {
        proc::monotonic_ns().saturating_sub(age(oldest)).max(1)
    })
}
