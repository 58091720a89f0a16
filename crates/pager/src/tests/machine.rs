//! A paging process on a kernel in memory, and what its program should find in its memory.

use crate::devices::swap_space;
use crate::eviction::make_room::Step;
use crate::fault::fault_service::FaultService;
use crate::keeper::thread::Keeper;
use crate::map::page_map::{Page, PageNumber};
use crate::pager::Pager;
use crate::process::lifecycle::{Beginning, Entries};
use crate::process::outcome::Outcome;
use crate::process::worker::{PendingFault, Worker};
use crate::reclaim::attempts::Waiter;
use ebb_engine::env::Store;
use ebb_engine::slots::{DeviceSpec, Devices};
use ebb_memory_kernel::alone::Alone;
use ebb_memory_kernel::{PAGE, Stop};
use ebb_sys::paging::Kernel;
use ebb_sys::userfaultfd::{BATCH, Fault};
use ebb_tree::{Codec, Config, Member};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The kernel of these tests.
pub type MemoryKernel = ebb_memory_kernel::MemoryKernel<Alone>;

pub const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

extern "C" fn never(_: usize) -> ! {
    unreachable!("no thread of the machine runs by itself")
}

pub struct Machine {
    pub pager: &'static Pager<MemoryKernel>,
    pub process: &'static FaultService<MemoryKernel>,
    pub keeper: Keeper<MemoryKernel>,
    pub kernel: &'static MemoryKernel,
    pub worker: Worker,
    /// The byte that each written page holds.
    pub model: BTreeMap<usize, u8>,
}

impl Machine {
    /// A process alone in a tree of so many pages, without devices.
    pub fn new(budget: u64) -> Self {
        Self::with(budget, Config::default(), |_| ())
    }

    /// The same of this configuration, with the devices that are added.
    pub fn with(budget: u64, config: Config, add: impl FnOnce(&Devices)) -> Self {
        Self::on(MemoryKernel::alone(), budget, config, add)
    }

    /// The same without a pool: what leaves goes to this device.
    pub fn without_pool(budget: u64, device: impl Store + 'static) -> Self {
        let config = Config {
            codec: Codec::None,
            ..Config::default()
        };
        Self::with(budget, config, |devices| {
            let added = devices.add(Arc::new(device), DeviceSpec::default(), None);
            added.expect("a device");
        })
    }

    /// The same on this kernel.
    pub fn on(
        kernel: MemoryKernel,
        budget: u64,
        config: Config,
        add: impl FnOnce(&Devices),
    ) -> Self {
        let pager: &'static Pager<MemoryKernel> = Box::leak(Box::new(Pager::new(kernel)));
        let entries = Entries {
            keeper: never,
            service: never,
        };
        pager.lifecycle.begin(Beginning {
            control: Some(c"a tree".into()),
            entries,
            standard_error: None,
        });
        let member = Member::alone(budget, config).expect("a table");
        let member: &'static Member = Box::leak(Box::new(member));
        let freed = |bytes: &[u8]| pager.before_give_back(bytes);
        let space = swap_space::open(&pager.kernel, member, freed).expect("an engine");
        add(&space.devices.devices);
        let keeper = pager.adopt(member, space, false).expect("adopted");
        let process = keeper.faults();
        let turn = Box::new(|| process.register_new());
        let _ = pager.kernel.threads.while_waiting.set(turn);
        Self {
            pager,
            process,
            keeper,
            kernel: &pager.kernel,
            worker: Worker::new(&pager.kernel),
            model: BTreeMap::new(),
        }
    }

