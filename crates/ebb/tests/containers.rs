//! Where jobs run (`examples/`): what a container gives, without a container engine, and a rootless one of podman.
//!
//! A private `/dev` that has only the usual devices and userfaultfd, an ordinary user, a memory cgroup and no new
//! privileges. The system calls are refused that Docker's default profile refuses, or podman's own.

mod common;

use common::{c_program, cannot_page, ebb, lacks};
use ebb_harness::MIB;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::tools;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Applies Docker's default seccomp profile, as far as it refuses something to a container without capabilities, sees
/// that it does, and becomes its arguments. The profile lists what it allows; here are the other system calls of
/// x86-64, by number, and the three of which it looks at an argument.
const REFUSE: &str = "
import ctypes, os, struct, sys
refused = {
    # The kernel itself: its log, modules, clock, start and accounting.
    'syslog': 103, 'create_module': 174, 'init_module': 175, 'delete_module': 176, 'get_kernel_syms': 177,
    'query_module': 178, 'finit_module': 313, 'settimeofday': 164, 'clock_settime': 227, 'reboot': 169,
    'kexec_load': 246, 'kexec_file_load': 320, 'acct': 163, 'bpf': 321, 'perf_event_open': 298,
    '_sysctl': 156, 'lookup_dcookie': 212,
    # Mounts, roots and names.
    'pivot_root': 155, 'chroot': 161, 'mount': 165, 'umount2': 166, 'swapon': 167, 'swapoff': 168,
    'sethostname': 170, 'setdomainname': 171, 'quotactl': 179, 'nfsservctl': 180, 'unshare': 272, 'setns': 308,
    'open_by_handle_at': 304, 'fanotify_init': 300, 'open_tree': 428, 'move_mount': 429, 'fsopen': 430,
    'fsconfig': 431, 'fsmount': 432, 'fspick': 433, 'mount_setattr': 442, 'quotactl_fd': 443,
    'statmount': 457, 'listmount': 458,
    # Hardware and terminals.
    'vhangup': 153, 'iopl': 172, 'ioperm': 173,
    # Memory nodes.
    'mbind': 237, 'set_mempolicy': 238, 'get_mempolicy': 239, 'migrate_pages': 256, 'move_pages': 279,
    'set_mempolicy_home_node': 450,
    # Other processes, keys, and what let programs out of containers before.
    'kcmp': 312, 'pidfd_getfd': 438, 'process_madvise': 440, 'add_key': 248, 'request_key': 249, 'keyctl': 250,
    'userfaultfd': 323, 'io_uring_setup': 425, 'io_uring_enter': 426, 'io_uring_register': 427,
    # Old ones, and ones that never were.
    'uselib': 134, 'ustat': 136, 'sysfs': 139, 'getpmsg': 181, 'putpmsg': 182, 'afs_syscall': 183,
    'tuxcall': 184, 'security': 185, 'vserver': 236,
    'lsm_get_self_attr': 459, 'lsm_set_self_attr': 460, 'lsm_list_modules': 461,
}
CLONE, CLONE3, SOCKET, PERSONALITY, UNKNOWN = 56, 435, 41, 135, 463
NAMESPACES, VSOCK = 0x7E020000, 40
LOAD, AND, EQUAL, AT_LEAST, ANSWER = 0x20, 0x54, 0x15, 0x35, 0x06
NUMBER, ARGUMENT = 0, 16
code = [(LOAD, NUMBER, None, None)]
code += [(EQUAL, number, 'eperm', None) for number in refused.values()]
code += [(EQUAL, CLONE3, 'enosys', None), (AT_LEAST, UNKNOWN, 'enosys', None), (EQUAL, CLONE, 'clone', None),
         (EQUAL, SOCKET, 'socket', None), (EQUAL, PERSONALITY, 'personality', 'allow'),
         'clone', (LOAD, ARGUMENT, None, None), (AND, NAMESPACES, None, None), (EQUAL, 0, 'allow', 'eperm'),
         'socket', (LOAD, ARGUMENT, None, None), (EQUAL, VSOCK, 'eperm', 'allow'),
         'personality', (LOAD, ARGUMENT, None, None)]
code += [(EQUAL, persona, 'allow', None) for persona in (0, 8, 0x20000, 0x20008, 0xffffffff)]
code += ['eperm', (ANSWER, 0x50000 | 1, None, None), 'enosys', (ANSWER, 0x50000 | 38, None, None),
         'allow', (ANSWER, 0x7fff0000, None, None)]
