//! Pages that the kernel goes on referring to after a call: data that a pipe, a socket or an io_uring has still to
//! send, and buffers that a device may still write.
//!
//! Where a page is *pinned*, it refuses to be moved, and stays; a look at how many are says whether
//! memory may be dropped (`capture`), which asks nobody.
//!
//! A mere *reference* stops nothing: the page leaves the program, and the other side has it to itself, with its
//! content, as under the kernel's own swap. That holds because no other page is ever put into a frame than the one
//! that was moved there. When it is stored, the frame goes back to the system, which keeps it until nobody refers to
//! it any more (`staging`).
//!
//! What it does not do: keep a page in place that is only referred to and about to be written.

use crate::eviction::reclaimer::Reclaimer;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Reclaimer<K> {
    /// Whether a device may write pages of this process at any time.
    pub fn any_pinned(&self) -> bool {
        self.kernel.pinned_pages() != Some(0)
    }
}
