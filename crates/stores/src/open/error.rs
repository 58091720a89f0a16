//! Why a swap device cannot be opened, in messages that say the next step.

use rustix::io::Errno;

/// Why a swap device cannot be used. Each message says the next step.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory on the way is missing.
    #[error("swap {path}: there is no directory {parent}: create it or give another path")]
    NoParent {
        /// The path as given.
        path: String,
        /// The missing directory.
        parent: String,
    },
    /// Nothing is there.
    #[error(
        "swap {path}: there is no such file or directory: make it (\"mkdir {path}\" for a private file in it, \"fallocate -l SIZE {path}\" for a file that stays), or give another path"
    )]
    Missing {
        /// The path as given.
        path: String,
    },
    /// The name of a device that is not there.
    #[error("swap {path}: there is no such device: look for its name, or give a path outside /dev")]
    NoDevice {
        /// The path as given.
        path: String,
    },
    /// Not permitted.
    #[error(
        "swap {path}: no permission to {doing}: give a path that you can read and write, or the permission"
    )]
    Denied {
        /// The path as given.
        path: String,
        /// The attempt.
        doing: &'static str,
    },
    /// On a file system mounted read-only.
    #[error("swap {path}: its file system is read-only: give a path on another one")]
    ReadOnly {
        /// The path as given.
        path: String,
    },
    /// Neither file nor block device.
    #[error(
        "swap {path} is a {kind}: give a swap file, a block device, or a directory for a private file"
    )]
    Kind {
        /// The path as given.
        path: String,
        /// The kind.
        kind: &'static str,
    },
    /// The kernel swaps to it.
    #[error("swap {path} is in use as the kernel's swap: run \"swapoff {path}\" or give another")]
    ActiveSwap {
        /// The path as given.
        path: String,
    },
    /// Mounted, or held by another driver.
    #[error("swap {path} is mounted or in use by the system: unmount it or give another")]
    Mounted {
        /// The path as given.
        path: String,
    },
    /// This run uses it.
    #[error(
        "swap {path} is a device of this run already: leave it out; for another prio or size take it away first, by `ebb swap off`"
    )]
    Own {
        /// The path as given.
        path: String,
    },
    /// Another run uses it.
    #[error("swap {path} is in use by another run of ebb: give each run a device of its own")]
    Taken {
        /// The path as given.
        path: String,
    },
    /// A loop device lies over the file.
    #[error(
        "swap {path} is in use by loop device {device}: give {device}, or run \"losetup --detach {device}\" if nothing uses that"
    )]
    UnderLoop {
        /// The path as given.
        path: String,
        /// The loop device.
        device: String,
    },
    /// A program holds a lock on it.
    #[error(
        "swap {path} is in use: a program has locked it, as a virtual machine does with its disk: end that, or give another"
    )]
    Locked {
        /// The path as given.
        path: String,
    },
    /// It holds data.
    #[error(
        "swap {path} holds {found}, and ebb would overwrite it: give another path; or if all of that can go, add \",overwrite=yes\", or run \"wipefs --all {path}\" and then \"mkswap {path}\""
    )]
    HoldsData {
        /// The path as given.
        path: String,
        /// The data.
        found: String,
    },
    /// There was no time to see whether it is empty.
    #[error(
        "swap {path} has no swap header, and to see whether all of its {size} are empty takes too long now: if it is, run \"mkswap {path}\" first, or add \",overwrite=yes\""
    )]
    NotSeen {
        /// The path as given.
        path: String,
        /// The size of what there is to see.
        size: String,
    },
    /// Its swap header is of no format that there is.
    #[error(
        "swap {path} has a swap header of version {version}, and ebb knows version 1 alone: give another, or run \"mkswap {path}\" if what is there can go"
    )]
    HeaderVersion {
        /// The path as given.
        path: String,
        /// The version.
        version: u32,
    },
    /// Its swap header lists bad pages.
    #[error(
        "swap {path} has {pages} bad pages by its swap header, and ebb passes over none: give another device, or run \"mkswap {path}\" without -c if they are good"
    )]
    BadPages {
        /// The path as given.
        path: String,
        /// The number of bad pages.
        pages: u32,
    },
    /// Asked for more than its swap header names.
    #[error(
        "swap {path} has a swap header for {size}, less than the {asked} asked for: run \"mkswap {path}\" for one for all of it, or ask for less"
    )]
    HeaderNamesLess {
        /// The path as given.
        path: String,
        /// The bytes that it names.
        size: String,
        /// The size asked for.
        asked: String,
    },
    /// It holds the image of a suspended system.
    #[error("swap {path} holds the image of a hibernated system: resume or discard that first")]
    Hibernated {
        /// The path as given.
        path: String,
    },
    /// Less than a cluster.
    #[error("swap {path} has {size}, too little: give it, or another, at least {least}")]
    TooSmall {
        /// The path as given.
        path: String,
        /// The size.
        size: String,
        /// The least size.
        least: String,
    },
    /// Asked for more than there is.
    #[error("swap {path} has {size}, less than the {asked} asked for: enlarge it or ask for less")]
    LessThanAsked {
        /// The path as given.
        path: String,
        /// The size.
        size: String,
        /// The size asked for.
        asked: String,
    },
    /// Asked for more than one device can have.
    #[error(
        "swap {path}: {asked} were asked for, and one device has at most {most}: ask for that, and give the rest as further files or devices"
    )]
    TooLarge {
        /// The path as given.
        path: String,
        /// The size asked for.
        asked: String,
        /// The largest.
        most: String,
    },
    /// The file system or the limits of the process do not allow a file that large.
    #[error(
        "swap {path}: a file of {asked} is more than the file system or \"ulimit -f\" allows: ask for less"
    )]
    FileLimit {
        /// The path as given.
        path: String,
        /// The size asked for.
        asked: String,
    },
    /// The limits of the process allow no file that is large enough.
    #[error(
        "swap {path}: \"ulimit -f\" allows files of {limit}, and a swap file needs at least {least}: raise it, give a block device, or use --swap none"
    )]
    FilesLimited {
        /// The path as given.
        path: String,
        /// The largest file.
        limit: String,
        /// The least size.
        least: String,
    },
    /// The directory is there, and in no other one.
    #[error("swap {path}: its directory has been removed: give a path in another one")]
    Removed {
        /// The path as given.
        path: String,
    },
    /// The machine has no such memory node.
    #[error(
        "swap {path}: there is no memory node {node} here, only {nodes}: give one that there is, or leave node=N out"
    )]
    NoNode {
        /// The path as given.
        path: String,
        /// The node asked for.
        node: u16,
        /// The nodes here.
        nodes: String,
    },
    /// The limit of open files is reached.
    #[error("swap {path}: no more files can be opened: raise `ulimit -n`, or name fewer devices")]
    Descriptors {
        /// The path as given.
        path: String,
    },
    /// No directory for the default file.
    #[error(
        "no directory can hold a swap file ({tried}): name one with --swap PATH, or use --swap none"
    )]
    NoDirectory {
        /// Each directory and what was wrong with it.
        tried: String,
    },
    /// Anything else the system says.
    #[error("swap {path}: cannot {doing}: {errno}: give another path, or use --swap none")]
    System {
        /// The path as given.
        path: String,
        /// The attempt.
        doing: &'static str,
        /// The system's answer.
        errno: Errno,
    },
}

/// The error number of a standard error; EIO if it has none.
pub fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The error for `errno` of the system, met while `doing` something with `path`.
pub fn system(path: &str, doing: &'static str, errno: Errno) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::ACCESS | Errno::PERM => OpenError::Denied { path, doing },
        Errno::ROFS => OpenError::ReadOnly { path },
        Errno::MFILE | Errno::NFILE => OpenError::Descriptors { path },
        errno => OpenError::System { path, doing, errno },
    }
}
