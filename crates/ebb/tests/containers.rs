//! Where jobs run (`examples/`): what a container gives, without a container engine.
//!
//! A private `/dev` that has only the usual devices and userfaultfd, an ordinary user, a memory cgroup, no new
//! privileges, and the system calls refused that Docker's default profile refuses and `ebb` would use.

mod common;

use common::{cannot_page, ebb};
use ebb_harness::MIB;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::Job;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Refuses io_uring and userfaultfd(2) with EPERM, sees that they are refused, and becomes its arguments.
const REFUSE: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
refused = [323, 425, 426, 427]
step = lambda code, yes, no, value: struct.pack('HBBI', code, yes, no, value)
load, equal, answer = 0x20, 0x15, 0x06
steps = step(load, 0, 0, 0)
for at, number in enumerate(refused):
    steps += step(equal, len(refused) - at, 0, number)
steps += step(answer, 0, 0, 0x7fff0000) + step(answer, 0, 0, 0x50000 | 1)
program = ctypes.create_string_buffer(steps)
class Filter(ctypes.Structure):
    _fields_ = [('steps', ctypes.c_ushort), ('program', ctypes.c_void_p)]
filter = Filter(len(refused) + 3, ctypes.cast(program, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filter)) == 0
for number in refused:
    assert libc.syscall(number, 1, None) == -1 and ctypes.get_errno() == 1, number
assert os.getuid() != 0
os.execvp(sys.argv[1], sys.argv[1:])
";

/// A `/dev` as a container's with `--device /dev/userfaultfd`, in a mount namespace of its own.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs tmpfs "$0"
for device in null zero full random urandom tty $DEVICE; do cp -a /dev/$device "$0/"; done
[ -z "$DEVICE" ] || chmod 666 "$0/$DEVICE"
mkdir "$0/shm"
mount --bind "$0" /dev
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs /usr/bin/python3 -c "$REFUSE" "$@"
"#;

#[test]
fn a_container_with_the_device_and_no_more() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    if let Some(why) = cgroup::unavailable() {
        return println!("skipped: no memory cgroup: {why}");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let open = |path: &std::path::Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(dir.path());
    for file in ["ebb", "libebb_preload.so"] {
        fs::copy(ebb().with_file_name(file), dir.path().join(file)).unwrap();
    }
    let dev = dir.path().join("dev");
    fs::create_dir(&dev).unwrap();
    // Needs some 240 MiB; without --memory the budget follows from the limit.
    const PROGRAM: &str = "print(sum(list(range(6_000_000))))";
    let program = ["/usr/bin/python3", "-c", PROGRAM];
    if !std::path::Path::new(program[0]).exists() {
        return println!("skipped: python3 is not installed");
    }
    let run = |device: &str, command: &[&str]| {
        let front = ["unshare", "--mount", "sh", "-c", CONTAINER].map(OsString::from);
        let job = Job::new(command)
            .behind(front.into_iter().chain([dev.clone().into_os_string()]))
            .time_limit(Duration::from_secs(100))
            .env("REFUSE", REFUSE)
            .env("DEVICE", device)
            .env("TMPDIR", dir.path())
            .env("HOME", "/nonexistent");
        let group = Cgroup::new(160 * MIB, KernelSwap::Forbidden).unwrap();
        job.run(Some(&group)).unwrap()
    };
    let ebb = dir.path().join("ebb");
    let under = [&[ebb.to_str().unwrap(), "run", "--"][..], &program].concat();
    let alone = run("userfaultfd", &program);
    assert!(alone.kills > 0, "{}\n{}", alone.ending(), alone.stderr);
    let managed = run("userfaultfd", &under);
    assert!(managed.ok(), "{}\n{}", managed.ending(), managed.stderr);
    assert_eq!(managed.kills, 0, "{}", managed.stderr);
    // Without the device nothing starts, and the next step is named.
    let refused = run("", &under);
    assert_eq!(refused.status.and_then(|status| status.code()), Some(125));
    assert!(refused.stderr.contains("userfaultfd"), "{}", refused.stderr);
}
