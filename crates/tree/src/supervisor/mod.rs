//! The supervisor: `ebb run` while the tree lives.
//!
//! One thread but for devices that are being opened, one epoll, and a tick whose pace follows how soon the budget could
//! be used up:
//! ```text
//! events   new connections                                             (admission, refusal)
//!          messages, ends of connections, deaths                       (members)
//!          the processes that serve members                            (helpers)
//!          faults in memory whose process has ended                    (orphan_memory)
//!          members whose memory the guard is to keep                   (guard)
//! tick     measure who does not page, write the limit, ask for reclaim (measure)
//!          how long the tree waited                                    (pressure)
//! requests show, add and remove swap devices; show and change limits   (devices, opening, removal, limits)
//!          the figures                                                 (stats)
//! ```
//! Its embedder either calls [`Supervisor::run`], which also waits for the child, or polls its descriptor
//! beside others and calls [`Supervisor::turn`].
//!
//! It does not page and holds no data of members, and members do not depend on its life. Without it nobody
//! measures, nobody reaps, and the limit stays as it was.

mod admission;
mod beyond_budget;
mod clients;
mod connections;
mod descendants;
mod devices;
mod exits;
mod full_device;
mod helpers;
mod inherited_limits;
mod joiner;
mod limits;
mod managed_process;
mod measure;
mod members;
mod opening;
mod orphan_memory;
mod pace;
mod pending_children;
mod pressure;
mod refusal;
mod removal;
mod sharing;
mod stats;

use crate::guard::{Guard, Launcher};
use crate::histogram::{Histogram, Summary};
use crate::lease::Leases;
use crate::protocol::{self, Settings};
use crate::table::Limits;
use crate::table::{Config, Mode, SlotNumber, SlotState, Table, Way};
use crate::{Facts, MAX_DEVICES, MAX_MEMBERS};
use admission::Handshake;
use beyond_budget::BeyondBudget;
use descendants::Descendants;
pub use devices::DeviceShown;
use devices::TreeDevice;
use ebb_engine::counters::Counters;
use ebb_sys::proc::{self, Process};
use inherited_limits::OwnLimits;
use joiner::Joiner;
use limits::BudgetReduction;
pub use limits::{LimitsShown, ProcessLimits, check_limits};
pub use managed_process::HIDDEN;
use managed_process::ManagedProcess;
use measure::Measurements;
pub use opening::Opener;
use opening::Opening;
use orphan_memory::OrphanMemory;
use pending_children::PendingChild;
use pressure::TreePressure;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};
pub use stats::{CellShown, FaultsShown, MemberShown, MoreShown, PoolShown, StatsShown};
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Where the supervisor's lines for a person go. The answer is the process that was started for a line, if one was: a
/// child of this one that is not of the tree.
pub type Notices = Box<dyn FnMut(&str) -> Option<u32> + Send>;

/// The least and the most pages that a tree can be given, as they are when they are asked for: what there is in all may
/// change while it runs. Asking may not wait, and least of all for the supervisor.
pub type Budgets = Box<dyn Fn() -> RangeInclusive<u64> + Send>;

/// The configuration of a new tree.
pub struct Setup {
    /// Pages that the whole tree may use.
    pub budget_pages: u64,
    /// The budgets that it can be given while it runs.
    pub budgets: Budgets,
    /// At first.
    pub limits: Limits,
    /// Swap devices, at most [`MAX_DEVICES`].
    pub devices: Vec<SetupDevice>,
    /// The settings for every member.
    pub config: Config,
    /// The place where lines for the user go, without their end; none: standard error.
    pub notices: Option<Notices>,
    /// Opens devices that are added while the tree runs; none: that is refused.
    pub open: Option<Opener>,
    /// Starts the process that guards members' memory; none: nobody does.
    pub guard: Option<Launcher>,
}

