//! A process comes under management: all that its pager needs is made, and what is there registered.

use super::crowd::Crowd;
use super::{AUDITING, CHECKING, now_ms};
use crate::balance::Costs;
use crate::bays::Bays;
use crate::clean::Keeping;
use crate::embed::Embedded;
use crate::errand;
use crate::fork;
use crate::map::{UNIT, UNIT_BYTES};
use crate::place::Refusal;
use crate::process::Process;
use crate::service::Services;
use crate::shortage::Shortage;
use crate::state::lock_service;
use ebb_sys::memory_file::MemoryFile;
use ebb_sys::pagemap::PageMapFile;
use ebb_sys::userfaultfd::Userfaultfd;
use ebb_sys::{memory, proc, secret, thread};
use ebb_tree::Member;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Takes the process under management.
pub(super) fn adopt(
    member: &'static Member,
    embedded: &'static Embedded,
    forked: bool,
) -> Result<&'static Process, String> {
    if !forked {
        // As long as nothing of it can be out; a forked child has the answer from its parent.
        let check = std::env::var_os("EBB_CHECK");
        AUDITING.store(check.is_some(), SeqCst);
        CHECKING.store(check.is_some_and(|how| how != "end"), SeqCst);
    }
    if forked {
        // Not locked yet, though all else of them was inherited.
        secret::relock();
    }
    let fault = Userfaultfd::open().map_err(|e| e.to_string())?;
    let pagemap =
        PageMapFile::open().map_err(|e| format!("cannot open /proc/self/pagemap: {e}"))?;
    let memory = MemoryFile::open().map_err(|e| format!("cannot open /proc/self/mem: {e}"))?;
    let cpus = thread::allowed_cpus();
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
        is_entrusted: AtomicBool::new(false),
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
    // Before the first fault can come.
    if let Err(e) = process.services.start() {
        process.fail(&format!(
            "cannot start a thread to serve page faults: {e}; raise `ulimit -u`"
        ));
    }
    process.send_userfaultfd();
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
        let pages = proc::resident_anonymous_pages().unwrap_or(0);
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
    Ok(process)
}

impl Process {
    /// Sees to it that the supervisor has our userfaultfd too: [`Member::send_userfaultfd`].
    pub(super) fn send_userfaultfd(&self) {
        if !self.is_entrusted.load(SeqCst) {
            let went = self.member.send_userfaultfd(&self.fault);
            self.is_entrusted.store(went, SeqCst);
        }
    }
}
