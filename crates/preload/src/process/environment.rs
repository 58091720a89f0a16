//! The environment that a program is started with: it must not lose ebbtide.
//!
//! The constructor remembers how this library came into the process: its place in `LD_PRELOAD`, in `LD_LIBRARY_PATH`
//! where that names it, and the variables that the library reads. Each exec checks the environment it is given, and
//! where something is missing passes a copy with it put back. A value that differs stays: another `ebb run` inside this
//! one set it. Other variables named `EBB_*` stay away where the program leaves them out: EBB_MEMORY is for `ebb run`
//! alone. A program whose loader could not bear this library ([`crate::process::exec_target`]) gets the copy without it.
//!
//! Everything after the constructor is fit for the child of a vfork: no lock, no heap. The copy is built on the stack
//! or, where it does not fit, in a map of its own. That map is given back if the exec fails, and stays with the
//! parent if a vforked child succeeds.
//!
//! Not repaired: programs that `system` and `popen` start, which take the process's own environment; static programs,
//! which no variable can reach.

use crate::process::exec_target::{self, Target};
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use ebb_sys::elf::{ProgramPath, UnmanagedReason};
use ebb_sys::loader;

/// A null-ended array of strings.
pub type Strings = *const *const c_char;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY_PATH: &[u8] = b"LD_LIBRARY_PATH=";
/// Variables that the library reads in each program of a tree, with their `=`.
const OWN: [&[u8]; 5] = [
    b"EBB_CONTROL=",
    b"EBB_REQUIRE_MANAGED=",
    b"EBB_CHECK=",
    b"EBB_FAULTS=",
    b"EBB_RECORD=",
];
const LIBRARY: &[u8] = b"libebb_preload.so";

/// A variable that is a list, and what of ours belongs into it.
struct List {
    /// The name, with its `=`.
    name: &'static [u8],
    entry: &'static [u8],
    /// The variable with that entry alone, for an environment without it. Ends in a null.
    alone: &'static [u8],
    /// Flag: a list has that entry, or one that does as well.
    has: fn(list: &[u8], entry: &[u8]) -> bool,
}

impl List {
    // Beside the library's constructor, which calls it in every process.
    #[unsafe(link_section = ".text.startup")]
    fn new(name: &'static [u8], entry: &[u8], has: fn(&[u8], &[u8]) -> bool) -> Self {
        let mut alone = Vec::with_capacity(name.len() + entry.len() + 1);
        for part in [name, entry, b"\0"] {
            alone.extend_from_slice(part);
        }
        let alone: &[u8] = alone.leak();
        let entry = &alone[name.len()..alone.len() - 1];
        Self {
            name,
            entry,
            alone,
            has,
        }
    }

    /// The value of `variable`, if it is this one and lacks the entry.
    fn lacking<'a>(&self, variable: &'a CStr) -> Option<&'a [u8]> {
        let list = variable.to_bytes().strip_prefix(self.name)?;
        (!(self.has)(list, self.entry)).then_some(list)
    }
}

/// How ebbtide came into this process, for ever.
struct Remembered {
    /// The lists, that of preloaded libraries first.
    lists: Vec<List>,
    /// The library's file; none where loaders look for it.
    file: Option<&'static CStr>,
    /// Flag: other loaders than glibc's do not find the library by this name.
    for_glibc: bool,
    /// `NAME=value` of the variables of our own.
    variables: Vec<&'static CStr>,
}

/// Null until the constructor ran, and for ever where the library was not preloaded by the
/// variable: then there is nothing to put back.
static REMEMBERED: AtomicPtr<Remembered> = AtomicPtr::new(ptr::null_mut());

/// # Safety
/// `envp` is an environment; no other thread runs.
pub unsafe fn remember(envp: Strings) {
    // SAFETY: by the caller's contract.
    let all = unsafe { Environment::of(envp) };
    let Some(library) = all
        .iter()
        .filter_map(|entry| entry.to_bytes().strip_prefix(PRELOAD))
        .find_map(own_library)
    else {
        return;
    };
    let mut lists = vec![List::new(PRELOAD, library, |list, _| {
        own_library(list).is_some()
    })];
    if !library.contains(&b'/')
        && let Some(directory) = own_directory(all)
    {
        lists.push(List::new(LIBRARY_PATH, directory, |list, directory| {
            let mut directories = list.split(|byte| matches!(byte, b':' | b';'));
            directories.any(|other| other == directory)
        }));
    }
    let mut variables = Vec::<&CStr>::with_capacity(OWN.len());
    for entry in all.iter() {
        if OWN.contains(&name(entry.to_bytes())) {
            variables.push(Box::leak(Box::<CStr>::from(entry)));
        }
    }
    let alone = lists[0].alone;
    let named = loader::file_of(&alone[PRELOAD.len()..]);
    let remembered = Box::new(Remembered {
        file: named.and_then(|file| CStr::from_bytes_with_nul(file).ok()),
        for_glibc: lists.iter().any(|list| loader::is_for_glibc(list.entry)),
        lists,
        variables,
    });
    REMEMBERED.store(Box::into_raw(remembered), Ordering::Release);
}

fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' '))
}

fn is_own(entry: &[u8]) -> bool {
    entry.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY)
}

/// The entry of a preload list that names this library.
fn own_library(list: &[u8]) -> Option<&[u8]> {
    entries(list).find(|entry| is_own(entry))
}

/// Where this library was found: the directory as the search path names it, before the loader put the
/// system's own for `$LIB`.
fn own_directory(all: Environment) -> Option<&'static [u8]> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address in this library, whose name stays as long as it is loaded, which is for ever.
    let file = unsafe {
        if libc::dladdr(LIBRARY.as_ptr().cast(), info.as_mut_ptr()) == 0 {
            return None;
        }
        CStr::from_ptr(info.assume_init().dli_fname).to_bytes()
    };
    let slash = file.iter().rposition(|byte| *byte == b'/')?;
    let found = &file[..slash];
    let named = all
        .iter()
        .filter_map(|entry| entry.to_bytes().strip_prefix(LIBRARY_PATH))
        .flat_map(|list| list.split(|byte| matches!(byte, b':' | b';')))
        .filter(|directory| loader::is_for_glibc(directory))
        .find(|directory| found.ends_with(&directory[loader::TOKEN.len()..]));
    Some(named.unwrap_or(found))
}

/// The name of a variable with its `=`, or all of a malformed entry.
pub fn name(entry: &[u8]) -> &[u8] {
    match entry.iter().position(|byte| *byte == b'=') {
        Some(at) => &entry[..=at],
        None => entry,
    }
}

/// A null-ended array of strings, or null, which Linux takes for an empty one.
#[derive(Clone, Copy)]
pub struct Environment(Strings);

impl Environment {
    /// # Safety
    /// `strings` is such an array and outlives what is borrowed from it.
    pub unsafe fn of(strings: Strings) -> Self {
        Self(strings)
    }

    pub fn iter(self) -> impl Iterator<Item = &'static CStr> {
        let mut at = self.0;
        core::iter::from_fn(move || {
            // SAFETY: `at` has not passed the null, by the contract of `of`.
            unsafe {
                if at.is_null() || (*at).is_null() {
                    return None;
                }
                let entry = CStr::from_ptr(*at);
                at = at.add(1);
                Some(entry)
            }
        })
    }

    /// Whether it has a variable of that name, which ends with a `=`.
    fn has(self, name: &[u8]) -> bool {
        self.iter().any(|entry| entry.to_bytes().starts_with(name))
    }
}

/// The change of a variable in the copy.
enum Change<'a> {
    Stays,
    /// It begins with the list's own entry; this is the rest.
    Gets(&'a List, &'a [u8]),
    /// These entries are without the library.
    Loses(&'a [u8]),
    /// The library was all that it had.
    Goes,
}

/// The needs of the copy of an environment.
struct Repair {
    /// Flag: it is for a program that must not get the library.
    withheld: bool,
    /// Entries of the given environment.
    entries: usize,
    /// Variables to add.
    missing: usize,
    /// Bytes of rewritten lists with their nulls; 0 where none is.
    rewritten: usize,
}

const WORD: usize = size_of::<*const c_char>();

impl Repair {
    /// `None` where the environment is as it should be.
    fn of(given: Environment, remembered: &Remembered, withheld: bool) -> Option<Self> {
        let mut repair = Self {
            withheld,
            entries: 0,
            missing: remembered.missing(given, withheld).count(),
            rewritten: 0,
        };
        let mut same = repair.missing == 0;
        for entry in given.iter() {
            repair.entries += 1;
            repair.rewritten += match remembered.change(entry, withheld) {
                Change::Stays => continue,
                Change::Gets(list, old) => list.alone.len() + 1 + old.len(),
                Change::Loses(_) => entry.to_bytes_with_nul().len(),
                Change::Goes => 0,
            };
            same = false;
        }
        (!same).then_some(repair)
    }

    /// Words that [`write`](Self::write) needs.
    fn words(&self) -> usize {
        self.entries + self.missing + 1 + self.rewritten.div_ceil(WORD)
    }

    /// Writes the repaired array, and the rewritten strings behind it.
    fn write(&self, given: Environment, remembered: &Remembered, space: &mut [*const c_char]) {
        let (array, text) = space.split_at_mut(self.entries + self.missing + 1);
        let mut text = Text(text.as_mut_ptr().cast());
        let kept = given.iter().filter_map(|entry| {
            // SAFETY: behind the array are `self.rewritten` bytes, no less than what is put for all entries.
            unsafe {
                let start = text.0;
                match remembered.change(entry, self.withheld) {
                    Change::Stays => return Some(entry.as_ptr()),
                    Change::Goes => return None,
                    Change::Gets(list, old) => {
                        // An empty place in a list of directories would be the current one.
                        let blank: &[u8] = if old.is_empty() { b"" } else { b":" };
                        for part in [list.name, list.entry, blank, old] {
                            text.put(part);
                        }
                    }
                    Change::Loses(old) => {
                        text.put(PRELOAD);
                        let others = entries(old).filter(|entry| !is_own(entry));
                        for (n, other) in others.enumerate() {
                            text.put(if n == 0 { b"" } else { b":" });
                            text.put(other);
                        }
                    }
                }
                text.put(b"\0");
                Some(start.cast_const().cast())
            }
        });
        let all = kept
            .chain(remembered.missing(given, self.withheld))
            .chain([ptr::null()]);
        for (slot, entry) in array.iter_mut().zip(all) {
            *slot = entry;
        }
    }
}

