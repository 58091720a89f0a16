//! A simulated process: its pager, and how it begins, forks, becomes another program and ends.

use crate::agreement;
use crate::host;
use crate::life::{become_another, kill_program, others_are_gone, this};
use crate::scheduler::{scheduler, world};
use crate::supervisor;
use crate::threads::SimThreads;
use crate::trace::What;
use crate::world::{MAX_IMAGES, Role, State};
use ebb_engine::env::Lender;
use ebb_engine::slots::Devices;
use ebb_memory_kernel::MemoryKernel;
use ebb_pager::simulation::{Entries, Simulated};
use ebb_tree::{Member, OUT_OF_MEMORY};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// Descriptors of a process of the host at its end: the run's own, and those of each program that it was.
const MOST_DESCRIPTORS: usize = 24;

/// The kernel of a process.
pub type SimKernel = MemoryKernel<SimThreads>;

/// The parts of a process that a fork copies.
struct This {
    pager: Simulated<SimKernel>,
    member: OnceLock<&'static Member>,
    joining: Joining,
    /// Flag: a death for want of memory is no failure.
    may_run_out: bool,
    /// Flag: pages may be lost.
    may_lose: bool,
    devices: fn(&Devices),
    /// Flag: the process was forked.
    forked: Cell<bool>,
    /// Pages that differed from the page map under former members of this place in the tree.
    differed: Cell<u64>,
}

// SAFETY: one thread of the host uses it.
unsafe impl Sync for This {}
// SAFETY: as above.
unsafe impl Send for This {}

/// The programs that the process was, and is: each has a pager of its own. The helpers of former ones may live yet.
static IMAGES: [OnceLock<This>; MAX_IMAGES] = [const { OnceLock::new() }; MAX_IMAGES];
/// Former programs whose memory is gone, or was never this process's, a bit each.
static CLEARED: AtomicU8 = AtomicU8::new(0);

/// How processes become members.
pub enum Joining {
    /// By the supervisor of this address.
    Supervised(String),
    /// There is none.
    Alone {
        /// The member that the first process is.
        member: &'static Member,
        /// The other end of its connection.
        messages: OwnedFd,
        /// The end that is its own.
        connection: OwnedFd,
    },
}

/// A process's surroundings.
pub struct Setting {
    /// Threads and disturbances.
    pub threads: SimThreads,
    /// The way in which it becomes a member.
    pub joining: Joining,
    /// Flag: it may be ended for want of memory.
    pub may_run_out: bool,
    /// Flag: its pages may be lost, with a message.
    pub may_lose: bool,
    /// Adds its devices.
    pub devices: fn(&Devices),
}

fn image() -> Option<&'static This> {
    IMAGES[usize::from(scheduler().image())].get()
}

fn here() -> &'static This {
    image().expect("the process has begun")
}

/// The pager of this process.
pub fn pager() -> &'static Simulated<SimKernel> {
    &here().pager
}

/// Its membership.
///
/// # Panics
/// It has none yet.
pub fn member() -> &'static Member {
    here().member.get().expect("it has joined")
}

/// The leases of a device in a row: those of all processes that a supervisor knows, or the first process's own.
pub fn lender(row: usize, slots: u64) -> Option<Arc<dyn Lender>> {
    match here().joining {
        Joining::Supervised(_) => member().hold(row, supervisor::leases(row)),
        Joining::Alone { .. } => member().lend(row, slots).expect("shared memory for leases"),
    }
}

/// As a member, what the pager must hold between two steps.
pub fn check() {
    let Some((here, member)) = image().and_then(|t| Some((t, t.member.get()?))) else {
        return;
    };
    if here.pager.check() {
        agreement::check(&here.pager);
    }
    let (charged, limit) = (member.charged(), member.limit());
    if charged > limit + slack(limit) {
        world().fail(&format!("{charged} pages are charged, of {limit}"));
    }
}

/// What must hold of faults that wait for pages in transit.
pub fn check_parked() {
    image().iter().for_each(|it| it.pager.check_parked());
}

/// Pages over the limit that are allowed for a moment: memory of the pager's own that it has when it is counted. Each
/// processor's zstd contexts alone are some 200.
fn slack(limit: u64) -> u64 {
    512 + limit / 8
}

