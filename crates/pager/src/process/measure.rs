//! This process's use of the tree's budget, as the system has it.

use crate::budget::kernel_memory;
use crate::process::context::Context;
use crate::process::state::State;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Context<K> {
    /// Measures the anonymous memory of this process, and charges what is not managed, and what the kernel
    /// keeps for it. Whether that has changed.
    pub fn measure(&self, state: &mut State) -> bool {
        let Some(measured) = self.kernel.resident_anonymous_pages() else {
            return false;
        };
        state.count_tables(self.swap);
        let used = self.used(state);
        let tables = self.kernel.table_pages().unwrap_or(0);
        let ours = self.services.count() + 1;
        let kernel = kernel_memory::pages(ours, state.ranges.count(), tables);
        let has_changed = state
            .charge
            .record_measured(self.member, used, measured as i64, kernel);
        let stock = state.charge.stock();
        state.charge.settle(self.member, used, stock);
        has_changed
    }
}
