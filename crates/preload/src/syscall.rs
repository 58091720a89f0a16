//! `syscall(2)`: system calls that copy the address space, made by number, are forks like any other. Those that map
//! memory are memory calls like any other (SBCL makes all of its so), and execs are execs. One that makes an io_uring is
//! looked after ([`io_uring`]). Memory that the kernel is to remember and store to later is not paged.
//!
//! Everything else goes to another library's function of this name, or to the kernel where there is none. torsocks has
//! one, so no connection is made past it. It is not asked for children that go on beside their callers, nor by this library.
//!
//! System calls made without libc are out of reach. A child of such a one has no managed memory once its parent
//! pages, and gets SIGSEGV where it touches it.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use ebb_sys::{memory as memory_of, raw};

use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::keeping_errno;
use ebb_pager::hooks;

use crate::memory::{calls, io_uring};
use crate::process::{exec, fork};

/// libc declares it variadic and reads six arguments in any case; the calling convention passes them as if they were
/// declared.
///
/// It has no frame where a child goes on beside its caller. The child returns to the address on top of its stack, or
/// must not find its return overwritten.
///
/// # Safety
/// That of the system call.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {clone}",
        "je 2f",
        "cmp rdi, {clone3}",
        "je 2f",
        "cmp rdi, {vfork}",
        "jne {all_others}",
        "2:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 56",
        "call {goes_on_beside}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -56",
        "test al, al",
        "jz {all_others}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "mov rdi, rax",
        "cmp rax, -4095",
        "jae {answer}",
        "ret",
        ".cfi_endproc",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        vfork = const libc::SYS_vfork,
        goes_on_beside = sym goes_on_beside,
        all_others = sym all_others,
        answer = sym answer,
    )
}

/// Every other call, with the arguments and the return address as they are.
#[unsafe(naked)]
unsafe extern "C" fn all_others() {
    core::arch::naked_asm!(
        "cmp byte ptr [rip + {of_another}], 0",
        "je {with_frame}",
        // Whether the caller is code of this library.
        "lea r10, [rip + {code_starts}]",
        "lea r11, [rip + {code_ends}]",
        "mov rax, [rsp]",
        "sub r11, r10",
        "sub rax, r10",
        "cmp rax, r11",
        "jb {with_frame}",
        "jmp {to_another}",
        with_frame = sym with_frame,
        to_another = sym to_another,
        of_another = sym OF_ANOTHER,
        code_starts = sym __ehdr_start,
        code_ends = sym _etext,
    )
}

unsafe extern "C" {
    // Of the linker: where this library begins, and where its code ends.
    static __ehdr_start: u8;
    static _etext: u8;
}

type Syscall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

// SAFETY: the type is that of the manual page; what follows the number is passed as if it were declared.
static NEXT: DlsymNext<Syscall> = unsafe { DlsymNext::new(c"syscall") };

/// Flag: that is another library's function.
static OF_ANOTHER: AtomicBool = AtomicBool::new(false);

pub fn resolve() {
    OF_ANOTHER.store(NEXT.of_another().is_some(), Ordering::Relaxed);
}

/// Whether a call makes a child that uses this memory or another stack; whose memory is so used is prepared for that.
extern "C" fn goes_on_beside(number: c_long, a: c_long, b: c_long, _: c_long, d: c_long) -> bool {
    let (flags, stack, child_tid) = match number {
        libc::SYS_clone => (a, b, d),
        libc::SYS_clone3 => match words_of_clone3(a, b) {
            // The kernel says so.
            None => return false,
            Some([flags, _, child_tid, _, _, stack, ..]) => (flags, stack, child_tid),
        },
        _ => return true,
    };
    let beside = !copies(flags, stack);
    if beside {
        // The flags are in the lower half.
        fork::prepare_sharing(flags as c_int, child_tid as usize);
    }
    beside
}

/// Such a call, by the kernel.
///
/// # Safety
/// That of the system call.
unsafe extern "C" fn with_frame(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller answers for the call, here and below.
    unsafe { made(number, [a, b, c, d, e, f], None) }
}

/// Such a call, by another library's function.
///
/// # Safety
/// That of the system call.
unsafe extern "C" fn to_another(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: as above.
    unsafe { made(number, [a, b, c, d, e, f], NEXT.get()) }
}

/// The answer to such a call: what is not made here is made by another library's function, or by the kernel.
///
/// # Safety
/// That of the system call.
#[inline(always)]
unsafe fn made(number: c_long, args: [c_long; 6], of_another: Option<Syscall>) -> c_long {
    // SAFETY: as above.
    let elsewhere = || unsafe {
        match of_another {
            Some(next) => {
                let [a, b, c, d, e, f] = args;
                next(number, a, b, c, d, e, f)
            }
            None => answer(raw::call(number, args)),
        }
    };
    // SAFETY: as above.
    unsafe { own_part(number, args) }.unwrap_or_else(elsewhere)
}

