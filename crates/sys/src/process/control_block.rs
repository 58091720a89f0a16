//! Control blocks for tasks that libc does not know: what lies around the thread pointer.
//!
//! A task of ours calls libc (system calls, `errno`). libc finds its thread-locals at fixed distances below
//! the thread pointer, and its own record of the thread above it. libc makes such blocks only together with
//! threads of the program's thread group, with locks held that a fork may leave behind. So they are made
//! here, from the block of the calling thread. The layout is fixed by the x86-64 psABI ("variant II") and
//! by glibc's public header of a control block.
//!
//! Protocol: [`Template::take`] looks around once, when the library is loaded and no other thread runs.
//! [`Template::write`] fills a block, without a system call and without a lock.
//!
//! Not here: thread-locals of other libraries than libc and this one. They have addresses in the block, and
//! nobody uses them there.

use crate::kernel::raw;
use crate::memory::page_up;
use std::ffi::{CStr, c_long};

/// Bytes above the thread pointer: more than glibc's `struct pthread`, whose length no header says. With what is
/// below, and the table of modules, a block mostly takes one page.
const ABOVE: usize = 3072;
/// The least alignment of a control block in libc.
const LEAST_ALIGN: usize = 64;
/// Modules with thread-locals of which a block has the initial values: libc, and the one this is in.
const IMAGES: usize = 2;
/// Pointers to the tables of `<ctype.h>`, which libc sets for each thread as it starts.
const TABLES: usize = 3;

/// Where a word of the header lies, from the thread pointer.
mod header {
    /// The thread pointer itself, twice.
    pub const SELF: [usize; 2] = [0x00, 0x10];
    /// The table of the modules' blocks.
    pub const TABLE: usize = 0x08;
    /// Whether libc has to expect other threads.
    pub const THREADS: usize = 0x18;
    /// The canary of functions with protected stacks, and the key that mangles pointers of `setjmp`.
    pub const GUARDS: [usize; 2] = [0x28, 0x30];
}

/// The initial values of a module's thread-locals.
#[derive(Clone, Copy, Default)]
struct Image {
    /// The place where they belong, below the thread pointer.
    below: usize,
    from: usize,
    bytes: usize,
}

/// The parts that all blocks have in common.
#[derive(Clone, Copy)]
pub struct Template {
    /// Bytes below the thread pointer.
    below: usize,
    images: [Image; IMAGES],
    /// A word's distance below the thread pointer, and its value.
    tables: [(usize, usize); TABLES],
    guards: [usize; 2],
    /// The `struct rseq` of a thread: its distance from the thread pointer and its registered length;
    /// length 0: libc registers none.
    rseq: (isize, usize),
    /// Entries of the table of modules.
    modules: usize,
}

impl Template {
    /// Looks at the calling thread and at what is loaded. None where the layout is not the one expected:
    /// then no task of ours can be started.
    // Beside the library's constructor, which calls it in every process.
    #[unsafe(link_section = ".text.startup")]
    pub fn take() -> Option<Self> {
        let mut found = Found {
            pointer: thread_pointer(),
            // SAFETY: libc answers the address of this thread's.
            errno: unsafe { libc::__errno_location() } as usize,
            code: Template::take as fn() -> Option<Template> as usize,
            images: [Image::default(); IMAGES],
            seen: [false; IMAGES],
            modules: 0,
            align: LEAST_ALIGN,
        };
        // SAFETY: the callback gets the structure that it is given here.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        let rseq = rseq();
        if !found.seen[0] {
            return None;
        }
        let lowest = |image: &Image| image.below;
        let below = found.images.iter().map(lowest).max()?;
        let below = below.max((-rseq.0).max(0) as usize);
        let word = |at: usize| {
            // SAFETY: a word of this thread's own header.
            unsafe { (found.pointer.wrapping_add(at) as *const usize).read() }
        };
        if header::SELF.iter().any(|at| word(*at) != found.pointer) {
            return None;
        }
        Some(Self {
            below: below.next_multiple_of(found.align),
            images: found.images,
            tables: tables(found.pointer),
            guards: header::GUARDS.map(word),
            rseq,
            modules: found.modules,
        })
    }

    /// Bytes that a block takes, whole pages.
    pub fn bytes(&self) -> usize {
        page_up(self.below + ABOVE + (self.modules + 2) * size_of::<Entry>())
    }

    /// Makes a block at `start`; its thread pointer.
    ///
    /// # Safety
    /// The bytes of a block from there on, aligned to a page, are the caller's alone; they are zero, or
    /// were a block.
    pub unsafe fn write(&self, start: usize) -> usize {
        let pointer = start + self.below;
        // SAFETY: all of it lies in the block, at distances that were found in a block of libc's.
        unsafe {
            for image in self.images.iter().filter(|image| image.bytes > 0) {
                let to = (pointer - image.below) as *mut u8;
                to.copy_from_nonoverlapping(image.from as *const u8, image.bytes);
            }
            for (below, value) in self.tables.iter().filter(|(below, _)| *below > 0) {
                ((pointer - below) as *mut usize).write(*value);
            }
            let set = |at: usize, value: usize| ((pointer + at) as *mut usize).write(value);
            header::SELF.iter().for_each(|at| set(*at, pointer));
            (0..2).for_each(|i| set(header::GUARDS[i], self.guards[i]));
            set(header::THREADS, 1);
            set(header::TABLE, self.write_table(pointer));
        }
        pointer
    }