/// The process ends: what its kernel has of it is given back.
pub fn clear() {
    clear_formers();
    image().iter().for_each(|it| it.pager.kernel().clear());
}

/// The memory of former programs whose helpers have ended goes.
pub fn clear_formers() {
    let process = this();
    let gone = ((1 << process.image.get()) - 1) & !process.formers.get();
    let cleared = CLEARED.load(SeqCst);
    if gone & !cleared == 0 {
        return;
    }
    CLEARED.store(gone | cleared, SeqCst);
    for (number, image) in IMAGES.iter().enumerate() {
        if gone & !cleared & 1 << number != 0 {
            image.get().iter().for_each(|it| it.pager.kernel().free());
        }
    }
}

/// On the keeper's thread of the first process.
fn join() -> &'static Member {
    let here = here();
    here.member.get_or_init(|| match &here.joining {
        Joining::Alone { member, .. } => member,
        Joining::Supervised(control) => match Member::join(control, None, None) {
            Ok(member) => {
                note_differences(&member);
                Box::leak(Box::new(member))
            }
            // The supervisor was killed: a program that nobody manages is not of interest.
            Err(_) => {
                world().note(What::Do, "unmanaged", [0, 0]);
                this().served.set(false);
                kill_program();
                scheduler().leave()
            }
        },
    })
}

/// A member begins in this place of the tree, whose counters go on from the former member's.
fn note_differences(member: &Member) {
    let before = member.counters().map_disagrees.get();
    here().differed.set(before);
}

/// Whether pages of it may be lost.
pub fn may_lose() -> bool {
    here().may_lose
}

extern "C" fn keeper(_: usize) -> ! {
    let here = here();
    if here.forked.get() {
        here.pager.run_forked_keeper()
    }
    here.pager.run_keeper(join, here.devices)
}

extern "C" fn service(index: usize) -> ! {
    here().pager.run_service(index)
}

/// The first process begins.
pub fn begin(setting: Setting) {
    // Or a supervisor of this address was there, and is gone.
    let control = match &setting.joining {
        Joining::Supervised(control) => control.clone(),
        Joining::Alone { .. } => "ebb-tree-1-1-0000000000000001".to_owned(),
    };
    let new = IMAGES[0].get_or_init(|| This {
        pager: Simulated::new(MemoryKernel::new(setting.threads)),
        member: OnceLock::new(),
        joining: setting.joining,
        may_run_out: setting.may_run_out,
        may_lose: setting.may_lose,
        devices: setting.devices,
        forked: Cell::new(false),
        differed: Cell::new(0),
    });
    crate::life::when_killed_by_pager(killed_by_pager);
    let process = this();
    process.lives.set(true);
    process.host.set(std::process::id() as i32);
    new.pager.begin(control, Entries { keeper, service });
}

/// Whether the process may become another program now. Nobody could tell it of a tree without a supervisor.
pub fn may_exec() -> bool {
    let supervised = matches!(here().joining, Joining::Supervised(_));
    supervised && usize::from(this().image.get()) + 1 < MAX_IMAGES
}

/// Exec, by the calling thread, which is the first of the new program then. It has no memory, and a pager that has to join the
/// tree.
///
/// # Panics
/// It [may not](may_exec).
pub fn exec() {
    let old = here();
    let Joining::Supervised(control) = &old.joining else {
        panic!("nobody else may");
    };
    let me = scheduler().me();
    let image = become_another();
    scheduler().become_image(image);
    me.state.set(State::Ready);
    agreement::forget();
    let new = IMAGES[usize::from(image)].get_or_init(|| This {
        pager: Simulated::new(MemoryKernel::of_image(old.pager.kernel().threads, image)),
        member: OnceLock::new(),
        joining: Joining::Supervised(control.clone()),
        forked: Cell::new(false),
        differed: Cell::new(0),
        ..*old
    });
    new.pager
        .begin(control.clone(), Entries { keeper, service });
}

/// The pager ends the program, and has said why.
fn killed_by_pager() {
    this().ended_by_pager.set(true);
    if let Joining::Alone { .. } = here().joining {
        let why = messages();
        if !(why.contains(OUT_OF_MEMORY) && here().may_run_out) {
            world().fail(&format!("the pager ended the program: {why}"));
        }
    }
    kill_program();
}

