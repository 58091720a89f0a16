//! io_uring: a ring that drops no memory.
//!
//! `IORING_OP_MADVISE` is a memory call that nobody sees: the kernel makes it from the ring. Pages that are
//! out would come back with what they held before they were dropped. So a ring that is made through libc's
//! `syscall` refuses that one operation, with EACCES in its completion. The kernel's own restrictions see to
//! that: the ring is made disabled, restricted to all other operations that this kernel has, and enabled.
//!
//! Not restricted: a ring that the program makes disabled, as it may have restrictions of its own, which can be given
//! once; and one that is made without libc, as by liburing. See docs/decisions/0001-memory-calls-behind-libc.md.

use core::ffi::c_long;

use ebb_sys::{raw, stack};

/// `struct io_uring_params`.
#[repr(C)]
pub struct Parameters {
    entries: [u32; 2],
    flags: u32,
    rest: [u32; 27],
}
const _: () = assert!(size_of::<Parameters>() == 120);

const SETUP_DISABLED: u32 = 1 << 6;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;

const REGISTER_PROBE: u32 = 8;
const REGISTER_RESTRICTIONS: u32 = 11;
const REGISTER_ENABLE: u32 = 12;
/// The ring is named by its index among those that the thread registered.
const BY_INDEX: u32 = 1 << 31;

const OP_MADVISE: u8 = 25;

/// `struct io_uring_restriction`: what is allowed.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Restriction {
    kind: u16,
    what: u8,
    reserved: [u8; 13],
}
const _: () = assert!(size_of::<Restriction>() == 16);

const REGISTER_OP: u16 = 0;
const SQE_OP: u16 = 1;
const SQE_FLAGS_ALLOWED: u16 = 2;

/// `struct io_uring_probe`, without what it says of each operation.
#[repr(C)]
#[derive(Default)]
struct Probe {
    last_op: u8,
    ops: u8,
    reserved: [u16; 7],
}

/// More operations, and ways to register, than any kernel has by now.
const MOST: usize = 128;
const WAYS: usize = 64;

/// `io_uring_setup(2)`, its result as the kernel gives it.
///
/// # Safety
/// That of the system call.
pub unsafe fn setup(entries: c_long, parameters: *mut Parameters) -> c_long {
    // SAFETY: the caller answers for the call; the kernel has read the parameters where it finds no entries.
    unsafe {
        let call = move |entries: c_long| {
            let args = [entries, parameters as c_long, 0, 0, 0, 0];
            raw::call(libc::SYS_io_uring_setup, args)
        };
        // A ring of no entries there cannot be. Any other error comes before the parameters are looked at.
        if call(0) != -c_long::from(libc::EINVAL) || (*parameters).flags & SETUP_DISABLED != 0 {
            return call(entries);
        }
        let flags = (*parameters).flags;
        (*parameters).flags = flags | SETUP_DISABLED;
        let ring = call(entries);
        (*parameters).flags &= !SETUP_DISABLED;
        if ring < 0 {
            return ring;
        }
        let named = if flags & SETUP_REGISTERED_FD_ONLY != 0 {
            BY_INDEX
        } else {
            0
        };
        stack::borrow(move || {
            restrict(ring, named);
            register(ring, REGISTER_ENABLE | named, 0, 0);
        });
        ring
    }
}

/// Allows a ring all that this kernel knows but `OP_MADVISE`. Where the kernel refuses, it may all.
///
/// # Safety
/// `ring` is a ring of the caller's.
unsafe fn restrict(ring: c_long, named: u32) {
    let mut probe = Probe::default();
    // SAFETY: the kernel fills what is there: room for no operation.
    let probed = unsafe { register(ring, REGISTER_PROBE | named, (&raw mut probe) as c_long, 0) };
    if probed < 0 {
        return;
    }
    let mut allowed = [Restriction::default(); 1 + MOST + WAYS];
    let mut count = 0;
    let mut allow = |kind, what| {
        let reserved = [0; 13];
        allowed[count] = Restriction {
            kind,
            what,
            reserved,
        };
        count += 1;
    };
    allow(SQE_FLAGS_ALLOWED, u8::MAX);
    for op in (0..=probe.last_op.min(MOST as u8 - 1)).filter(|&op| op != OP_MADVISE) {
        allow(SQE_OP, op);
    }
    for op in 0..WAYS as u8 {
        allow(REGISTER_OP, op);
    }
    let operations = count - WAYS;
    // How many ways to register there are nothing tells: all are refused where one is unknown.
    for known in (1..=WAYS).rev() {
        let (at, count) = (allowed.as_ptr() as c_long, (operations + known) as c_long);
        // SAFETY: the kernel reads so many of them.
        let done = unsafe { register(ring, REGISTER_RESTRICTIONS | named, at, count) };
        if done != -c_long::from(libc::EINVAL) {
            return;
        }
    }
}

/// # Safety
/// That of the system call.
unsafe fn register(ring: c_long, what: u32, at: c_long, count: c_long) -> c_long {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::call(
            libc::SYS_io_uring_register,
            [ring, what.into(), at, count, 0, 0],
        )
    }
}
