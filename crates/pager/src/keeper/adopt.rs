//! A process comes under management: all that its pager needs is made, and what is there registered.

use crate::budget::pool_split::Costs;
use crate::devices::swap_space::SwapSpace;
use crate::keeper::cpu_contention::CpuContention;
use crate::map::page_map::{UNIT, UNIT_BYTES};
use crate::process::pager::{Pager, Process};
use crate::process::refusal::Refusal;
use crate::process::services::Services;
use crate::reclaim::copy_score::CopyScore;
use crate::reclaim::shortage::Shortage;
use crate::reclaim::staging::Staging;
use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

impl<K: Kernel> Pager<K> {
    /// Takes the process under management.
    pub fn adopt(
        &'static self,
        member: &'static Member,
        swap_space: &'static SwapSpace,
        forked: bool,
    ) -> Result<&'static Process<K>, String> {
        if !forked {
            // As long as nothing of it can be out; a forked child has the answer from its parent.
            let check = std::env::var_os("EBB_CHECK");
            let lifecycle = &self.lifecycle;
            lifecycle.auditing.store(check.is_some(), SeqCst);
            lifecycle
                .checking
                .store(check.is_some_and(|how| how != "end"), SeqCst);
        }
        let process = self.make_process(member, swap_space)?;
        let staging = process.make_staging()?;
        // Before the first fault can come.
        if let Err(e) = process.services.start(self.lifecycle.service_entry()) {
            process.fail(&format!(
                "cannot start a thread to serve page faults: {e}; raise `ulimit -u`"
            ));
        }
        process.send_userfaultfd();
        let mut state = self.lock_service();
        let budget = member.budget() as usize;
        state.staging = Some(staging);
        state.parked.reserve(1024);
        state.queue.reserve(budget / UNIT * 2);
        if forked {
            // Its charge was copied from its parent's.
            member.start_paging(0);
        } else {
            // Charged at once, so that nobody takes the room it is in while its pages are counted.
            let pages = self.kernel.resident_anonymous_pages().unwrap_or(0);
            member.start_paging(pages);
            state.charge.begins_with(pages as i64);
        }
        // Pages that are there now are as old as now, not as the machine.
        state.queue.now_ms = self.now_ms();
        // A fork that needs no pager takes this lock too: none comes between these looks.
        let before_paging = self.fork.before_paging.load(SeqCst);
        process.forked.store(forked || before_paging, SeqCst);
        if forked || before_paging && member.has_relatives() {
            self.shared_pages.begin(&mut state.sharing);
        }
        self.vfork_calls.paging_begins(&mut state);
        process.register_all(&mut state);
        process.measure(&mut state);
        process.share_budget(&mut state);
        let crowded = CpuContention::new(&self.kernel).sample(&self.kernel);
        process.services.compete(crowded);
        // Published under the lock: the hooks see it together with the registered ranges.
        let process = self.publish(process);
        drop(state);
        Ok(process)
    }

    /// The part that the threads of a paging process share, without its staging area; nothing runs yet.
    fn make_process(
        &'static self,
        member: &'static Member,
        swap_space: &'static SwapSpace,
    ) -> Result<Box<Process<K>>, String> {
        self.kernel.open()?;
        let cpus = self.kernel.allowed_cpus();
        Ok(Box::new(Process {
            pager: self,
            kernel: &self.kernel,
            member,
            swap: &swap_space.swap,
            swap_space,
            services: Services::new(&self.kernel, &cpus),
            gate: Mutex::new(()),
            forked: AtomicBool::new(false),
            costs: Costs::new(),
            shortage: Shortage::default(),
            keeping: CopyScore::new(),
            behind: AtomicBool::new(false),
            system_refused: AtomicBool::new(false),
            has_sent_userfaultfd: AtomicBool::new(false),
            kept_executable: AtomicBool::new(false),
            refusal: Refusal::of(swap_space.devices.faults()),
        }))
    }
}

impl<K: Kernel> Process<K> {
    /// The staging area. The limit is what others leave, this process among them until it charges for itself.
    fn make_staging(&self) -> Result<Staging, String> {
        let count = (self.member.budget() as usize / UNIT / 4).clamp(256, 32768);
        let bytes = count * UNIT_BYTES;
        let base = self
            .kernel
            .reserve(bytes)
            .map_err(|e| format!("no addresses for the staging area: {e}"))?;
        self.kernel
            .register(base, bytes)
            .map_err(|e| format!("cannot register the staging area: {e}"))?;
        // SAFETY: advice that changes no content. A child makes a staging area of its own.
        let _ = unsafe { self.kernel.madvise(base, bytes, libc::MADV_DONTFORK) };
        Ok(Staging::new(base, count))
    }

    /// Sees to it that the supervisor has our userfaultfd too: [`Member::send_userfaultfd`].
    pub fn send_userfaultfd(&self) {
        if !self.has_sent_userfaultfd.load(SeqCst)
            && let Some(faults) = self.kernel.faults()
        {
            let went = self.member.send_userfaultfd(faults);
            self.has_sent_userfaultfd.store(went, SeqCst);
        }
    }
}
