//! The checks that `ebb run` cannot do without: `/proc`, descriptors, a way to a userfaultfd, and its operations.

use super::check::{Check, Verdict};
use super::container::Container;
use super::kernel;
use ebb_sys::probe;
use ebb_sys::userfaultfd::{Access, Userfaultfd};
use std::fs::read_to_string;
use std::io;
use std::path::Path;

/// The checks, and the way to a userfaultfd.
pub fn required() -> (Vec<Check>, Option<Access>) {
    let mut checks = Vec::new();
    for check in [proc(), descriptors()] {
        if check.verdict == Verdict::Missing {
            // The other checks would fail for the same reason, and look as if more were missing.
            return (vec![check], None);
        }
        checks.push(check);
    }
    let syscall = Userfaultfd::open_by(Access::Syscall);
    let device = Userfaultfd::open_by(Access::DeviceFile);
    let access = match (&syscall, &device) {
        (Ok(_), _) => Some(Access::Syscall),
        (_, Ok(_)) => Some(Access::DeviceFile),
        _ => None,
    };
    let Some(access) = access else {
        let (syscall, device) = (syscall.unwrap_err(), device.unwrap_err());
        let machine = Machine::here(syscall.raw_os_error() == Some(libc::EPERM));
        let userfaultfd = no_userfaultfd(&syscall, &device, &machine);
        checks.push(userfaultfd);
        return (checks, None);
    };
    let shown = |result: &io::Result<_>| match result {
        Ok(_) => "permitted".to_string(),
        Err(error) => error.to_string(),
    };
    let userfaultfd = Check::ok(
        "userfaultfd",
        format!(
            "system call: {}; /dev/userfaultfd: {}",
            shown(&syscall),
            shown(&device)
        ),
    );
    checks.push(userfaultfd);
    let mut need = |name, result: io::Result<()>, since: &str| {
        checks.push(match result {
            Ok(()) => Check::ok(name, "works"),
            Err(error) => Check::not(
                name,
                Verdict::Missing,
                format!("{error} (kernel {})", kernel()),
                format!("run Linux {since} or newer"),
            ),
        });
    };
    need("move", probe::move_works(access), "6.12");
    need("poison", probe::poison_works(access), "6.6");
    need(
        "write-protection",
        probe::write_protection_works(access),
        "5.7",
    );
    checks.push(super::kernel_swap::kernel_swap());
    (checks, Some(access))
}

/// Descriptors of a small tree.
const ENOUGH: u64 = 256;

/// Facts of the machine on which the fix depends.
struct Machine {
    gvisor: bool,
    container: Option<Container>,
    user: String,
}

impl Machine {
    /// See [`Container::here`].
    fn here(refused: bool) -> Self {
        Self {
            gvisor: read_to_string("/proc/version").is_ok_and(|text| text.contains("gVisor")),
            container: Container::here(refused),
            user: user_name(rustix::process::getuid().as_raw()),
        }
    }
}

/// The user's name, as /etc/passwd has it; else the number, which commands take as well.
fn user_name(uid: u32) -> String {
    let all = read_to_string("/etc/passwd").unwrap_or_default();
    let of_user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    all.lines()
        .find_map(of_user)
        .unwrap_or_else(|| uid.to_string())
}

fn no_userfaultfd(syscall: &io::Error, device: &io::Error, machine: &Machine) -> Check {
    let user = &machine.user;
    let no_device = device.kind() == io::ErrorKind::NotFound;
    // A device that a container has, and its cgroup does not allow, is refused with EPERM.
    let closed = no_device || device.raw_os_error() == Some(libc::EPERM);
    let fix = if machine.gvisor {
        "gVisor has no userfaultfd: run the container with the runc runtime".into()
    } else if let Some(container) = machine.container.filter(|_| closed) {
        container.fix().into()
    } else if machine.container.is_some() && device.raw_os_error() == Some(libc::EACCES) {
        // The device there is a new node: with the mode and owner of the host's, and no ACL.
        "on the host: `chmod 666 /dev/userfaultfd`, for good a udev rule with MODE=\"0666\"; then start the container again, or run as its root".into()
    } else if syscall.raw_os_error() == Some(libc::ENOSYS) && no_device {
        "use a kernel built with CONFIG_USERFAULTFD".into()
    } else if no_device {
        "as root: `sysctl -w vm.unprivileged_userfaultfd=1`".to_string()
    } else {
        format!(
            "as root: `setfacl -m u:{user}:rw /dev/userfaultfd` (package acl) or `sysctl -w vm.unprivileged_userfaultfd=1`"
        )
    };
    let detail = format!("not permitted (system call: {syscall}; /dev/userfaultfd: {device})");
    Check::not("userfaultfd", Verdict::Missing, detail, fix)
}