/// Where the next bytes go.
struct Text(*mut u8);

impl Text {
    /// # Safety
    /// There is room for the bytes.
    unsafe fn put(&mut self, part: &[u8]) {
        // SAFETY: by the caller's contract; the part lies in another environment.
        unsafe {
            self.0.copy_from_nonoverlapping(part.as_ptr(), part.len());
            self.0 = self.0.add(part.len());
        }
    }
}

impl Remembered {
    /// Whether the library has to be kept from a program.
    fn withholds(&self, target: &Target) -> bool {
        matches!(target, Target::Unmanaged(_, reason) if reason.withholds(self.for_glibc))
    }

    fn change<'a>(&'a self, variable: &'a CStr, withheld: bool) -> Change<'a> {
        if withheld && let Some(list) = variable.to_bytes().strip_prefix(PRELOAD) {
            return match entries(list).all(is_own) {
                true => Change::Goes,
                false if own_library(list).is_some() => Change::Loses(list),
                false => Change::Stays,
            };
        }
        let lacking = |list: &'a List| Some(Change::Gets(list, list.lacking(variable)?));
        self.lists.iter().find_map(lacking).unwrap_or(Change::Stays)
    }

    /// Variables that an environment has not at all.
    fn missing(&self, given: Environment, withheld: bool) -> impl Iterator<Item = *const c_char> {
        let own = self
            .variables
            .iter()
            .map(|own| (name(own.to_bytes()), own.as_ptr()));
        let lists = self.lists[usize::from(withheld)..]
            .iter()
            .map(|list| (list.name, list.alone.as_ptr().cast()));
        own.chain(lists)
            .filter(move |(name, _)| !given.has(name))
            .map(|(_, variable)| variable)
    }
}

/// Words of an environment that is repaired on the stack; 4 KiB, as a thread's stack may be
/// small.
const STACK_WORDS: usize = 512;

/// Runs `call` with an environment that has all it needs for that program, and nothing that it cannot bear.
///
/// # Safety
/// `envp` is an environment.
pub unsafe fn with_environment(
    target: &Target,
    envp: Strings,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: by the caller's contract.
    let given = unsafe { Environment::of(envp) };
    // SAFETY: null or leaked by `remember`, whole since the store.
    let Some(remembered) = (unsafe { REMEMBERED.load(Ordering::Acquire).as_ref() }) else {
        return call(envp);
    };
    let Some(repair) = Repair::of(given, remembered, remembered.withholds(target)) else {
        return call(envp);
    };
    match repair.words() <= STACK_WORDS {
        true => with_words_on_stack(&repair, given, remembered, call),
        false => with_words_in_map(&repair, given, remembered, call),
    }
}

/// The same, where an environment is repaired that has few variables.
#[cold]
#[inline(never)] // Whose environment is whole needs no room for one.
fn with_words_on_stack(
    repair: &Repair,
    given: Environment,
    remembered: &Remembered,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let mut space = [ptr::null(); STACK_WORDS];
    repair.write(given, remembered, &mut space);
    call(space.as_ptr())
}

/// The same, where it has many.
#[cold]
#[inline(never)]
fn with_words_in_map(
    repair: &Repair,
    given: Environment,
    remembered: &Remembered,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let bytes = repair.words() * WORD;
    // SAFETY: a fresh map by the system call itself: neither libc's lock nor our hooks.
    let map = unsafe {
        ebb_sys::memory::mmap(
            0,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let map = match map {
        Ok(map) => map,
        Err(error) => {
            // ENOMEM, which every function of the family may answer.
            // SAFETY: the location is this thread's.
            unsafe { *libc::__errno_location() = error.0 };
            return -1;
        }
    };
    let words = map as *mut *const c_char;
    // SAFETY: the map is zeroed, aligned, of this many words, and ours alone.
    let space = unsafe { core::slice::from_raw_parts_mut(words, repair.words()) };
    repair.write(given, remembered, space);
    let result = call(words);
    // SAFETY: the call is over and kept nothing of the map. munmap of a map of ours cannot
    // fail, so errno stands.
    let _ = unsafe { ebb_sys::memory::munmap(map, bytes) };
    result
}

/// The target, which loads no library that is not where its loader looks: after `chroot`, or for another user.
pub fn reachable(target: Target) -> Target {
    // SAFETY: null or leaked by `remember`, whole since the store.
    let remembered = unsafe { REMEMBERED.load(Ordering::Acquire).as_ref() };
    match (&target, remembered.and_then(|remembered| remembered.file)) {
        (Target::Managed, Some(file)) if !exec_target::can_be_read(file) => {
            Target::Unmanaged(ProgramPath::of(b"a program"), UnmanagedReason::Unreachable)
        }
        _ => target,
    }
}
