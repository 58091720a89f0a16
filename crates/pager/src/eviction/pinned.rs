//! Pages that the kernel goes on referring to after a call: what a pipe, a socket or an io_uring has
//! still to send, and what a device may still write.
//!
//! Where a page is *pinned*, it refuses to be moved, and stays; a look at how many are says whether
//! memory may be dropped (`capture`), which asks nobody.
//!
//! A mere *reference* stops nothing: the page leaves the program, and whoever refers to it has it to
//! itself, with what was in it, as under the kernel's own swap. That holds because nothing is ever put
//! into a frame but the page that was moved there: when it is stored, the frame goes back to the
//! system, which keeps it until nobody refers to it any more (`bays`).
//!
//! What it does not do: keep a page where it is that is referred to only and about to be written.

use ebb_sys::memory;

/// Whether a device may write pages of this process at any time.
pub fn any_pinned() -> bool {
    memory::pinned_pages() != Some(0)
}