/// Processes, this one, and memory are read of there.
pub fn proc() -> Check {
    /// The fix where another namespace's is mounted: commands that make a namespace have an option for it.
    const MOUNT: &str = "`mount -t proc proc /proc` (`unshare --mount-proc`, `bwrap --proc /proc`)";
    let memory = read_to_string("/proc/meminfo");
    let errno = memory.as_ref().err().and_then(io::Error::raw_os_error);
    if errno == Some(libc::EMFILE) {
        return no_descriptors();
    }
    if !memory.is_ok_and(|text| text.contains("MemTotal:"))
        || std::fs::read_link("/proc/self/exe").is_err()
    {
        let detail = "/proc is not there, or not readable: it tells of memory and processes";
        return Check::not("proc", Verdict::Missing, detail, MOUNT);
    }
    // Any other number there is another process: the wrong one would be measured, or ended.
    let own = std::process::id().to_string();
    if !std::fs::read_link("/proc/self").is_ok_and(|number| number == Path::new(&own)) {
        let detail = "/proc is that of another PID namespace: it tells of other processes";
        return Check::not("proc", Verdict::Missing, detail, MOUNT);
    }
    if !Path::new(&format!("/proc/self/task/{own}/children")).exists() {
        let detail = "/proc does not tell which processes a process started";
        let fix = "use a kernel built with CONFIG_PROC_CHILDREN";
        return Check::not("proc", Verdict::Missing, detail, fix);
    }
    Check::ok("proc", "/proc is there")
}

/// As many are open as may be: those that `ebb` was started with count too.
fn no_descriptors() -> Check {
    let detail = "no more files can be opened: `ulimit -n` allows no more than are open already";
    let fix = format!("`ulimit -n {ENOUGH}`, or more");
    Check::not("descriptors", Verdict::Missing, detail, fix)
}

/// Each process of the tree has a connection and its devices open, beside its program's files.
fn descriptors() -> Check {
    /// Descriptors of two processes and a device, and a little more.
    const LEAST: u64 = 32;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(files) if files < ENOUGH => Check::not(
            "descriptors",
            if files < LEAST {
                Verdict::Missing
            } else {
                Verdict::Limited
            },
            format!(
                "a process may open {files} files: `ebb run` needs {LEAST}, and more for each device and process"
            ),
            format!("`ulimit -n {ENOUGH}`"),
        ),
        limit => Check::ok(
            "descriptors",
            format!(
                "a process may open {} files",
                limit.map_or("any number of".into(), |files| files.to_string())
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(4_000_000_000), "4000000000");
    }

    #[test]
    fn the_refusal_names_a_fix_for_each_kind_of_machine() {
        let plain = || Machine {
            gvisor: false,
            container: None,
            user: "someone".into(),
        };
        let within = |container| Machine {
            container: Some(container),
            ..plain()
        };
        let container = || within(Container::Engine);
        let gvisor = Machine {
            gvisor: true,
            ..container()
        };
        for (syscall, device, machine, fix) in [
            (
                libc::EPERM,
                libc::EACCES,
                plain(),
                "setfacl -m u:someone:rw",
            ),
            (
                libc::EPERM,
                libc::ENOENT,
                plain(),
                "sysctl -w vm.unprivileged",
            ),
            (
                libc::EPERM,
                libc::ENOENT,
                container(),
                "--device /dev/userfaultfd",
            ),
            (
                libc::EPERM,
                libc::EPERM,
                container(),
                "--device /dev/userfaultfd",
            ),
            (
                libc::EPERM,
                libc::ENOENT,
                within(Container::Kubernetes),
                "examples/kubernetes",
            ),
            (
                libc::EPERM,
                libc::EPERM,
                within(Container::Other),
                "lxc.cgroup2.devices.allow",
            ),
            (
                libc::EPERM,
                libc::EACCES,
                container(),
                "on the host: `chmod 666 /dev/userfaultfd`",
            ),
            (libc::ENOSYS, libc::ENOENT, plain(), "CONFIG_USERFAULTFD"),
            (libc::ENOSYS, libc::ENOENT, gvisor, "runc"),
        ] {
            let errno = io::Error::from_raw_os_error;
            let check = no_userfaultfd(&errno(syscall), &errno(device), &machine);
            assert_eq!(check.verdict, Verdict::Missing);
            assert!(check.fix.as_ref().unwrap().contains(fix), "{check:?}");
        }
    }
}