/// A device of the tree.
pub struct SetupDevice {
    /// The name in messages: its path.
    pub name: String,
    /// The file; every member receives a duplicate.
    pub fd: OwnedFd,
    /// The facts.
    pub facts: Facts,
    /// Higher is used first.
    pub priority: Option<i16>,
}

/// Why the supervisor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// More devices than the table has room for.
    #[error(
        "{0} swap devices are too many: at most {MAX_DEVICES} can be in use at a time, leave some out"
    )]
    TooManyDevices(usize),
    /// No whole cluster fits on a device.
    #[error("swap device {0} has {1} pages: give it, or another, at least 512 (2 MiB)")]
    DeviceTooSmall(String, u64),
    /// The system refused a memfd, a socket or the like.
    #[error("cannot set up the {0}: {1}: `ebb doctor` says which limits are low here")]
    System(&'static str, Errno),
}

/// The tree's counters so far.
pub struct Totals {
    /// Sums over every process that ever was in the tree.
    pub counters: Counters,
    /// Fault latency by way in, over the same processes.
    pub latency: [(Way, Summary); 4],
    /// The budget in pages, as it is now.
    pub budget_pages: u64,
    /// The most pages the tree used at any time.
    pub peak_pages: u64,
    /// The most pages that its programs had, in memory or not, as they said some 20 ms apart: those in use at least.
    pub peak_had_pages: u64,
    /// The most bytes that the pools of its processes held together, as they said some 20 ms apart.
    pub peak_pool_bytes: u64,
    /// Pages it uses now.
    pub used_pages: u64,
    /// Processes that joined so far.
    pub processes: u64,
    /// Flag: it had to page.
    pub mode: Mode,
}

impl Totals {
    /// The counters as JSON: name and value.
    #[must_use]
    pub fn counters_by_name(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut by_name = serde_json::Map::new();
        self.counters.each(|name, value| {
            by_name.insert(name.into(), value.into());
        });
        by_name
    }
}

/// See the module's text.
pub struct Supervisor {
    table: &'static Table,
    table_fd: OwnedFd,
    settings: Settings,
    rows: [Option<TreeDevice>; MAX_DEVICES],
    /// Leases of devices without a file: those of a simulation.
    pub(crate) without_files: Vec<Leases<'static>>,
    /// The number of the next device.
    next_serial: u64,
    open: Option<Opener>,
    /// Devices that are being opened.
    openings: Vec<Opening>,
    control: String,
    listener: OwnedFd,
    epoll: OwnedFd,
    /// Kept to be able to say no when there are no more descriptors.
    spare: Option<OwnedFd>,
    /// Connections that have not said anything.
    handshakes: HashMap<u32, Handshake>,
    next_handshake: u32,
    /// Processes that have said hello and could not be looked at.
    postponed: Vec<Joiner>,
    members: Vec<Option<ManagedProcess>>,
    /// Reserved slots, and what is known of the children they are for.
    pending_children: Vec<Option<PendingChild>>,
    /// The time when all slots were looked at last: `clock::ticks`.
    looked: u64,
    by_pid: HashMap<u32, SlotNumber>,
    /// Living helpers of members.
    helpers: HashMap<u32, SlotNumber>,
    guard: Guard,
    /// Slots that have counters.
    used: Vec<bool>,
    joined: u64,
    measurements: Measurements,
    pressure: TreePressure,
    due: Instant,
    /// The time when it began.
    since: Instant,
    /// Processors that the tree may use.
    processors: usize,
    /// The budgets that can be given.
    budgets: Budgets,
    /// The budget in pages that holds while none is being lowered.
    budget: i64,
    /// The largest budget before the last change; none: it never changed.
    past_budget: Option<i64>,
    /// A lower budget on its way.
    reduction: Option<BudgetReduction>,
    /// Limits of single processes.
    own_limits: OwnLimits,
    /// Memory whose process has ended, and which others still use.
    orphan_memory: HashMap<u32, OrphanMemory>,
    next_orphan_memory: u32,
    /// Flag: a death may have left the sum of charges too large.
    drifted: bool,
    /// Flag: the user knows that there are more processes than places.
    warned_crowded: bool,
    /// Flag: the user knows that there are more processes than descriptors.
    warned_exhausted: bool,
    /// Flag: the user knows that memory may outlive its process unprotected.
    warned_unkept: bool,
    /// Flag: it was said that processes of another user cannot join.
    warned_other_user: bool,
    /// Reasons of refusals that the user knows, without numbers.
    told_refusals: Vec<String>,
    /// Memory that cannot be paged and is more than the budget.
    beyond_budget: BeyondBudget,
    notices: Notices,
}

