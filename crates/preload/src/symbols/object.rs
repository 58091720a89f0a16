//! Objects that libc's loader has loaded: the program and its libraries, with their tables of symbols.
//!
//! They are read as the loader left them. That needs no function of libc's but `dl_iterate_phdr`, and takes no lock
//! of `dlsym`'s: so `dlsym` itself can be found here. Tables of names are GNU's, without which libc builds none of its
//! own libraries; an object that has another kind alone seems to have no symbols.
//!
//! Not here: the order in which the loader looks objects through, and versions of symbols.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An object in memory.
#[derive(Clone, Copy)]
pub struct Object {
    /// The address that its own ones count from.
    base: usize,
    start: usize,
    end: usize,
    /// The dynamic section, or null.
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;

/// First and last address of libc, once looked up.
// On a page that the loader writes to in any case.
#[unsafe(link_section = ".data")]
static LIBC: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// libc itself.
#[unsafe(link_section = ".text.startup")]
pub fn libc_object() -> Option<Object> {
    let libc = Object::of(libc::gnu_get_libc_version as *const c_void)?;
    LIBC[0].store(libc.start, Relaxed);
    LIBC[1].store(libc.end, Relaxed);
    Some(libc)
}

/// Whether an address is in libc. Reads two words, once libc was looked up.
#[unsafe(link_section = ".text.startup")]
pub fn is_libcs(at: *const c_void) -> bool {
    if LIBC[1].load(Relaxed) == 0 {
        libc_object();
    }
    (LIBC[0].load(Relaxed)..LIBC[1].load(Relaxed)).contains(&(at as usize))
}

impl Object {
    /// The one that an address is in. Not by `dladdr`: that looks at all symbols of it.
    #[unsafe(link_section = ".text.startup")]
    pub fn of(at: *const c_void) -> Option<Self> {
        let mut search = Search {
            at: at as usize,
            found: None,
        };
        // SAFETY: the callback gets the structure that it is given here.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    }

    pub fn contains(&self, at: *const c_void) -> bool {
        (self.start..self.end).contains(&(at as usize))
    }

    /// The function that it defines by that name, or null.
    #[unsafe(link_section = ".text.startup")]
    pub fn function(&self, name: &CStr) -> *const c_void {
        // SAFETY: the object is loaded, and its tables are as its linker made them.
        let found = unsafe { self.tables().and_then(|tables| tables.defined(name)) };
        found.map_or(ptr::null(), |value| {
            ptr::with_exposed_provenance(self.base.wrapping_add(value))
        })
    }

    /// Whether it uses a symbol of that name which others define.
    pub fn asks_for(&self, name: &CStr) -> bool {
        // SAFETY: as above.
        unsafe { self.tables().is_some_and(|tables| tables.asks_for(name)) }
    }

    /// # Safety
    /// The object is loaded.
    #[unsafe(link_section = ".text.startup")]
    unsafe fn tables(&self) -> Option<Tables> {
        let (mut symbols, mut strings, mut hash) = (0, 0, 0);
        let mut entry = self.dynamic;
        if entry.is_null() {
            return None;
        }
        // SAFETY: the section ends with a null entry.
        unsafe {
            while (*entry).tag != DT_NULL {
                match (*entry).tag {
                    DT_SYMTAB => symbols = (*entry).value,
                    DT_STRTAB => strings = (*entry).value,
                    DT_GNU_HASH => hash = (*entry).value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        // The loader makes them addresses, but where the section may only be read.
        let at = |value: usize| match value {
            offset if offset < self.base => self.base + offset,
            address => address,
        };
        (hash != 0).then(|| Tables {
            symbols: ptr::with_exposed_provenance(at(symbols)),
            strings: ptr::with_exposed_provenance(at(strings)),
            hash: ptr::with_exposed_provenance(at(hash)),
        })
    }
}

/// The tables of an object's symbols.
struct Tables {
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    /// Four words, a filter, buckets, and the hashes of the symbols from the first that is defined on.
    hash: *const u32,
}

impl Tables {
    /// Whether a symbol of that name is not defined, but used.
    ///
    /// # Safety
    /// The tables are whole.
    unsafe fn asks_for(&self, name: &CStr) -> bool {
        // SAFETY: by the caller's contract; symbols before the first that has a hash are there without one.
        unsafe {
            let first = *self.hash.add(1) as usize;
            let symbols = core::slice::from_raw_parts(self.symbols, first);
            symbols.iter().any(|symbol| {
                symbol.st_shndx == 0
                    && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
            })
        }
    }

    /// The value of a symbol that is defined.
    ///
    /// # Safety
    /// The tables are whole.
    #[unsafe(link_section = ".text.startup")]
    unsafe fn defined(&self, name: &CStr) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
        });
        // SAFETY: by the caller's contract; each chain ends with an odd hash.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|word| *self.hash.add(word));
            let heads = self.hash.add(4 + 2 * filter as usize);
            let hashes = heads.add(buckets as usize);
            let mut index = *heads.add(hash.checked_rem(buckets)? as usize);
            if index == 0 {
                return None;
            }
            loop {
                let other = *hashes.add(index.checked_sub(first)? as usize);
                let symbol = &*self.symbols.add(index as usize);
                if other | 1 == hash | 1
                    && symbol.st_shndx != 0
                    && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
                {
                    return Some(symbol.st_value as usize);
                }
                if other & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }
}

struct Search {
    at: usize,
    found: Option<Object>,
}

// Beside the library's constructor, which calls it in every process.
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn look(
    module: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: both are as `Object::of` and libc pass them; libc's table has so many headers.
    let (module, search, headers) = unsafe {
        let headers = core::slice::from_raw_parts((*module).dlpi_phdr, (*module).dlpi_phnum.into());
        (&*module, &mut *search.cast::<Search>(), headers)
    };
    let base = module.dlpi_addr as usize;
    let at = |header: &libc::Elf64_Phdr| base.wrapping_add(header.p_vaddr as usize);
    let loaded = || {
        headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
    };
    let has = loaded().any(|header| search.at.wrapping_sub(at(header)) < header.p_memsz as usize);
    if has {
        let dynamic = headers
            .iter()
            .find(|header| header.p_type == libc::PT_DYNAMIC);
        search.found = Some(Object {
            base,
            start: loaded().map(at).min().unwrap_or(base),
            end: loaded()
                .map(|header| at(header) + header.p_memsz as usize)
                .max()
                .unwrap_or(base),
            dynamic: dynamic.map_or(ptr::null(), |header| {
                ptr::with_exposed_provenance(at(header))
            }),
        });
    }
    has.into()
}
