//! A thread of the program that is to be cancelled goes through our calls: none is a point of cancellation.

use ebb_sys::elf::{ProgramKind, program_kind};
use ebb_sys::file::{Descriptor, write_standard_error};
use ebb_sys::{clock, proc};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

/// What threads of the program call on the way of `malloc`, `fork`, exec and `setuid`.
extern "C" fn calls(_: *mut c_void) -> *mut c_void {
    // SAFETY: the thread's own number. By default it is cancelled at the next point of cancellation.
    assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
    clock::sleep(Duration::from_millis(1));
    write_standard_error(b"");
    let pages = proc::resident_anonymous_pages();
    let running = proc::running_threads();
    let this = proc::Process::open(std::process::id()).map(drop);
    let exe = rustix::fs::open(c"/proc/self/exe", rustix::fs::OFlags::RDONLY, 0.into());
    let kind = exe.map(|exe| program_kind(Descriptor::from(exe)));
    let seen = pages.is_some() && running.is_some() && this.is_ok();
    let seen = seen && matches!(kind, Ok(Ok(ProgramKind::Managed)));
    usize::from(seen) as *mut c_void
}

#[test]
fn a_cancelled_thread_comes_through_calls_of_ours() {
    let (mut thread, mut answer) = (0, null_mut());
    // SAFETY: a thread that touches nothing of this one, and is waited for.
    unsafe {
        assert_eq!(
            libc::pthread_create(&mut thread, std::ptr::null(), calls, null_mut()),
            0
        );
        assert_eq!(libc::pthread_join(thread, &mut answer), 0);
    }
    assert_eq!(answer as usize, 1, "usize::MAX: it was cancelled");
}
