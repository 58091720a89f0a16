//! The division of this process's part of the budget between resident pages and pool (`pool_split` has the
//! arithmetic).

use crate::keeper::thread::Keeper;
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use ebb_tree::{Codec, PagesOfMember};

impl<K: Kernel> Keeper<K> {
    /// Moves the line between resident pages and pool, where pages can go to devices; and limits
    /// the pool accordingly, and as the user wants it.
    pub fn share_budget(&self, state: &mut State) {
        let budget = self.member.budget() as usize;
        if self.swap.is_newly_file_limited() {
            self.member.message(
                "the program may write no larger file (RLIMIT_FSIZE, `ulimit -f`): no more of its pages go there; they go \
                 to other swap devices, or stay in RAM, compressed; a block device for --swap has no such limit",
            );
        }
        state.pages.prune_refusals(self.base.now_ms());
        let devices = &self.swap_space.devices;
        let elsewhere = devices.all_stay(self.member)
            && self.swap_space.may_write(self.member)
            && devices.devices.has_room();
        let mut limit = budget;
        let mut direct = false;
        if elsewhere && self.member.config().codec != Codec::None {
            self.adjust_pool_split(state);
            direct = state.pool_split.is_none();
            // With what is free: what the pool gives up would else lower its limit further.
            let free = self.member.limit().saturating_sub(self.member.charged()) as usize;
            let charged = state.charge.charged().max(0) as usize + free;
            // Shared pages would be no more for the program if they went to devices.
            let shared = match self.member.has_relatives() {
                true => self.swap_space.generations.inherited(self.swap) as usize / PAGE_SIZE,
                false => 0,
            };
            let own = charged.min(budget).saturating_sub(shared);
            let refused = state.pages.refused();
            limit = (shared + state.pool_split.limit(budget, own, refused)).min(budget);
        }
        self.swap.set_direct(direct);
        self.swap
            .set_pages(self.swap.entries() + state.pages.map().resident());
        self.tell_pool(state);
        let staging = state.pages.staging();
        let staged = staging.staged_frames() + staging.unused_frames();
        self.member.report_pages(PagesOfMember {
            staging: staged as u64,
            unmanaged: state.charge.unmanaged(),
            swapped: state.pages.map().swapped() as u64,
        });
        self.swap_space.limit_pool(self.member, limit as u64);
    }

    fn adjust_pool_split(&self, state: &mut State) {
        let memory = self.swap.memory();
        let frames = (memory.pool_bytes as usize).div_ceil(PAGE_SIZE);
        // Of its data: emptied windows that it still holds say nothing of what others would hold.
        let data = (memory.pool_data_bytes as usize).div_ceil(PAGE_SIZE);
        let refused = state.pages.refused();
        let budget = (state.charge.charged().max(0) as usize).saturating_sub(refused);
        let pages = memory.pool_pages as usize;
        let density = state.pool_split.density(pages, data, budget);
        let resident = state.pages.map().resident();
        let staged = state.pages.staged_frames();
        state.offer.set_price(self.costs().price(density));
        state
            .pool_split
            .adjust((resident, staged), frames, density, budget, self.costs());
    }
}
