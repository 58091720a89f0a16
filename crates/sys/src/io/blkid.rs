//! Signatures on a file or block device, as libblkid finds them: file systems, volume groups, RAID members
//! (also at the ends of devices), encrypted volumes and partition tables.
//!
//! The library is looked for when it is wanted, and need not be there: nothing is linked with it. The
//! caller decides what a signature means.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// A signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// `ext4`, `swap`, `linux_raid_member`, or a kind of partition table, like `gpt`.
    pub kind: String,
    /// The purpose.
    pub usage: Usage,
}

/// The purpose of the data that a signature marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// A file system.
    FileSystem,
    /// A part of something larger: RAID, volume group.
    Member,
    /// Encrypted data.
    Encrypted,
    /// A partition table.
    Partitions,
    /// Anything else, as swap.
    Other,
}

/// Why nothing can be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// There is no libblkid here.
    NoLibrary,
    /// It could not look.
    Failed,
}

type Probe = NonNull<c_void>;

/// The functions of the library, all there.
#[derive(Clone, Copy)]
struct Library {
    new: unsafe extern "C" fn() -> Option<Probe>,
    free: unsafe extern "C" fn(Probe),
    set_device: unsafe extern "C" fn(Probe, c_int, i64, i64) -> c_int,
    superblocks: unsafe extern "C" fn(Probe, c_int) -> c_int,
    superblocks_flags: unsafe extern "C" fn(Probe, c_int) -> c_int,
    partitions: unsafe extern "C" fn(Probe, c_int) -> c_int,
    partitions_flags: unsafe extern "C" fn(Probe, c_int) -> c_int,
    next: unsafe extern "C" fn(Probe) -> c_int,
    value: unsafe extern "C" fn(Probe, *const c_char, *mut *const c_char, *mut usize) -> c_int,
}

/// More than any medium has; the library is not trusted to end.
const MOST: usize = 32;

/// All signatures of what is open.
///
/// # Errors
/// There is no library to ask, or it cannot read.
pub fn signatures(fd: impl AsFd) -> Result<Vec<Signature>, Unknown> {
    /// BLKID_SUBLKS_TYPE and _USAGE.
    const NAMES: c_int = 1 << 5 | 1 << 7;
    /// BLKID_PARTS_FORCE_GPT: the copy at the end alone, too.
    const LONE_COPIES: c_int = 1 << 1;
    let library = Library::load().ok_or(Unknown::NoLibrary)?;
    // SAFETY: the functions are those of libblkid's header; so for all calls below. The probe is freed once,
    // after its last use, and the descriptor outlives it.
    unsafe {
        let probe = (library.new)().ok_or(Unknown::Failed)?;
        let ready = (library.set_device)(probe, fd.as_fd().as_raw_fd(), 0, 0) == 0
            && (library.superblocks)(probe, 1) == 0
            && (library.superblocks_flags)(probe, NAMES) == 0
            && (library.partitions)(probe, 1) == 0
            && (library.partitions_flags)(probe, LONE_COPIES) == 0;
        let mut found = Vec::new();
        let mut answer = if ready { 0 } else { -1 };
        while answer == 0 && found.len() < MOST {
            answer = (library.next)(probe);
            if answer == 0 {
                found.extend(library.signature(probe));
            }
        }
        (library.free)(probe);
        if answer < 0 {
            return Err(Unknown::Failed);
        }
        Ok(found)
    }
}

/// Whether there is a library to ask.
pub fn is_there() -> bool {
    Library::load().is_some()
}

impl Library {
    /// It stays loaded.
    fn load() -> Option<Self> {
        // SAFETY: a library of the system, whose constructors do nothing that could not be done here.
        let handle = unsafe {
            NonNull::new(libc::dlopen(
                c"libblkid.so.1".as_ptr(),
                libc::RTLD_NOW | libc::RTLD_LOCAL,
            ))?
        };
        // SAFETY: each is a function of that type, by libblkid's header, since version 2.18.
        unsafe {
            Some(Self {
                new: function(handle, c"blkid_new_probe")?,
                free: function(handle, c"blkid_free_probe")?,
                set_device: function(handle, c"blkid_probe_set_device")?,
                superblocks: function(handle, c"blkid_probe_enable_superblocks")?,
                superblocks_flags: function(handle, c"blkid_probe_set_superblocks_flags")?,
                partitions: function(handle, c"blkid_probe_enable_partitions")?,
                partitions_flags: function(handle, c"blkid_probe_set_partitions_flags")?,
                next: function(handle, c"blkid_do_probe")?,
                value: function(handle, c"blkid_probe_lookup_value")?,
            })
        }
    }

    /// The one that the probe has just found; none if it has no name.
    ///
    /// # Safety
    /// The probe is the library's.
    unsafe fn signature(&self, probe: Probe) -> Option<Signature> {
        // SAFETY: by the caller's contract.
        let value = |name| unsafe { self.text(probe, name) };
        if let Some(kind) = value(c"PTTYPE") {
            return Some(Signature {
                kind,
                usage: Usage::Partitions,
            });
        }
        let usage = match value(c"USAGE").as_deref() {
            Some("filesystem") => Usage::FileSystem,
            Some("raid") => Usage::Member,
            Some("crypto") => Usage::Encrypted,
            _ => Usage::Other,
        };
        let kind = value(c"TYPE")?;
        Some(Signature { kind, usage })
    }

    /// # Safety
    /// The probe is the library's.
    unsafe fn text(&self, probe: Probe, name: &CStr) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: by the caller's contract; the text is a string of the probe's, and is copied at once.
        unsafe {
            let found = (self.value)(probe, name.as_ptr(), &mut text, std::ptr::null_mut()) == 0;
            (found && !text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

/// # Safety
/// `library` is a handle of dlopen, and what it has by that name is an `F`, a pointer to a function.
unsafe fn function<F: Copy>(library: NonNull<c_void>, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: by the caller's contract; the sizes are the same.
    unsafe {
        let found = NonNull::new(libc::dlsym(library.as_ptr(), name.as_ptr()))?;
        Some(std::mem::transmute_copy(&found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn the_content_of_a_file_is_named() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        if !is_there() {
            assert_eq!(signatures(&file), Err(Unknown::NoLibrary));
            println!("skipped: libblkid is not installed");
            return;
        }
        assert_eq!(signatures(&file), Ok(Vec::new()));
        // A page of swap header, and what a volume group writes to its second sector.
        file.seek(SeekFrom::Start(4086)).unwrap();
        file.write_all(b"SWAPSPACE2").unwrap();
        file.seek(SeekFrom::Start(1024)).unwrap();
        file.write_all(&[1, 0, 0, 0, 255, 15, 0, 0]).unwrap();
        let swap = Signature {
            kind: "swap".into(),
            usage: Usage::Other,
        };
        assert_eq!(signatures(&file), Ok(vec![swap.clone()]));
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(&[0x0d, 0xd0, 0x01, 0xc0]).unwrap();
        let all = signatures(&file).unwrap();
        let vmfs = Signature {
            kind: "VMFS_volume_member".into(),
            usage: Usage::Member,
        };
        assert!(all.contains(&swap) && all.contains(&vmfs), "{all:?}");
    }
}