/// The subject of an epoll event, packed into its 64 bits.
#[derive(Clone, Copy)]
enum Token {
    Listener,
    Handshake(u32),
    Connection(SlotNumber),
    Death(SlotNumber),
    /// A helper is gone.
    Helper(SlotNumber),
    MainChild,
    /// The command that asked for the removal of a row's device.
    Client(u32),
    /// The command that asked for a lower budget.
    Limiter,
    /// Somebody waits for a page of memory whose process has ended.
    OrphanMemory(u32),
}

impl Token {
    fn pack(self) -> epoll::EventData {
        let (kind, n) = match self {
            Token::Listener => (0, 0),
            Token::Handshake(n) => (1, n),
            Token::Connection(slot) => (2, slot.0 as u32),
            Token::Death(slot) => (3, slot.0 as u32),
            Token::MainChild => (4, 0),
            Token::Client(row) => (5, row),
            Token::Limiter => (6, 0),
            Token::OrphanMemory(n) => (7, n),
            Token::Helper(slot) => (8, slot.0 as u32),
        };
        epoll::EventData::new_u64((kind << 32) | n as u64)
    }

    fn unpack(data: epoll::EventData) -> Self {
        let word = data.u64();
        let slot = SlotNumber(word as u16);
        match word >> 32 {
            0 => Token::Listener,
            1 => Token::Handshake(word as u32),
            2 => Token::Connection(slot),
            3 => Token::Death(slot),
            5 => Token::Client(word as u32),
            6 => Token::Limiter,
            7 => Token::OrphanMemory(word as u32),
            8 => Token::Helper(slot),
            _ => Token::MainChild,
        }
    }
}