    /// The table of the modules' blocks behind the block; where it is to be target to.
    ///
    /// # Safety
    /// As for `write`.
    unsafe fn write_table(&self, pointer: usize) -> usize {
        /// No block: who asks for it allocates one.
        const NONE: usize = usize::MAX;
        /// Above every change of what is loaded, so that none makes libc look at this table.
        const GENERATION: usize = usize::MAX / 2;
        let table = (pointer + ABOVE) as *mut Entry;
        // SAFETY: behind the header, with room for so many.
        unsafe {
            table.write(Entry(self.modules, 0));
            table.add(1).write(Entry(GENERATION, 0));
            (0..self.modules).for_each(|n| table.add(2 + n).write(Entry(NONE, 0)));
            table.add(1) as usize
        }
    }

    /// On a new task: registers its restartable sequences where libc does so for its threads, as
    /// `sched_getcpu` reads the processor there.
    pub fn register_rseq(&self) {
        const SIGNATURE: c_long = 0x5305_3053;
        const UNINITIALIZED: i32 = -1;
        let (offset, bytes) = self.rseq;
        if bytes == 0 {
            return;
        }
        // SAFETY: the area is in this task's block, and no registration names it.
        unsafe {
            let area = thread_pointer().wrapping_add_signed(offset) as *mut i32;
            // The first words: on which processor the sequence started, and which this is.
            area.write_volatile(0);
            area.add(1).write_volatile(UNINITIALIZED);
            let args = [area as c_long, bytes as c_long, 0, SIGNATURE, 0, 0];
            raw::call(libc::SYS_rseq, args);
        }
    }
}

/// An entry of libc's table of modules: an address, and what to free with it.
#[repr(C)]
struct Entry(usize, usize);

struct Found {
    pointer: usize,
    errno: usize,
    code: usize,
    images: [Image; IMAGES],
    seen: [bool; IMAGES],
    modules: usize,
    /// The least alignment of the thread pointer.
    align: usize,
}

// Beside the library's constructor, which calls it in every process.
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn look(
    module: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: both are as `take` and libc pass them.
    let (module, found) = unsafe { (&*module, &mut *found.cast::<Found>()) };
    found.modules = found.modules.max(module.dlpi_tls_modid);
    // SAFETY: libc's table of so many headers.
    let headers = unsafe { std::slice::from_raw_parts(module.dlpi_phdr, module.dlpi_phnum.into()) };
    let Some(local) = headers.iter().find(|h| h.p_type == libc::PT_TLS) else {
        return 0;
    };
    found.align = found.align.max(local.p_align as usize);
    let data = module.dlpi_tls_data as usize;
    // In the static block, below the thread pointer; else it is allocated when it is used.
    if data == 0 || data >= found.pointer {
        return 0;
    }
    let has_errno = (data..data + local.p_memsz as usize).contains(&found.errno);
    let has_code = headers.iter().any(|h| {
        let start = module.dlpi_addr.wrapping_add(h.p_vaddr) as usize;
        h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&found.code)
    });
    for (n, is) in [has_errno, has_code].into_iter().enumerate() {
        if is {
            found.seen[n] = true;
            found.images[n] = Image {
                below: found.pointer - data,
                from: module.dlpi_addr.wrapping_add(local.p_vaddr) as usize,
                bytes: local.p_filesz as usize,
            };
        }
    }
    0
}

/// Distance from the thread pointer and registered length of a thread's `struct rseq`.
fn rseq() -> (isize, usize) {
    /// The first version of the structure, which kernels take in any case.
    const LENGTH: usize = 32;
    // SAFETY: a lookup by name.
    let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (offset, size) = (find(c"__rseq_offset"), find(c"__rseq_size"));
    if offset.is_null() || size.is_null() {
        return (0, 0);
    }
    // SAFETY: libc's constants, of these types.
    unsafe {
        match size.cast::<libc::c_uint>().read() {
            0 => (0, 0),
            _ => (offset.cast::<isize>().read(), LENGTH),
        }
    }
}

/// The pointers to libc's tables of characters, as the calling thread has them now.
fn tables(pointer: usize) -> [(usize, usize); TABLES] {
    unsafe extern "C" {
        fn __ctype_b_loc() -> *const usize;
        fn __ctype_tolower_loc() -> *const usize;
        fn __ctype_toupper_loc() -> *const usize;
    }
    // SAFETY: functions without arguments, which answer where this thread has a word.
    let all = unsafe {
        [
            __ctype_b_loc(),
            __ctype_tolower_loc(),
            __ctype_toupper_loc(),
        ]
    };
    // SAFETY: as above.
    all.map(|at| (pointer.saturating_sub(at as usize), unsafe { at.read() }))
}

/// This thread's thread pointer.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the word at the thread pointer, which the ABI has point to itself.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}
