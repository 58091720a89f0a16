//! Calls that the keeper makes for a child that shares this memory.
#![allow(clippy::missing_safety_doc)] // Says "Requires:".

use crate::pager::Pager;
use crate::process::outcome::Outcome;
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::pin::Found;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Pager<K> {
    /// In the keeper: makes the call of a child that shares this memory, as any thread would its own, but for
    /// waits: `outcome::RETRY`. Requires: as the system call.
    pub(crate) unsafe fn execute(&'static self, call: &mut MemoryCall) -> Outcome<usize> {
        // SAFETY: the child answers for the system call.
        unsafe {
            match *call {
                MemoryCall::Map {
                    addr,
                    len,
                    prot,
                    flags,
                    filled,
                } => self.map_here(addr, len, prot, flags, (-1, 0), filled),
                MemoryCall::Unmap { addr, len } => self.unmap_locked(addr, len).map(|()| 0),
                MemoryCall::Protect { addr, len, prot } => {
                    self.protect_here(addr, len, prot).map(|()| 0)
                }
                MemoryCall::Remap {
                    old,
                    old_len,
                    new_len,
                    flags,
                    new_addr,
                    ref mut done,
                } => self.remap_here((old, old_len), new_len, flags, new_addr, done),
                MemoryCall::Advise { addr, len, advice } => {
                    self.advise_locked(addr, len, advice).map(|()| 0)
                }
                MemoryCall::Break { addr } => self.break_here(addr),
                MemoryCall::Exclude { start, end } => {
                    let found = self.pin_locked(start, end, |p| p.for_good = true)?;
                    Ok(usize::from(found == Found::Paged))
                }
            }
        }
    }
}
