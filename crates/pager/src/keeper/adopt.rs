//! A process comes under management: all that its pager needs is made, and what is there registered.

use crate::devices::swap_space::SwapSpace;
use crate::eviction::reclaimer::Reclaimer;
use crate::fault::fault_service::FaultService;
use crate::keeper::cpu_contention::CpuContention;
use crate::keeper::thread::Keeper;
use crate::map::page_map::{UNIT, UNIT_BYTES};
use crate::pager::Pager;
use crate::process::context::Context;
use crate::reclaim::recorder::Recorder;
use crate::reclaim::staging::Staging;
use ebb_sys::Errno;
use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl<K: Kernel> Pager<K> {
    /// Takes the process under management.
    pub fn adopt(
        &'static self,
        member: &'static Member,
        swap_space: &'static SwapSpace,
        forked: bool,
    ) -> Result<Keeper<K>, String> {
        if !forked {
            // As long as nothing of it can be out; a forked child has the answer from its parent.
            let check = self.kernel.setting(c"EBB_CHECK");
            let auditing = check.is_some();
            let checking = check.is_some_and(|how| how.as_c_str() != c"end");
            self.lifecycle.check_for_tests(checking, auditing);
        }
        if !self.kernel.has_user(member.user()) && !member.serves_other_users() {
            return Err(
                "it has become another user, whose children cannot be served without CAP_SYS_PTRACE \
                 and /dev/userfaultfd; start `ebb run` as that user"
                    .into(),
            );
        }
        if forked || !self.lifecycle.has_descriptors() {
            self.open_descriptors(member)?;
        }
        let context = Context::new(self.base(), member, swap_space);
        let faults = FaultService::new(Reclaimer::new(context));
        let keeper = Keeper::new(Box::leak(Box::new(faults)));
        let process = keeper.faults();
        let staging = keeper.make_staging()?;
        // Before the first fault can come.
        if let Err(e) = process.services.start(self.lifecycle.service_entry()) {
            process.fail(&format!(
                "cannot start a thread to serve page faults: {e}; raise `ulimit -u`"
            ));
        }
        keeper.send_userfaultfd();
        let mut state = self.lock_service();
        state.pages.begin_paging(staging, self.now_ms());
        if !forked && let Some(directory) = self.kernel.setting(c"EBB_RECORD") {
            let directory = Path::new(OsStr::from_bytes(directory.to_bytes()));
            let process = self.kernel.program();
            state.pages.record(Recorder::begin(directory, process)?);
        }
        if forked {
            // Its charge was copied from its parent's.
            member.start_paging(0);
        } else {
            // Charged at once, so that nobody takes the room it is in while its pages are counted.
            let pages = self.kernel.resident_anonymous_pages().unwrap_or(0);
            member.start_paging(pages);
            state.charge.begins_with(pages as i64);
        }
        // A fork that needs no pager takes this lock too: none comes between these looks.
        let before_paging = self.fork.was_before_paging();
        if forked || before_paging {
            process.joins_family();
        }
        if forked || before_paging && member.has_relatives() {
            self.shared_pages.begin(&mut state.protection);
        }
        self.vfork_calls.paging_begins(&mut state);
        process.register_all(&mut state);
        process.measure(&mut state);
        keeper.share_budget(&mut state);
        let crowded = CpuContention::new(&self.kernel).sample(&self.kernel);
        process.services.compete(crowded);
        // Published under the lock: the hooks see it together with the registered ranges.
        self.publish(process);
        drop(state);
        Ok(keeper)
    }
}

impl<K: Kernel> Keeper<K> {
    /// The staging area; a forked child makes one of its own. The limit is what others leave, this process among them
    /// until it charges for itself. Where the system promises no more memory than it has (`vm.overcommit_memory=2`), or
    /// the program has a limit of addresses or of data, a smaller one will do: the program is to have the rest.
    fn make_staging(&self) -> Result<Staging, String> {
        const LEAST: usize = 256;
        let is_limited = self.kernel.has_limited_memory();
        let mut count = match is_limited {
            true => LEAST,
            false => (self.member.budget() as usize / UNIT / 4).clamp(LEAST, 32768),
        };
        let base = loop {
            match self.kernel.reserve_alone(count * UNIT_BYTES) {
                Ok(base) => break base,
                Err(Errno(libc::ENOMEM)) if count > LEAST => count = LEAST.max(count / 2),
                Err(error) if is_limited => {
                    return Err(format!(
                        "its limit of addresses or of data leaves no room for the staging area ({error}); raise \
                         `ulimit -v` and `ulimit -d` by 250 MiB"
                    ));
                }
                Err(error) => {
                    return Err(format!("no addresses for the staging area: {error}"));
                }
            }
        };
        let bytes = count * UNIT_BYTES;
        self.kernel
            .register(base, bytes)
            .map_err(|e| format!("cannot register the staging area: {e}"))?;
        Ok(Staging::new(base, count))
    }
}