/// The pager's messages since the last look, if no supervisor listens.
pub fn messages() -> String {
    let mut all = String::new();
    let Joining::Alone { messages, .. } = &here().joining else {
        return all;
    };
    let mut packet = [0; 4096];
    let how = rustix::net::RecvFlags::DONTWAIT;
    while let Ok((len @ 1.., _)) = rustix::net::recv(messages, &mut packet[..], how) {
        let text: Vec<u8> = packet[..len]
            .iter()
            .copied()
            .filter(|b| (32..127).contains(b))
            .collect();
        all.push_str(&String::from_utf8_lossy(&text));
        all.push('\n');
    }
    all
}

/// Pages of the program that the kernel has mapped, each a run.
pub fn mapped() -> Vec<crate::memory::Run> {
    pager().kernel().tables(|tables| {
        let own = tables.mappings.iter().filter(|(_, mapping)| !mapping.own);
        own.map(|(at, _)| (at, 1)).collect()
    })
}

/// At the program's end, with nothing mapped: sees that its pager holds nothing any more. Memory may have been mapped
/// `behind` it: then its page map does not say what was there.
pub fn leaves_nothing(behind: bool) {
    let held = || pager().held();
    // The keeper may be writing pages whose entries are gone by now, and has slots for them until they are written.
    let gone = |held: &ebb_pager::simulation::Held| {
        held.known + held.entries + held.staged + held.in_transit + held.resident == 0
            && held.pooled == 0
            && (held.slots == 0 || may_lose())
    };
    // The first process waits for all that were forked.
    while scheduler().process() == 0 && !others_are_gone() {
        scheduler().wait(
            crate::world::Key::Never,
            Some(std::time::Duration::from_millis(50)),
        );
    }
    for _ in 0..200 {
        if gone(&held()) {
            break;
        }
        scheduler().wait(
            crate::world::Key::Never,
            Some(std::time::Duration::from_millis(10)),
        );
    }
    let left = held();
    if !gone(&left) {
        world().fail(&format!(
            "a program that has nothing any more leaves {left:?}"
        ));
    }
    let open = host::descriptors();
    if open > MOST_DESCRIPTORS {
        world().fail(&format!("a program leaves {open} descriptors"));
    }
    let differ = pager().disagreements() - here().differed.get();
    if differ > 0 && !behind {
        world().fail(&format!("{differ} pages were not as the page map said"));
    }
}

/// Forks this process; none: it could not be. Whether this is the child.
pub fn fork() -> Option<bool> {
    let world = world();
    // SAFETY: one of those below follows.
    if !pager().make_ready() || !unsafe { pager().before_fork() } {
        return None;
    }
    let free = world.programs().iter().position(|p| p.host.get() == 0);
    let Some(free) = free.filter(|_| world.below(8) != 0) else {
        // The system refuses it.
        // SAFETY: as above.
        unsafe { pager().after_fork_parent(Some(-1)) };
        return None;
    };
    pager().kernel().count_copies();
    let process = &world.processes[free];
    process.lives.set(true);
    process.host.set(-1);
    process.image.set(this().image.get());
    process.addresses.set(this().addresses.get());
    let (from, to) = (
        world.current.get(),
        scheduler().reserve(Role::Program, free as u8),
    );
    // SAFETY: this process has one thread; the child goes on as one of its own.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process for a child");
    if child == 0 {
        // Former programs are the parent's.
        CLEARED.store((1 << scheduler().image()) - 1, SeqCst);
        here().forked.set(true);
        agreement::forget();
        host::limit_time();
        scheduler().become_child(free as u8, from, to);
        scheduler().mask_signals(true);
        this().host.set(std::process::id() as i32);
        pager().kernel().become_child();
        // SAFETY: after `before_fork` on this thread.
        unsafe { pager().after_fork_child() };
        note_differences(member());
        if let Joining::Alone { connection, .. } = &here().joining {
            member().tell(rustix::io::dup(connection).expect("a descriptor"));
        }
        return Some(true);
    }
    // Before the table names it: the supervisor may look before the child runs, and asks for its image by this.
    process.host.set(child);
    scheduler().await_child();
    // SAFETY: as above.
    unsafe { pager().after_fork_parent(Some(child)) };
    Some(false)
}
