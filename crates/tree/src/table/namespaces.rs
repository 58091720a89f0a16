//! In which PID namespace the numbers of the table mean something: in the one where it was made, its home. Numbers that
//! processes of others write are marked ([`Named::Foreign`](super::Named)), and nobody believes them.

use super::Table;
use ebb_sys::proc;
use std::sync::atomic::Ordering::*;

impl Table {
    /// This process comes to the tree: by joining, or in a reserved slot. Before it is named
    /// anywhere. Whether it is at home here. One system call, and nothing is allocated.
    pub fn arrive(&self) -> bool {
        self.arrive_from(proc::pid_namespace().ok())
    }

    /// 0 in the table: not even its maker could tell.
    pub fn arrive_from(&self, namespace: Option<u64>) -> bool {
        let home = self.namespace.load(SeqCst);
        let is_home = home != 0 && namespace == Some(home);
        if !is_home {
            self.mixed.store(1, SeqCst);
        }
        is_home
    }

    /// Whether processes of several PID namespaces are, or were, in the tree.
    pub fn is_mixed(&self) -> bool {
        self.mixed.load(SeqCst) != 0
    }
}