impl Supervisor {
    /// Makes the shared table and listens. From here on processes with EBB_CONTROL set to
    /// [`control_value`](Self::control_value) can join, and orphans of the tree become
    /// children of this process (PR_SET_CHILD_SUBREAPER).
    ///
    /// # Errors
    /// See [`SetupError`]; nothing is left behind.
    pub fn new(setup: Setup) -> Result<Self, SetupError> {
        let system = |what| move |e| SetupError::System(what, e);
        if setup.devices.len() > MAX_DEVICES {
            return Err(SetupError::TooManyDevices(setup.devices.len()));
        }
        let (table, table_fd) =
            Table::create(setup.budget_pages, setup.config).map_err(system("shared table"))?;
        table.limits.set(setup.limits);
        table.supervised_by(std::process::id());
        let (control, listener) = listen().map_err(system("control socket"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("event queue"))?;
        let (token, reads) = (Token::Listener.pack(), epoll::EventFlags::IN);
        epoll::add(&epoll, &listener, token, reads).map_err(system("event queue"))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(system("reaping of orphans"))?;
        let mut supervisor = Self {
            budget: table.budget.load(SeqCst),
            table,
            table_fd,
            settings: Settings {
                config: setup.config,
                user: rustix::process::geteuid().as_raw(),
                serves_other_users: admission::serves_other_users(),
            },
            rows: [const { None }; MAX_DEVICES],
            without_files: Vec::new(),
            next_serial: 1,
            open: setup.open,
            openings: Vec::new(),
            control,
            listener,
            epoll,
            spare: spare(),
            handshakes: HashMap::new(),
            next_handshake: 0,
            postponed: Vec::new(),
            members: (0..MAX_MEMBERS).map(|_| None).collect(),
            pending_children: (0..MAX_MEMBERS).map(|_| None).collect(),
            looked: 0,
            by_pid: HashMap::new(),
            helpers: HashMap::new(),
            guard: Guard::new(setup.guard),
            used: vec![false; MAX_MEMBERS],
            joined: 0,
            measurements: Measurements::new(),
            pressure: TreePressure::default(),
            due: Instant::now(),
            since: Instant::now(),
            processors: ebb_sys::thread::allowed_cpus().len().max(1),
            budgets: setup.budgets,
            past_budget: None,
            reduction: None,
            own_limits: OwnLimits::default(),
            orphan_memory: HashMap::new(),
            next_orphan_memory: 0,
            drifted: false,
            warned_crowded: false,
            warned_exhausted: false,
            warned_unkept: false,
            warned_other_user: false,
            told_refusals: Vec::new(),
            beyond_budget: BeyondBudget::default(),
            notices: setup.notices.unwrap_or_else(to_stderr),
        };
        for device in setup.devices {
            supervisor.add_device(device)?;
        }
        Ok(supervisor)
    }

    /// The value of EBB_CONTROL for the processes of the tree.
    pub fn control_value(&self) -> &str {
        &self.control
    }

    /// When [`turn`](Self::turn) wants to be called even if the descriptor is not readable.
    pub fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Handles what has come, without waiting, and ticks if it is time.
    ///
    /// # Errors
    /// Those of the event queue; none is expected.
    pub fn turn(&mut self) -> io::Result<()> {
        self.step(Duration::ZERO)
    }

    /// Waits for at most `timeout` for something to do, and does it. Returns early on a
    /// signal.
    ///
    /// # Errors
    /// Those of the event queue; none is expected.
    pub fn step(&mut self, timeout: Duration) -> io::Result<()> {
        // The queue counts in milliseconds: round up, or the last one is spent spinning.
        let wait = timeout.min(self.due_in());
        let wait = Duration::from_millis(wait.as_nanos().div_ceil(1_000_000) as u64);
        self.handle_events(wait)?;
        if Instant::now() >= self.due {
            self.tick();
        }
        Ok(())
    }

    /// Waits for something to do, and does it.
    pub(crate) fn handle_events(&mut self, wait: Duration) -> io::Result<()> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: Token::MainChild.pack(),
        }; 64];
        let wait = wait.try_into().map_err(|_| Errno::INVAL)?;
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&wait)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        for event in &events[..count] {
            match Token::unpack(event.data) {
                Token::Listener => self.accept(),
                Token::Handshake(n) => self.on_first_packet(n),
                Token::Connection(slot) => drop(self.receive_from(slot)),
                Token::Death(slot) => self.died(slot),
                Token::Helper(slot) => self.helper_ended(slot),
                Token::Client(row) => self.on_removal_client(row),
                Token::Limiter => self.on_limit_client(),
                Token::OrphanMemory(n) => self.serve_orphan_memory(n),
                Token::MainChild => {}
            }
        }
        Ok(())
    }

    /// Supervises until the child `pid` ends, and returns how it ended. Reaps every other
    /// child too. `interrupted` is called after each wait, so that a caller's signal handlers
    /// get their turn.
    ///
    /// # Errors
    /// If the child is not ours.
    pub fn run(&mut self, pid: u32, mut interrupted: impl FnMut()) -> io::Result<WaitStatus> {
        let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        let main = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        epoll::add(
            &self.epoll,
            &main,
            Token::MainChild.pack(),
            epoll::EventFlags::IN,
        )?;
        loop {
            self.step(Duration::from_secs(1))?;
            interrupted();
            if let Some(status) = self.collect(pid)? {
                return Ok(status);
            }
        }
    }

    /// Reaps ended children; returns how `main` ended if it is among them.
    ///
    /// # Errors
    /// ECHILD if there is no child left, and `main` was not among those reaped.
    pub fn collect(&mut self, main: Pid) -> io::Result<Option<WaitStatus>> {
        loop {
            // Children may end with any signal, or with none.
            let how = WaitOptions::NOHANG | ANY_CHILD;
            match rustix::process::wait(how) {
                Ok(Some((pid, status))) if pid == main => return Ok(Some(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Every process of the tree at this moment, those that serve others among them. A member that has ended is none,
    /// though its helper is at work yet: its number may be a stranger's.
    pub fn processes(&self) -> Vec<u32> {
        self.descendants(self.helpers.keys().copied()).pids
    }

    /// Every process of the tree that is known, or descends from one that is; those that serve others if they are
    /// named.
    fn descendants(&self, helpers: impl Iterator<Item = u32>) -> Descendants {
        let lives = |slot: &SlotNumber| {
            let member = self.members[slot.index()].as_ref();
            member.is_some_and(|member| !proc::has_ended(&member.pidfd))
        };
        let members = self.by_pid.iter().filter(|(_, slot)| lives(slot));
        let known = members.map(|(pid, _)| *pid).chain(helpers);
        let known = known.chain(self.measurements.unmanaged());
        descendants::descendants(known, self.guard.pid(), &self.measurements.strangers)
    }

    /// The command has ended for its caller: processes of ours leave the caller's standard error.
    pub fn leave_stderr(&self) {
        self.guard.leave_stderr();
    }

    /// In the process that made the socket, before it ends: its copy `pid` carries on.
    pub fn hands_over(&self, pid: u32) {
        self.table.supervised_by(pid);
    }

    /// In its copy, first of all.
    pub fn takes_over(&mut self) {
        self.table.supervised_by(std::process::id());
        self.measurements.measure_this_process();
    }

    /// In a copy of the process that made the socket, which goes on in its place: who connects sees its number, once the
    /// other has ended. Until then the name is the other's. Whether it has.
    ///
    /// # Errors
    /// Those of listen(2).
    pub fn carries_on(&self) -> io::Result<bool> {
        let name = protocol::ControlName::parse(&self.control);
        let is_ours = name.is_none_or(|name| name.maker_is_gone());
        if is_ours {
            net::listen(&self.listener, MAX_MEMBERS as i32)?;
        }
        Ok(is_ours)
    }

    /// Members and reserved slots at this moment.
    pub fn members(&self) -> usize {
        self.table.taken().count()
    }

    /// The tree's counters so far.
    pub fn totals(&self) -> Totals {
        let counters = Counters::default();
        let latency: [Histogram; 4] = Default::default();
        for slot in SlotNumber::all().filter(|slot| self.used[slot.index()]) {
            let slot = self.table.slot(slot);
            counters.absorb(&slot.counters.0);
            for (sum, one) in latency.iter().zip(&slot.latency) {
                sum.absorb(one);
            }
        }
        let used_pages = self.table.in_use().max(0) as u64;
        let peak_pages = self.table.peak.0.load(SeqCst).max(0) as u64;
        let peak_pages = peak_pages.max(used_pages);
        Totals {
            counters,
            latency: Way::ALL.map(|way| (way, latency[way as usize].summary())),
            budget_pages: self.table.budget.load(SeqCst).max(0) as u64,
            peak_pages,
            peak_pool_bytes: self.table.pool_peak.0.load(SeqCst),
            peak_had_pages: self.table.had_peak.0.load(SeqCst).max(peak_pages),
            used_pages,
            processes: self.joined,
            mode: self.table.mode(),
        }
    }

    /// Checks what must hold whenever no member is in the middle of a change: charges add
    /// up, every cluster has a living owner or none, every reader lives.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), String> {
        match self.table.drift() {
            None => return Err("changes are under way".into()),
            Some(0) => {}
            Some(drift) => {
                return Err(format!(
                    "the sum of charges is {drift} pages from the slots'"
                ));
            }
        }
        let live = |slot: usize| {
            SlotNumber::new(slot).is_some_and(|n| self.table.state(n).state != SlotState::Free)
        };
        for leases in self.each_leases() {
            leases.check(live)?;
        }
        for (n, slot) in SlotNumber::all().zip(&self.table.slots) {
            // An unused slot is not looked at: that would make its page resident.
            let clear = live(n.index()) || !self.used[n.index()] || {
                slot.charged.load(SeqCst) == 0
                    && slot.credit.load(SeqCst) == 0
                    && slot.measured.load(SeqCst) == 0
            };
            if !clear {
                return Err(format!("the free slot {n} still has charges"));
            }
        }
        Ok(())
    }

    /// There are more processes than places: once, what becomes of one that is too many.
    fn warn_crowded(&mut self, pid: u32, what: &str) {
        if !std::mem::replace(&mut self.warned_crowded, true) {
            self.notice(&format!(
                "{MAX_MEMBERS} processes are managed, as many as can be at a time: {} [{pid}] {what}, \
                 and so do others until some end; run fewer at a time",
                proc::name(pid)
            ));
        }
    }

    /// There are no more descriptors: once, what becomes of this process and those after it.
    fn warn_exhausted(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.warned_exhausted, true) {
            self.notice(&format!(
                "out of descriptors: process {pid} and others run unmanaged until some end, some of \
                 them not counted, and children that are forked by one that pages are ended; raise \
                 `ulimit -n` by six for each process, or run fewer at a time"
            ));
        }
    }

    /// There are few descriptors: once, what memory swapped out may come to.
    fn warn_unkept(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.warned_unkept, true) {
            self.notice(&format!(
                "few descriptors are left: if process {pid}, or one after it, is killed while a child of vfork \
                 runs in its memory, what is swapped out reads as zeros there; raise `ulimit -n` by six \
                 for each process, or run fewer at a time"
            ));
        }
    }

    fn notice(&mut self, line: &str) {
        if let Some(started) = (self.notices)(line) {
            self.measurements.strangers.add(started);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.table.supervisor_leaves();
    }
}

impl AsFd for Supervisor {
    /// Readable when [`Supervisor::turn`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// For wait(2): children made by clone(2) without SIGCHLD too (`__WALL`).
pub const ANY_CHILD: WaitOptions = WaitOptions::from_bits_retain(0x4000_0000);

/// Notices where nobody else takes them.
fn to_stderr() -> Notices {
    Box::new(|line| {
        let _ = writeln!(std::io::stderr(), "ebb: {line}");
        None
    })
}

/// A descriptor of nothing.
fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Binds a socket of a new name: see [`protocol::ControlName`].
fn listen() -> Result<(String, OwnedFd), Errno> {
    let mut random = [0u8; 8];
    ebb_sys::random::fill(&mut random)?;
    let pid = std::process::id();
    let control = protocol::ControlName {
        pid,
        start_time: Process::open(pid).map_or(0, |us| us.start_time()),
        random: u64::from_ne_bytes(random),
    };
    let control = control.to_string();
    let socket = protocol::open(SocketFlags::NONBLOCK)?;
    net::bind(&socket, &protocol::address(&control).ok_or(Errno::INVAL)?)?;
    net::listen(&socket, MAX_MEMBERS as i32)?;
    Ok((control, socket))
}

#[cfg(test)]
impl Supervisor {
    /// Of a tree of so many pages, without devices.
    fn for_test(budget_pages: u64) -> Self {
        Self::new(Setup {
            budget_pages,
            budgets: Box::new(move || 1..=budget_pages),
            limits: Limits::default(),
            devices: Vec::new(),
            config: Config::default(),
            notices: Some(Box::new(|_| None)),
            open: None,
            guard: None,
        })
        .unwrap()
    }
}
