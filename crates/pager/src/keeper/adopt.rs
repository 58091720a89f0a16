//! A process comes under management: all that its pager needs is made, and what is there registered.

use crate::budget::pool_split::Costs;
use crate::devices::swap_space::SwapSpace;
use crate::fault::service;
use crate::keeper::cpu_contention::CpuContention;
use crate::map::page_map::{UNIT, UNIT_BYTES};
use crate::process::fork_stage;
use crate::process::lifecycle::CHECKING;
use crate::process::lifecycle::now_ms;
use crate::process::paging::Process;
use crate::process::refusal::Refusal;
use crate::process::services::Services;
use crate::process::state::lock_service;
use crate::reclaim::copy_score::CopyScore;
use crate::reclaim::shortage::Shortage;
use crate::reclaim::staging::Staging;
use crate::syscalls::vfork_proxy;
use ebb_sys::fault::FaultFd;
use ebb_sys::memory_file::MemoryFile;
use ebb_sys::pagemap::PageMapFile;
use ebb_sys::{memory, secret, thread};
use ebb_tree::Member;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Takes the process under management.
pub(super) fn adopt(
    member: &'static Member,
    swap_space: &'static SwapSpace,
    forked: bool,
) -> Result<&'static Process, String> {
    if !forked {
        // As long as nothing of it can be out; a forked child has the answer from its parent.
        CHECKING.store(std::env::var_os("EBB_CHECK").is_some(), SeqCst);
    }
    if forked {
        // Not locked yet, though all else of them was inherited.
        secret::relock();
    }
    let fault = FaultFd::open().map_err(|e| e.to_string())?;
    let pagemap =
        PageMapFile::open().map_err(|e| format!("cannot open /proc/self/pagemap: {e}"))?;
    let memory = MemoryFile::open().map_err(|e| format!("cannot open /proc/self/mem: {e}"))?;
    let cpus = thread::allowed_cpus();
    let process = Process {
        fault,
        pagemap,
        memory,
        member,
        swap: &swap_space.swap,
        swap_space,
        services: Services::new(&cpus),
        gate: Mutex::new(()),
        forked: AtomicBool::new(false),
        costs: Costs::new(),
        shortage: Shortage::default(),
        keeping: CopyScore::new(),
        behind: AtomicBool::new(false),
        system_refused: AtomicBool::new(false),
        has_sent_userfaultfd: AtomicBool::new(false),
        refusal: Refusal::of(swap_space.devices.faults()),
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
    // Before the first fault can come.
    if let Err(e) = process.services.start(service::run) {
        process.fail(&format!(
            "cannot start a thread to serve page faults: {e}; raise `ulimit -u`"
        ));
    }
    process.entrust();
    let mut state = lock_service();
    state.staging = Some(Staging::new(base, count));
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
        state.charge.begins_with(pages as i64);
    }
    // What is there now is as old as now, not as the machine.
    state.queue.now_ms = now_ms();
    // A fork that needs no pager takes this lock too: none comes between these looks.
    process
        .forked
        .store(forked || fork_stage::before_paging(), SeqCst);
    if forked || fork_stage::before_paging() && member.has_relatives() {
        state.sharing.begins();
    }
    vfork_proxy::paging_begins(&mut state);
    process.register_all(&mut state);
    process.measure(&mut state);
    process.share_budget(&mut state);
    process.services.compete(CpuContention::new().look());
    // Published under the lock: the hooks see it together with the registered ranges.
    let process = Process::publish(Box::new(process));
    drop(state);
    Ok(process)
}

impl Process {
    /// Sees to it that the supervisor has our userfaultfd too: [`Member::entrust`].
    pub(super) fn entrust(&self) {
        if !self.has_sent_userfaultfd.load(SeqCst) {
            let went = self.member.entrust(&self.fault);
            self.has_sent_userfaultfd.store(went, SeqCst);
        }
    }
}