places, steps = {}, []
for step in code:
    if isinstance(step, str):
        places[step] = len(steps)
    else:
        steps.append(step)
away = lambda at, to: 0 if to is None else places[to] - at - 1
packed = b''.join(struct.pack('HBBI', op, away(at, yes), away(at, no), value)
                  for at, (op, value, yes, no) in enumerate(steps))
libc = ctypes.CDLL(None, use_errno=True)
program = ctypes.create_string_buffer(packed)
class Filter(ctypes.Structure):
    _fields_ = [('steps', ctypes.c_ushort), ('program', ctypes.c_void_p)]
filter = Filter(len(steps), ctypes.cast(program, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filter)) == 0
def answer(*call):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(word) for word in call])
    return ctypes.get_errno() if result == -1 else 0
for name, number in refused.items():
    assert answer(number, -1, -1, -1, -1, -1) == 1, name
assert answer(CLONE3, 0, 0) == 38 and answer(UNKNOWN) == 38
assert answer(CLONE, 0x10000000, 0, 0, 0, 0) == 1, 'a user namespace'
assert answer(SOCKET, VSOCK, 1, 0) == 1 and answer(PERSONALITY, 0x0040000) == 1
assert answer(PERSONALITY, 0xffffffff) == 0
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

/// Needs some 240 MiB; without --memory the budget follows from the limit.
const PROGRAM: &str = "print(sum(list(range(6_000_000))))";
const SUM: &[u8] = b"17999997000000\n";

/// Whether no job can be confined here, which is said.
fn cannot_confine() -> bool {
    if !ebb_harness::is_root() {
        println!("skipped: needs root");
        return true;
    }
    let why = cgroup::unavailable();
    if let Some(why) = &why {
        println!("skipped: no memory cgroup: {why}");
    }
    why.is_some()
}

/// Copies the command under test and its library.
fn copy_ebb(folder: &Path) {
    for file in ["ebb", "libebb_preload.so"] {
        fs::copy(ebb().with_file_name(file), folder.join(file)).unwrap();
    }
}

/// Runs it in a cgroup of so many bytes.
fn run_within(memory: u64, job: &Job) -> Outcome {
    let group = Cgroup::new(memory, KernelSwap::Forbidden).unwrap();
    job.run(Some(&group)).unwrap()
}

/// The program is killed alone, and finishes under `ebb`. Without the device nothing starts, and the next step names
/// the device.
#[track_caller]
fn assert_finishes_under_ebb(
    device: &str,
    alone: impl Fn(&str) -> Outcome,
    under: impl Fn(&str) -> Outcome,
) {
    let alone = alone(device);
    assert!(alone.kills > 0, "{}\n{}", alone.ending(), alone.stderr);
    let managed = under(device);
    assert!(managed.ok(), "{}\n{}", managed.ending(), managed.stderr);
    assert_eq!(managed.stdout, SUM);
    assert_eq!(managed.kills, 0, "{}", managed.stderr);
    let refused = under("");
    assert_eq!(refused.status.and_then(|status| status.code()), Some(125));
    assert!(refused.stderr.contains(device), "{}", refused.stderr);
}

/// A container's files: the command and its library, and the place of its `/dev`.
struct Container {
    dir: tempfile::TempDir,
}