    /// Makes a call as a thread of the program does, with the keeper at work.
    pub fn call<T>(&mut self, call: impl FnOnce(&'static Pager<MemoryKernel>) -> T) -> T {
        self.kernel.threads.is_own.store(false, SeqCst);
        let result = call(self.pager);
        self.kernel.threads.is_own.store(true, SeqCst);
        self.process.register_new();
        result
    }

    /// Maps so many pages; where.
    pub fn map(&mut self, pages: usize) -> usize {
        // SAFETY: memory of the kernel in memory.
        self.call(|pager| unsafe { pager.mmap(0, pages * PAGE, PLAIN, ANONYMOUS, -1, 0) })
            .expect("mapped")
    }

    /// Serves all faults that wait.
    pub fn serve(&mut self) {
        serve(self.process, &mut self.worker);
    }

    /// From now on calls that populate memory are served while they wait.
    pub fn serve_calls(&self) {
        let (process, kernel) = (self.process, self.kernel);
        let service = Box::new(|| serve(process, &mut Worker::new(kernel)));
        let _ = kernel.threads.while_faulting.set(service);
    }

    /// A thread touches a byte until it has it.
    pub fn touch(&mut self, thread: u32, address: usize, write: Option<u8>) -> u8 {
        for _ in 0..1000 {
            match self.kernel.touch(thread, address, write) {
                Ok(byte) => return byte,
                Err(Stop::Waits) => self.serve(),
                Err(stop) => panic!("{stop:?} at {address:#x}"),
            }
        }
        panic!("thread {thread} gets nowhere at {address:#x}")
    }

    /// Writes a byte, and keeps it in mind.
    pub fn write(&mut self, address: usize, byte: u8) {
        self.touch(1, address, Some(byte));
        self.model.insert(address, byte);
    }

    /// Reads a byte, which is what was written.
    pub fn read(&mut self, address: usize) {
        let wanted = self.model.get(&address).copied().unwrap_or(0);
        assert_eq!(self.touch(1, address, None), wanted, "at {address:#x}");
    }

    /// Reads all that was written.
    pub fn read_all(&mut self) {
        let all: Vec<_> = self.model.keys().copied().collect();
        all.into_iter().for_each(|address| self.read(address));
    }

    /// Where a page is.
    pub fn page(&self, address: usize) -> Page {
        self.process.lock().pages.map().get(PageNumber::of(address))
    }

    /// Puts a page into a state.
    pub fn set(&self, address: usize, to: Page) {
        let mut state = self.process.lock();
        state.pages.set_for_test(PageNumber::of(address), to);
    }

    /// A thread of the pager's is to load a page that is out; the state that it had, to be set again.
    pub fn begin_load(&self, address: usize) -> Page {
        let is = self.page(address);
        let Page::Swapped(entry) = is else {
            panic!("{address:#x} is {is:?}");
        };
        self.set(address, Page::Loading(entry));
        is
    }

    /// Whether a thread holds a page against others, a second after it was last served.
    pub fn is_held(&self, address: usize) -> bool {
        self.kernel.pass(Duration::from_secs(1));
        let page = PageNumber::of(address);
        let other = Waiter { thread: 99, page };
        let now = self.process.now();
        let mut state = self.process.lock();
        state.pages.held(page.unit(), Some(other), || now).all() != 0
    }

    /// Takes so many steps of eviction, when no thread holds a page any more.
    pub fn reclaim(&mut self, steps: usize) {
        self.kernel.pass(Duration::from_secs(1));
        for _ in 0..steps {
            self.process.evict_some(&mut self.worker);
        }
    }

    /// Stores all that is staged.
    pub fn store_staged(&mut self) {
        while self.process.swap_out_staged(&mut self.worker) == Step::Progress {}
    }

    /// Evicts until a page is somewhere else.
    pub fn evict(&mut self, address: usize) {
        self.kernel.pass(Duration::from_secs(1));
        for _ in 0..10_000 {
            if !self.kernel.is_present(address) {
                return;
            }
            self.process.evict_some(&mut self.worker);
        }
        panic!("{address:#x} stays");
    }

    /// Pages of the given range that are there.
    pub fn present(&self, start: usize, pages: usize) -> usize {
        let at = |i: &usize| self.kernel.is_present(start + i * PAGE);
        (0..pages).filter(at).count()
    }

    /// A page that is out.
    pub fn page_out(&mut self) -> usize {
        let page = self.map(1);
        self.write(page, 1);
        self.evict(page);
        page
    }

    /// A fault of this thread, on a page that is out, whose transit the machine's worker has ended.
    pub fn parks_on_worker(&mut self, thread: u32, page: usize) {
        assert_eq!(self.kernel.touch(thread, page, None), Err(Stop::Waits));
        let mut buffer = [Fault::default(); 1];
        let faults = self.kernel.read_faults(&mut buffer).expect("it waits");
        self.worker.unpark(&mut faults.to_vec());
    }

    /// Memory that is not registered yet, and a thread that waits until it is; where.
    pub fn awaits_registration(&mut self) -> usize {
        let start = self.fill_unregistered(4, 4, 3);
        self.process.base.registration.awaits();
        start
    }

    /// All invariants, and that no more is in use than is charged.
    pub fn check(&self) {
        let mut state = self.process.lock();
        // Pages that a call brought back, or frames that it emptied, are paid for now.
        self.process.release_overdraft(&mut state);
        self.pager.check(&state);
        let used = self.process.used(&state);
        assert!(state.charge.over(used) <= 0, "more is used than is charged");
        assert!(self.process.member.charged() <= self.process.member.limit());
        assert_eq!(
            state.charge.charged(),
            self.process.member.own_charge() as i64
        );
    }

    /// Maps so many pages as the program does, before the keeper's turn.
    pub fn mmap_unregistered(&mut self, pages: usize, flags: i32) -> usize {
        self.kernel.threads.is_own.store(false, SeqCst);
        // SAFETY: memory of the kernel in memory.
        let mapped = unsafe { self.pager.mmap(0, pages * PAGE, PLAIN, flags, -1, 0) };
        self.kernel.threads.is_own.store(true, SeqCst);
        mapped.expect("mapped")
    }

    /// The same, and the program has written `byte` to the first `filled` of them.
    pub fn fill_unregistered(&mut self, pages: usize, filled: usize, byte: u8) -> usize {
        let start = self.mmap_unregistered(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        for address in (start..).step_by(PAGE).take(filled) {
            self.kernel.touch(1, address, Some(byte)).unwrap();
            self.model.insert(address, byte);
        }
        start
    }

    /// `mmap` at a fixed address.
    pub fn mmap(
        &mut self,
        at: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Outcome<usize> {
        // SAFETY: memory of the kernel in memory, here and below.
        self.call(|pager| unsafe { pager.mmap(at, len, prot, flags, fd, offset) })
    }

    pub fn munmap(&mut self, at: usize, len: usize) -> Outcome<()> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.munmap(at, len) })
    }

