//! Whether this process is in a tree, and what there is of a keeper.

use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Kernel};
use once_cell::race::OnceBox;
use std::ffi::CString;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// The states of a keeper.
const NO_KEEPER: u32 = 0;
const HAS_KEEPER: u32 = 1;
/// There can be none: the process is not in a tree, or none can be started.
const NEVER_A_KEEPER: u32 = 2;

/// The states of the descriptors that paging needs: the keeper has not come to them, has them, has none yet.
const UNTRIED: u32 = 0;
const OPEN: u32 = 1;
const REFUSED: u32 = 2;

/// Where threads of ours start.
#[derive(Clone, Copy)]
pub struct Entries {
    /// A helper's first task.
    pub keeper: Entry,
    /// A service thread of this index.
    pub service: Entry,
}

/// How a process begins.
pub struct Beginning {
    /// The address of the tree's supervisor, if the process is in a tree.
    pub control: Option<CString>,
    /// The entry points of keeper and service threads.
    pub entries: Entries,
    /// Standard error, by device and inode.
    pub standard_error: Option<(u64, u64)>,
}

/// How far the library has come in this process.
pub struct Lifecycle {
    /// The beginning of the process, from [`begin`](Self::begin) on.
    beginning: OnceBox<Beginning>,
    /// The state of the keeper.
    keeper: AtomicU32,
    /// The keeper's task, by its number in the system. A forked child finds its parent's here.
    keeper_task: AtomicU32,
    /// The states of the keeper's descriptors before the process pages; threads wait for a change.
    descriptors: AtomicU32,
    /// Flag for tests: all invariants are checked again and again while the program runs.
    checking: AtomicBool,
    /// Flag for tests: memory is compared with the page map when the program has let it go
    /// ([`audit`](crate::process::audit)).
    auditing: AtomicBool,
    /// Flag: it was said why the process is ended.
    told_why: AtomicBool,
}

impl Lifecycle {
    /// Before the library's constructor.
    pub const fn new() -> Self {
        Self {
            beginning: OnceBox::new(),
            keeper: AtomicU32::new(NO_KEEPER),
            keeper_task: AtomicU32::new(0),
            descriptors: AtomicU32::new(UNTRIED),
            checking: AtomicBool::new(false),
            auditing: AtomicBool::new(false),
            told_why: AtomicBool::new(false),
        }
    }

    /// Whether nobody has said yet why the process is ended: several threads may find so at a time.
    pub fn tells_why(&self) -> bool {
        !self.told_why.swap(true, SeqCst)
    }

    /// The constructor ran.
    pub fn begin(&self, beginning: Beginning) {
        // A store before any load: one page fault, not two.
        self.keeper.store(NO_KEEPER, SeqCst);
        let _ = self.beginning.set(Box::new(beginning));
    }

    /// How to reach the tree's supervisor, if this process is in a tree.
    pub fn control(&self) -> Option<&str> {
        self.beginning.get()?.control.as_deref()?.to_str().ok()
    }

    /// Whether the process may be in a tree: before [`begin`](Self::begin) that is unknown, so yes.
    pub fn may_page(&self) -> bool {
        self.beginning.get().is_none_or(|b| b.control.is_some())
    }

    /// Claims the start of the first keeper; false if there is one already, or never will be.
    pub fn claim_keeper(&self) -> bool {
        let claimed = self
            .keeper
            .compare_exchange(NO_KEEPER, HAS_KEEPER, SeqCst, SeqCst);
        self.control().is_some() && claimed.is_ok()
    }

    /// Starts the keeper, and so the helper; tries again for `patience` where the system refuses it.
    pub fn start_keeper(&self, kernel: &impl Kernel, patience: Duration) -> Result<(), Errno> {
        let started = match self.beginning.get() {
            Some(begun) => kernel.start_helper(begun.entries.keeper, patience),
            None => Err(Errno(libc::EAGAIN)),
        };
        if started.is_err() {
            self.keeper_ends();
        }
        started
    }

    /// Starts the keeper. Where the system refuses it, a line says that the process runs unmanaged; it is measured,
    /// as a small one is.
    pub fn start_keeper_or_warn(&self, kernel: &impl Kernel) {
        if let Err(Errno(error)) = self.start_keeper(kernel, Duration::ZERO) {
            self.warn_unmanaged(kernel, error);
        }
    }