impl Container {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        copy_ebb(dir.path());
        fs::create_dir(dir.path().join("dev")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs it there, within 160 MiB.
    fn run(&self, device: &str, command: &[&str]) -> Outcome {
        let front = ["unshare", "--mount", "sh", "-c", CONTAINER].map(OsString::from);
        let job = Job::new(command)
            .behind(front.into_iter().chain([self.path("dev").into_os_string()]))
            .time_limit(Duration::from_secs(100))
            .env("REFUSE", REFUSE)
            .env("DEVICE", device)
            .env("TMPDIR", self.dir.path())
            .env("HOME", "/nonexistent");
        run_within(160 * MIB, &job)
    }
}

#[test]
fn a_container_with_the_device_and_no_more() {
    if cannot_page() || cannot_confine() {
        return;
    }
    let container = Container::new();
    let program = ["/usr/bin/python3", "-c", PROGRAM];
    if !Path::new(program[0]).exists() {
        return println!("skipped: python3 is not installed");
    }
    let ebb = container.path("ebb");
    let under = [&[ebb.to_str().unwrap(), "run", "--"][..], &program].concat();
    assert_finishes_under_ebb(
        "userfaultfd",
        |device| container.run(device, &program),
        |device| container.run(device, &under),
    );
}

/// Where kcmp(2) is refused, sizes of memory that changes all the time must not say that the program has become another:
/// its helper would leave it. Of one that hides itself nothing else is shown.
#[test]
fn a_container_whose_program_maps_memory_all_the_time() {
    if cannot_page() || cannot_confine() {
        return;
    }
    let container = Container::new();
    fs::copy(c_program("mapping_threads"), container.path("churn")).unwrap();
    let (ebb, churn) = (container.path("ebb"), container.path("churn"));
    let [ebb, churn] = [ebb, churn].map(|path| path.to_str().unwrap().to_owned());
    for how in ["shown", "hidden"] {
        let command = [&ebb, "run", "-m", "80M", "--", &churn, "200", "5", how];
        let run = container.run("userfaultfd", &command);
        assert!(run.ok(), "{how}: {}\n{}", run.ending(), run.stderr);
        assert_eq!(run.stdout, b"good\n", "{how}");
    }
}

/// Starts podman as an ordinary user, in namespaces that go with the test, with the devices and a root that has the
/// machine's programs. Podman may not limit memory without a session of systemd: the cgroup around it does.
const PODMAN: &str = r#"
set -e
dir="$0" root="$0/root"
mount -t proc proc /proc
mkdir -p "$dir/dev" "$root"
mount -t tmpfs tmpfs "$dir/dev"
for device in null zero full random urandom tty userfaultfd; do cp -a /dev/$device "$dir/dev/"; done
chmod 666 "$dir/dev/userfaultfd"
mkdir -m 1777 "$dir/dev/shm"
mkdir "$dir/dev/pts" "$dir/dev/mqueue"
mount --bind "$dir/dev" /dev
mount -t tmpfs -o mode=755,uid=65534,gid=65534 tmpfs "$root"
for place in usr proc dev sys run etc opt var/tmp; do mkdir -p "$root/$place"; done
for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done
ln -s /proc/mounts "$root/etc/mtab"
touch "$root/etc/hosts" "$root/etc/resolv.conf"
chown 65534:65534 "$root/etc" "$root/run"
mount --bind /usr "$root/usr"
mount -o remount,bind,ro "$root/usr"
exec setpriv --reuid=65534 --regid=65534 --clear-groups \
    env HOME="$dir/home" XDG_RUNTIME_DIR="$dir/home" \
    podman --log-level=error --runtime=runc --cgroup-manager=cgroupfs run --rm --network=none \
    --volume "$dir/bin:/usr/local/bin:ro" --volume "$dir/swap:/var/tmp" \
    $OPTIONS --entrypoint "$ENTRYPOINT" --rootfs "$root" "$@"
"#;

/// The image's entry point, as the recipe in `examples` has it.
fn entrypoint() -> String {
    let recipe = tools::project().join("examples/container/Dockerfile");
    let recipe = fs::read_to_string(recipe).unwrap();
    let mut lines = recipe.lines();
    let line = lines.find_map(|line| line.strip_prefix("ENTRYPOINT "));
    line.unwrap().to_owned()
}

#[test]
fn a_rootless_container_of_podman() {
    if cannot_page() || lacks("podman") || lacks("runc") || cannot_confine() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["bin", "home", "swap"] {
        fs::create_dir(place(name)).unwrap();
        chown(place(name), Some(65534), Some(65534)).unwrap();
    }
    copy_ebb(&place("bin"));
    let run = |entrypoint: &str, device: &str| {
        let front = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];
        let front = front.into_iter().chain(["sh", "-c", PODMAN]);
        let front = front.map(OsString::from).chain([dir.path().into()]);
        let job = Job::new(["python3", "-c", PROGRAM])
            .behind(front)
            .time_limit(Duration::from_secs(100))
            .env("ENTRYPOINT", entrypoint)
            .env("OPTIONS", device);
        run_within(192 * MIB, &job)
    };
    assert_finishes_under_ebb(
        "--device /dev/userfaultfd",
        |device| run("", device),
        |device| run(&entrypoint(), device),
    );
}