/// The answer to a call that is made here.
///
/// # Safety
/// That of the system call.
unsafe fn own_part(number: c_long, args: [c_long; 6]) -> Option<c_long> {
    let [a, b, c, d, e, _] = args;
    // SAFETY: the caller answers for the call, here and below.
    if let Some(result) = unsafe { memory_call(number, args) } {
        return Some(result);
    }
    // SAFETY: as above.
    if let Some(result) = unsafe { exec_call(number, [a, b, c, d, e]) } {
        return Some(result);
    }
    if let Some((start, len)) = remembered(number, a as usize, b as usize) {
        // SAFETY: names the range only.
        keeping_errno(|| unsafe { hooks::exclude(start, len) });
    }
    // SAFETY: as above.
    let result = unsafe {
        if copies_memory(number, a, b) {
            fork::by_number(number, args)
        } else if number == libc::SYS_io_uring_setup && hooks::wanted() {
            io_uring::setup(a, ptr::with_exposed_provenance_mut(b as usize))
        } else {
            return None;
        }
    };
    Some(answer(result))
}

/// The kernel's answer as libc has it.
extern "C" fn answer(result: c_long) -> c_long {
    if (-4095..0).contains(&result) {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result
}

/// An exec, as libc's function makes it: its result, if it could not be made.
///
/// # Safety
/// That of the system call.
unsafe fn exec_call(number: c_long, [a, b, c, d, e]: [c_long; 5]) -> Option<c_long> {
    let at = |address: c_long| ptr::with_exposed_provenance::<c_char>(address as usize);
    let strings = |address: c_long| at(address).cast::<*const c_char>();
    // SAFETY: the caller answers for the call.
    unsafe {
        match number {
            libc::SYS_execve => Some(exec::execve(at(a), strings(b), strings(c)).into()),
            libc::SYS_execveat => {
                let (dir, flags) = (a as c_int, e as c_int);
                Some(exec::execveat(dir, at(b), strings(c), strings(d), flags).into())
            }
            _ => None,
        }
    }
}

/// Start and length of memory that the kernel remembers. It stores to it, or looks at it, as the thread ends and
/// whenever that was interrupted. Faults of the thread are served no more then, or it may hold a lock of ours.
fn remembered(number: c_long, a: usize, b: usize) -> Option<(usize, usize)> {
    /// The kernel takes no longer structure.
    const MOST: usize = 4096;
    let len = match number {
        libc::SYS_set_tid_address => size_of::<c_int>(),
        libc::SYS_set_robust_list | libc::SYS_rseq => b,
        _ => return None,
    };
    (a != 0 && len <= MOST).then_some((a, len))
}

/// Does what libc's function of that name would, if it is one of memory.
///
/// # Safety
/// That of the system call.
unsafe fn memory_call(number: c_long, args: [c_long; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let at = |address: c_long| ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: the caller answers for the call.
    unsafe {
        Some(match number {
            libc::SYS_mmap => {
                let start = calls::mmap(at(a), b as usize, c as c_int, d as c_int, e as c_int, f);
                start.addr() as c_long
            }
            libc::SYS_mremap => {
                let start = calls::mremap(at(a), b as usize, c as usize, d as c_int, at(e));
                start.addr() as c_long
            }
            libc::SYS_brk => calls::set_break(a as usize) as c_long,
            libc::SYS_mlock => calls::mlock(at(a), b as usize).into(),
            libc::SYS_mlock2 => calls::mlock2(at(a), b as usize, c as c_int).into(),
            libc::SYS_munlock => calls::munlock(at(a), b as usize).into(),
            libc::SYS_mlockall => calls::mlockall(a as c_int).into(),
            libc::SYS_munlockall => calls::munlockall().into(),
            libc::SYS_munmap => calls::munmap(at(a), b as usize).into(),
            libc::SYS_mprotect => calls::mprotect(at(a), b as usize, c as c_int).into(),
            libc::SYS_pkey_mprotect => {
                calls::pkey_mprotect(at(a), b as usize, c as c_int, d as c_int).into()
            }
            libc::SYS_madvise => calls::madvise(at(a), b as usize, c as c_int).into(),
            libc::SYS_process_madvise => {
                let areas = at(b).cast_const().cast();
                calls::process_madvise(a as c_int, areas, c as usize, d as c_int, e as u32)
                    as c_long
            }
            libc::SYS_ioctl => {
                return calls::memory_ioctl(a as c_int, b as libc::c_ulong, at(c))
                    .map(c_long::from);
            }
            libc::SYS_prctl if calls::merges(a as c_int, b as libc::c_ulong) => 0,
            _ => return None,
        })
    }
}

/// The words of a structure of `clone3` as it was at first; None: the kernel refuses it.
fn words_of_clone3(at: c_long, len: c_long) -> Option<[c_long; 8]> {
    let mut words = [[0u8; size_of::<c_long>()]; 8];
    let bytes = words.as_flattened_mut();
    if (len as usize) < bytes.len() {
        return None;
    }
    memory_of::read_own(at as usize, bytes).ok()?;
    Some(words.map(c_long::from_ne_bytes))
}

/// Whether a call with these makes a process with a copy of this one's memory, which returns here as the caller does. On
/// another stack it could not return from our functions.
fn copies(flags: c_long, stack: c_long) -> bool {
    flags & libc::CLONE_VM as c_long == 0 && stack == 0
}

/// The same of a call by its number.
fn copies_memory(number: c_long, a: c_long, b: c_long) -> bool {
    match number {
        libc::SYS_fork => true,
        libc::SYS_clone => copies(a, b),
        libc::SYS_clone3 => {
            words_of_clone3(a, b).is_some_and(|[flags, _, _, _, _, stack, ..]| copies(flags, stack))
        }
        _ => false,
    }
}
