//! Names of libraries that glibc's loader finds and musl's does not.
//!
//! `LD_PRELOAD` reaches every program further down a tree, through programs that do not load us. musl's
//! loader reads it too: it would map a library for glibc, miss names in it, and end the program. But it
//! passes over a library that is not there. glibc's loader replaces `$LIB` in such a name by the directory
//! of libraries below `/`, like `lib64`; musl's leaves it as it stands. So a name that begins with
//! [`FOR_GLIBC`] is the file's for the one, and no file's for the other.
//!
//! Not here: who is given the variable (`UnmanagedReason::withholds`).

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The top directory, to glibc's loader alone. More steps up than any such directory is deep: at the top
/// they lead nowhere.
pub const FOR_GLIBC: &str = "/$LIB/../../../../../../../..";

/// An absolute path as glibc's loader alone understands it; `None` where that would not find it either,
/// as there is no directory of libraries below `/` (NixOS).
pub fn for_glibc(path: &Path) -> Option<OsString> {
    let name = prefixed(path.as_os_str());
    (path.is_absolute() && finds(&prefixed(own_libc()?))).then(|| OsString::from_vec(name))
}

/// The part that the loader replaces, with the slash before.
pub const TOKEN: &str = "/$LIB";

/// Whether a name in `LD_PRELOAD` or `LD_LIBRARY_PATH` is one of those.
pub fn is_for_glibc(name: &[u8]) -> bool {
    name.starts_with(FOR_GLIBC.as_bytes())
}

/// The file that the loader takes for a name: none where that depends on its search path.
pub fn file_of(name: &[u8]) -> Option<&[u8]> {
    let file = name.strip_prefix(FOR_GLIBC.as_bytes()).unwrap_or(name);
    file.starts_with(b"/").then_some(file)
}

fn prefixed(path: &OsStr) -> Vec<u8> {
    [FOR_GLIBC.as_bytes(), path.as_bytes()].concat()
}

/// The C library of this process.
fn own_libc() -> Option<&'static OsStr> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let of_libc = libc::gnu_get_libc_version as *const libc::c_void;
    // SAFETY: an address in libc, which stays loaded, and so does its name.
    let file = unsafe {
        if libc::dladdr(of_libc, info.as_mut_ptr()) == 0 {
            return None;
        }
        CStr::from_ptr(info.assume_init().dli_fname)
    };
    Some(OsStr::from_bytes(file.to_bytes()))
}

/// Whether the loader finds a file by this name, which is loaded already: nothing is loaded by it.
fn finds(name: &[u8]) -> bool {
    let Ok(name) = CString::new(name) else {
        return false;
    };
    // SAFETY: a string; with NOLOAD no constructor runs. The library's count goes up by one and down
    // again.
    unsafe {
        let found = libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        !found.is_null() && libc::dlclose(found) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_finds_a_file_by_the_name_for_glibc_and_the_kernel_does_not() {
        let libc = Path::new(own_libc().expect("libc has a name"));
        let name = for_glibc(libc).expect("this system has a directory of libraries");
        assert!(is_for_glibc(name.as_bytes()));
        assert!(finds(name.as_bytes()));
        assert!(!Path::new(&name).exists() && libc.exists());
        assert!(!finds(b"/$LIB/../../../../../../../../no/such/libc.so.6"));
        assert_eq!(for_glibc(Path::new("relative.so")), None);
    }
}
