//! Which tests may be skipped on this machine. Each reason that a test gives is checked here; a reason
//! that cannot be checked allows no skip.

use ebb_harness::{cgroup, kernel_swap, tools};
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The lacks of this machine.
pub struct AllowedSkips {
    /// Words that a skip may give as its reason, each with whether it holds here.
    words: Vec<(&'static str, bool)>,
    /// Flag: a program may be missing.
    programs: bool,
}

/// Whether a user without any privilege may open /dev/userfaultfd.
fn may_open_userfaultfd(root: bool) -> bool {
    const DEVICE: &str = "/dev/userfaultfd";
    let mode = fs::metadata(DEVICE).map(|m| m.permissions().mode());
    let by_everybody = mode.is_ok_and(|mode| mode & 0o006 == 0o006);
    by_everybody || !root && File::options().read(true).write(true).open(DEVICE).is_ok()
}

/// Reasons that lie in directories for temporary files.
fn of_directories() -> [(&'static str, bool); 3] {
    let tmp = Path::new("/var/tmp");
    [
        ("/dev/shm", tempfile::tempfile_in("/dev/shm").is_err()),
        ("O_DIRECT", !tools::direct_io(tmp)),
        ("no room", tools::free_bytes(tmp) < 2 << 30),
    ]
}

impl AllowedSkips {
    /// Looks around. `complete`: no program may be missing.
    pub fn on_this_machine(complete: bool) -> Self {
        let root = ebb_harness::is_root();
        let mounts = root && works("unshare", &["--mount", "true"]);
        let number = |file: &str| {
            let text = fs::read_to_string(Path::new("/proc/sys").join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let lacks = doctors_report();
        let requests = number("fs/aio-max-nr").zip(number("fs/aio-nr"));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut words = vec![
            // Known not to pass yet, and listed as such in SPECIFICATION.md.
            ("pending", true),
            ("a benchmark", true),
            ("a second build", true),
            (
                "Debian archive",
                TcpStream::connect("deb.debian.org:80").is_err(),
            ),
            ("rounds", true), // Other programs ran while it measured.
            (
                // Root's test becomes a user without any privilege for that; others cannot.
                "may use userfaultfd",
                number("vm/unprivileged_userfaultfd") == Some(1) || may_open_userfaultfd(root),
            ),
            ("kernel swap", !kernel_swap::in_use()),
            ("userfaultfd", lacks("userfaultfd") || lacks("move")),
            ("io_uring", number("kernel/io_uring_disabled") != Some(0)),
            // Of a user who may not lock memory without bounds.
            ("registered buffers", !root),
            ("version 1", !cgroup::is_v1()),
            ("cgroup", cgroup::unavailable().is_some()),
            ("zram", !root || kernel_swap::in_use()),
            ("loop device", !root || !works("losetup", &["--find"])),
            ("FUSE", !root || !Path::new("/dev/fuse").exists()),
            ("mount", !mounts),
            ("network namespace", !works("unshare", &["--net", "true"])),
            ("user namespace", !maps_users()),
            ("ext4", tools::in_path("mkfs.ext4").is_none()),
            ("mkswap", tools::in_path("mkswap").is_none()),
            (
                "seccomp",
                number("kernel/seccomp").is_none()
                    && !Path::new("/proc/sys/kernel/seccomp").exists(),
            ),
            (
                "asynchronous reads",
                requests.is_none_or(|(most, taken)| taken + 64 > most),
            ),
            // 2 and more: of no process but by root.
            (
                "another program's memory",
                !root && number("kernel/yama/ptrace_scope").is_some_and(|scope| scope > 1),
            ),
            ("one processor", processors < 2),
            ("root may write everywhere", root),
            ("root", !root),
            // It is installed; some machines allow no namespaces.
            (
                "bubblewrap",
                !works("bwrap", &["--ro-bind", "/", "/", "true"]),
            ),
        ];
        words.extend(of_directories());
        Self {
            words,
            programs: !complete,
        }
    }

    /// Whether the reason holds here. The first word that it contains decides.
    pub fn allows(&self, why: &str) -> bool {
        if let Some(name) = installed(why) {
            return self.programs && missing(name);
        }
        let known = self.words.iter().find(|(word, _)| why.contains(word));
        known.is_some_and(|&(_, holds)| holds)
    }
}

/// The missing program, if that is the reason.
fn installed(why: &str) -> Option<&str> {
    let name = why.strip_suffix(" not installed")?;
    name.strip_suffix(" is").or(name.strip_suffix(" are"))
}

fn missing(name: &str) -> bool {
    match name {
        "redis-server" => tools::redis().is_none(),
        "NumPy" => tools::python_with("numpy").is_none(),
        "NumPy, pytest and hypothesis" => tools::python_with("numpy, pytest, hypothesis").is_none(),
        "pytest, ipykernel and jupyter_client" => {
            tools::python_with("pytest, ipykernel, jupyter_client").is_none()
        }
        "prometheus_client" => tools::python_with("prometheus_client").is_none(),
        "PyYAML" => tools::python_with("yaml").is_none(),
        "CPython's tests" => tools::python_with(tools::CPYTHONS_TESTS).is_none(),
        "a static C library" => {
            // The compiler answers the bare name where there is none.
            let archive = Command::new("cc").arg("-print-file-name=libc.a").output();
            archive.is_ok_and(|found| !found.stdout.starts_with(b"/"))
        }
        program => tools::in_path(program).is_none(),
    }
}

/// Whether a user namespace may give the user another number. For root that takes CAP_SETFCAP.
fn maps_users() -> bool {
    works("unshare", &["--map-user=5", "true"])
}

fn works(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether `ebb doctor` finds this not to be all right.
fn doctors_report() -> impl Fn(&str) -> bool {
    let ebb = tools::project().join("target/release/ebb");
    let doctor = Command::new(ebb).args(["doctor", "--json"]).output();
    let text = doctor.map(|output| output.stdout).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    move |name| {
        let checks = report["checks"].as_array();
        let fine = |check: &serde_json::Value| check["name"] == name && check["verdict"] == "ok";
        !checks.is_some_and(|all| all.iter().any(fine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reasons_that_hold_here_allow_a_skip() {
        let words = vec![("zram", true), ("root", false)];
        let skips = |programs| AllowedSkips {
            words: words.clone(),
            programs,
        };
        let here = skips(true);
        assert!(here.allows("zram needs root"));
        assert!(!here.allows("needs root"));
        assert!(!here.allows("did not feel like it"));
        assert!(here.allows("no-such-program is not installed"));
        assert!(!here.allows("sh is not installed"));
        assert!(!skips(false).allows("no-such-program is not installed"));
    }

    /// Reasons as they stand in the files: a test that is skipped for one that cannot be checked fails
    /// on every machine that gives it.
    #[test]
    fn every_reason_in_the_project_can_be_checked() {
        let skips = AllowedSkips::on_this_machine(false);
        let mut reasons = 0;
        for file in sources(&tools::project().join("crates")) {
            let text = fs::read_to_string(&file).unwrap();
            let said = text.split("\"skipped: ").skip(1);
            let kept = text.split("#[ignore = \"").skip(1);
            for why in said.chain(kept).map(|rest| rest.split('"').next().unwrap()) {
                // The harness says what is missing.
                if why == "{missing:#}" {
                    continue;
                }
                let known = skips.words.iter().any(|(word, _)| why.contains(word));
                let file = file.display();
                assert!(known || installed(why).is_some(), "{file}: {why:?}");
                reasons += 1;
            }
        }
        assert!(reasons > 30, "{reasons}");
    }

    fn sources(dir: &Path) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let rust = files
            .into_iter()
            .filter(|file| file.extension().is_some_and(|e| e == "rs"));
        rust.chain(dirs.iter().flat_map(|dir| sources(dir)))
            .collect()
    }
}
