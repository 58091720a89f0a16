//! Pages that the kernel goes on referring to after a call: data that a pipe, a socket or an io_uring has still to
//! send, and buffers that a device may still write.
//!
//! Where a page is *pinned*, it refuses to be moved, and stays; a look at how many are says whether
//! memory may be dropped (`capture`), which asks nobody.
//!
//! A mere *reference* stops nothing: the page leaves the program, and the other side has it to itself, with its
//! content, as under the kernel's own swap. That holds because crate::process::pager::Process;
use crate::process::pager::Process;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Process<K> {
    /// Whether a device may write pages of this process at any time.
    pub fn any_pinned(&self) -> bool {
        self.kernel.pinned_pages() != Some(0)
    }
}