    /// Says so on standard error, as there is no helper to do it, unless the program closed that and another file
    /// has its number by now.
    fn warn_unmanaged(&self, kernel: &impl Kernel, error: i32) {
        let why = match error {
            libc::EAGAIN => {
                "no process may be started to serve it; raise `ulimit -u`, or pids.max of its cgroup"
            }
            libc::ENOMEM => "it has no addresses left for that; raise `ulimit -v` and `ulimit -d`",
            libc::ENOTSUP => "none can be started to serve it here",
            _ => "none could be started to serve it",
        };
        let then = self.beginning.get().and_then(|b| b.standard_error);
        if kernel.standard_error() != then {
            return;
        }
        let mut line = [0u8; 256];
        let mut to = &mut line[..];
        let id = kernel.process();
        let _ = writeln!(
            to,
            "ebb: process {id} runs unmanaged, its memory stays in RAM: {why}"
        );
        let left = to.len();
        let len = line.len() - left;
        kernel.write_standard_error(&line[..len]);
    }

    /// Where service threads start.
    pub fn service_entry(&self) -> Entry {
        let begun = self.beginning.get();
        begun.expect("a keeper was started, by it").entries.service
    }

    /// The keeper has nothing to do here, and ends.
    pub fn keeper_ends(&self) {
        self.keeper.store(NEVER_A_KEEPER, SeqCst);
    }

    /// Whether there is none and never will be.
    pub fn is_keeperless(&self) -> bool {
        self.keeper.load(SeqCst) == NEVER_A_KEEPER
    }

    /// Whether there is a keeper, or in a forked child: its parent had one.
    pub fn had_keeper(&self) -> bool {
        self.keeper.load(SeqCst) == HAS_KEEPER
    }

    /// In the keeper: it has its descriptors, or was refused.
    pub fn opened_descriptors(&self, kernel: &impl Kernel, all: bool) {
        self.descriptors
            .store(if all { OPEN } else { REFUSED }, SeqCst);
        kernel.wake_word(&self.descriptors, i32::MAX);
    }

    /// Whether the keeper has its descriptors.
    pub fn has_descriptors(&self) -> bool {
        self.descriptors.load(SeqCst) == OPEN
    }

    /// Waits, for so long at most, until the keeper has tried to open its descriptors.
    pub fn wait_for_descriptors(&self, kernel: &impl Kernel, most: Duration) {
        const LOOK: Duration = Duration::from_millis(20);
        let end = kernel.now() + most;
        while self.descriptors.load(SeqCst) == UNTRIED
            && kernel.helper_lives()
            && kernel.now() < end
        {
            kernel.wait_word(&self.descriptors, UNTRIED, Some(LOOK));
        }
    }

    /// In a forked child: the keeper that is to come opens its own.
    pub fn reset_in_child(&self) {
        self.descriptors.store(UNTRIED, SeqCst);
    }

    /// Every state is one that there is, and only a process that has begun has a keeper's descriptors.
    pub fn check(&self) {
        assert!(self.keeper.load(SeqCst) <= NEVER_A_KEEPER);
        assert!(self.descriptors.load(SeqCst) <= REFUSED);
        assert!(!self.has_descriptors() || self.beginning.get().is_some());
    }

    /// Tests want checks: all invariants again and again, and a look at memory when the program has let it go.
    pub fn check_for_tests(&self, checking: bool, auditing: bool) {
        self.checking.store(checking, SeqCst);
        self.auditing.store(auditing, SeqCst);
    }

    /// Whether memory is to be compared with the page map at the end.
    pub fn is_auditing(&self) -> bool {
        self.auditing.load(SeqCst)
    }

    /// Whether invariants are to be checked while the program runs.
    pub fn is_checking(&self) -> bool {
        self.checking.load(SeqCst)
    }

    /// The keeper's task; in a forked child before its own has begun: the parent's.
    pub fn keeper_task(&self) -> u32 {
        self.keeper_task.load(SeqCst)
    }

    /// The keeper's task has begun.
    pub fn keeper_begins(&self, task: u32) {
        self.keeper_task.store(task, SeqCst);
    }

    /// Whether a thread is the keeper.
    pub fn is_keeper(&self, thread: u32) -> bool {
        self.keeper_task.load(SeqCst) == thread
    }
}