    pub fn mremap(
        &mut self,
        old: usize,
        old_len: usize,
        len: usize,
        flags: i32,
        to: usize,
    ) -> Outcome<usize> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.mremap(old, old_len, len, flags, to) })
    }

    pub fn mprotect(&mut self, at: usize, len: usize, prot: i32) -> Outcome<()> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.mprotect(at, len, prot) })
    }

    pub fn madvise(&mut self, at: usize, len: usize, advice: i32) -> Outcome<()> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.madvise(at, len, advice) })
    }

    pub fn mlock(&mut self, at: usize, len: usize, flags: i32) -> Outcome<()> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.mlock(at, len, flags) })
    }

    pub fn munlock(&mut self, at: usize, len: usize) -> Outcome<()> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.munlock(at, len) })
    }

    pub fn brk_set(&mut self, at: usize) -> Outcome<usize> {
        // SAFETY: as above.
        self.call(|pager| unsafe { pager.brk_set(at) })
    }
}

/// Serves all faults that wait.
fn serve(process: &'static FaultService<MemoryKernel>, worker: &mut Worker) {
    let mut buffer = [Fault::default(); BATCH];
    while let Ok(faults) = process.kernel.read_faults(&mut buffer)
        && !faults.is_empty()
    {
        let now = process.now();
        process.pressure.begin(faults.len(), now);
        for &fault in faults {
            let pending = PendingFault::alone(fault, now);
            process.serve_until_done(worker, pending);
        }
        process.serve_deferred(worker);
        process.serve_again(worker);
    }
}
