//! The layer of the keeper: [`Keeper`], a value of the keeper's thread.

use crate::fault::fault_service::FaultService;
use ebb_sys::paging::Kernel;
use std::cell::Cell;
use std::ops::Deref;

/// Does for a process that pages what need not happen inside a fault.
pub struct Keeper<K: Kernel> {
    faults: &'static FaultService<K>,
    /// Flag: the supervisor has a second descriptor of our userfaultfd.
    has_sent_userfaultfd: Cell<bool>,
}

impl<K: Kernel> Keeper<K> {
    /// For this service.
    pub fn new(faults: &'static FaultService<K>) -> Self {
        Self {
            faults,
            has_sent_userfaultfd: Cell::new(false),
        }
    }

    /// The service that it keeps.
    pub fn faults(&self) -> &'static FaultService<K> {
        self.faults
    }

    /// Sees to it that the supervisor has our userfaultfd too: [`Member::send_userfaultfd`](ebb_tree::Member).
    pub fn send_userfaultfd(&self) {
        if !self.has_sent_userfaultfd.get()
            && let Some(faults) = self.kernel.faults()
        {
            let went = self.member.send_userfaultfd(faults);
            self.has_sent_userfaultfd.set(went);
        }
    }
}

impl<K: Kernel> Deref for Keeper<K> {
    type Target = FaultService<K>;

    fn deref(&self) -> &FaultService<K> {
        self.faults
    }
}
