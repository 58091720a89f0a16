//! `ebb doctor`: what this machine allows, found by trying it, and the exact fix for what it
//! does not. `ebb run` asks the same checks before it starts anything.

use crate::cli::DoctorArgs;
use crate::limits::{Room, Source};
use anyhow::{Result, bail};
use ebb_stores::{SearchTime, SwapSpec};
use ebb_sys::probe;
use ebb_sys::secret::{self, Secret};
use ebb_sys::thread::{self, Urgency};
use ebb_sys::userfaultfd::{Access, Userfaultfd};
use serde::Serialize;
use std::fs::read_to_string;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or with less.
    Limited,
    /// `ebb run` cannot work.
    Missing,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at; stable, for machines.
    pub name: &'static str,
    /// The outcome.
    pub verdict: Verdict,
    /// What was seen.
    pub detail: String,
    /// What to do about it, as a command where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Serialize)]
struct Report {
    works: bool,
    kernel: String,
    checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            detail: detail.into(),
            fix: None,
        }
    }
    fn not(
        name: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }
}

/// Prints the report; exit 0 if `ebb run` can work here, 1 if not.
///
/// # Errors
/// stdout cannot be written.
pub fn doctor(args: DoctorArgs) -> Result<ExitCode> {
    use std::io::Write;
    let (mut checks, access) = required();
    checks.extend(advisory(access));
    let works = checks.iter().all(|c| c.verdict != Verdict::Missing);
    let mut out = io::stdout().lock();
    if args.json {
        let report = Report {
            works,
            kernel: kernel(),
            checks,
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        for check in &checks {
            let mark = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Limited => "limited",
                Verdict::Missing => "MISSING",
            };
            writeln!(out, "{mark:>7}  {:<18} {}", check.name, check.detail)?;
            if let Some(fix) = &check.fix {
                writeln!(out, "{:>7}  {:<18} fix: {fix}", "", "")?;
            }
        }
        let verdict = if works {
            "ebb run works here"
        } else {
            "ebb run cannot work here until what is MISSING is fixed"
        };
        writeln!(out, "\n{verdict}")?;
    }
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fails with the first fix if `ebb run` cannot work here.
///
/// # Errors
/// What is missing, and the fix.
pub fn must_work() -> Result<()> {
    match required()
        .0
        .into_iter()
        .find(|check| check.verdict == Verdict::Missing)
    {
        Some(Check {
            name, detail, fix, ..
        }) => {
            bail!(
                "{name}: {detail}\n     fix: {}\n     `ebb doctor` tells more",
                fix.unwrap_or_default()
            )
        }
        None => Ok(()),
    }
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// What `ebb run` cannot do without, and the way to a userfaultfd.
fn required() -> (Vec<Check>, Option<Access>) {
    let descriptors = descriptors();
    if descriptors.verdict == Verdict::Missing {
        // Whatever else is tried would fail for that, and look as if it were missing too.
        return (vec![descriptors], None);
    }
    let syscall = Userfaultfd::open_by(Access::Syscall);
    let device = Userfaultfd::open_by(Access::DeviceFile);
    let access = match (&syscall, &device) {
        (Ok(_), _) => Some(Access::Syscall),
        (_, Ok(_)) => Some(Access::DeviceFile),
        _ => None,
    };
    let Some(access) = access else {
        return (
            vec![
                descriptors,
                no_userfaultfd(
                    &syscall.unwrap_err(),
                    &device.unwrap_err(),
                    &Machine::here(),
                ),
            ],
            None,
        );
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
    let mut checks = vec![descriptors, userfaultfd];
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
    need("move", probe::move_works(access), "6.8");
    need("poison", probe::poison_works(access), "6.6");
    need(
        "write-protection",
        probe::write_protection_works(access),
        "5.7",
    );
    (checks, Some(access))
}

/// What the fix depends on.
struct Machine {
    gvisor: bool,
    container: bool,
    user: u32,
}

impl Machine {
    fn here() -> Self {
        let there = |file: &&str| std::path::Path::new(file).exists();
        Self {
            gvisor: read_to_string("/proc/version").is_ok_and(|text| text.contains("gVisor")),
            container: ["/.dockerenv", "/run/.containerenv"].iter().any(there),
            user: rustix::process::getuid().as_raw(),
        }
    }
}

fn no_userfaultfd(syscall: &io::Error, device: &io::Error, machine: &Machine) -> Check {
    let user = machine.user;
    let no_device = device.kind() == io::ErrorKind::NotFound;
    let fix = if machine.gvisor {
        "gVisor has no userfaultfd: run the container with the runc runtime".into()
    } else if machine.container && no_device {
        "start the container with `--device /dev/userfaultfd` (its seccomp profile blocks the system call, not the device)".into()
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

/// What makes it faster or roomier.
fn advisory(access: Option<Access>) -> Vec<Check> {
    let mut checks = Vec::new();
    if access.is_some() {
        checks.push(match probe::process_madvise_works() {
            Ok(()) => Check::ok("process_madvise", "drops many ranges with one call"),
            Err(error) => Check::not(
                "process_madvise",
                Verdict::Limited,
                format!("{error}: ranges are dropped one by one"),
                "run Linux 6.13 or newer, or allow the call in the seccomp profile",
            ),
        });
    }
    checks.push(match probe::io_uring_works() {
        Ok(()) => Check::ok("io_uring", "swap files are read and written in batches"),
        Err(error) => Check::not(
            "io_uring",
            Verdict::Limited,
            format!("{error}: swap files are read and written with pread and pwrite"),
            "`sysctl -w kernel.io_uring_disabled=0`, or allow io_uring in the container's seccomp profile",
        ),
    });
    checks.push(swap_file());
    checks.push(signatures());
    checks.push(keys());
    checks.push(urgency());
    checks.push(memory());
    checks.push(overcommit());
    checks.push(addresses());
    checks.push(processes());
    checks.push(maps());
    checks.push(huge_pages());
    checks.push(match crate::run::preload_library() {
        Ok(library) => Check::ok("preload-library", library.display().to_string()),
        Err(error) => Check::not(
            "preload-library",
            Verdict::Missing,
            error.to_string(),
            "keep ebb and its library together",
        ),
    });
    checks
}

/// Where `ebb run` without --swap puts pages that its pool has no room for.
fn swap_file() -> Check {
    const FIX: &str = "set TMPDIR to a directory on a disk, or name one with --swap PATH";
    let not = |detail: String| Check::not("swap-file", Verdict::Limited, detail, FIX);
    match ebb_stores::open(&SwapSpec::default(), &SearchTime::AtMost(Duration::ZERO)) {
        Ok(Some(device)) if device.facts.in_memory => not(format!(
            "{}: a file system in memory, where what is written still takes RAM",
            device.name
        )),
        Ok(Some(device)) => Check::ok(
            "swap-file",
            format!(
                "{}, at most {}",
                device.name,
                ebb_stores::human(device.facts.slots * 4096)
            ),
        ),
        Ok(None) => not("none".into()),
        Err(error) => not(error.to_string()),
    }
}

/// Whether the keys to swap files stay out of the kernel's swap.
fn keys() -> Check {
    let made = Secret::new(|| [0u8; ebb_stores::KEY_BYTES]);
    match made.err().or_else(secret::refused) {
        None => Check::ok("keys", "the keys to swap files are locked in memory"),
        Some(error) => Check::not(
            "keys",
            Verdict::Limited,
            format!("{error}: keys cannot be locked in memory, and may go to the kernel's swap"),
            "`ulimit -l 64`, or turn the kernel's swap off",
        ),
    }
}

/// What names the data on a device that the user gives.
fn signatures() -> Check {
    match ebb_sys::blkid::is_there() {
        true => Check::ok("signatures", "libblkid tells what a swap device holds"),
        false => Check::not(
            "signatures",
            Verdict::Limited,
            "no libblkid.so.1: what stands on a device beside a swap header, as a RAID's record at its end, is not noticed",
            "install libblkid (Debian: libblkid1)",
        ),
    }
}

/// Service threads are idle work, and have to become ordinary work where others fill the processors.
fn urgency() -> Check {
    let able = std::thread::spawn(|| {
        let set = |urgency| thread::set_urgency(0, urgency);
        set(Urgency::Idle).and_then(|()| set(Urgency::Normal))
    });
    match able.join() {
        Ok(Ok(())) => Check::ok(
            "urgency",
            "page faults are served however busy processors are",
        ),
        Ok(Err(error)) => Check::not(
            "urgency",
            Verdict::Limited,
            format!(
                "{error}: page faults of programs with more threads than processors may wait for service"
            ),
            "as root: `prlimit --nice=20 --pid $PPID`, or a line `USER - nice 0` in /etc/security/limits.conf; in a container: `--cap-add SYS_NICE` or `--ulimit nice=20`",
        ),
        Err(_) => Check::not(
            "urgency",
            Verdict::Limited,
            "no thread can be started",
            "raise `ulimit -u`",
        ),
    }
}

/// Each process of the tree has a connection, and its devices, beside its program's files.
fn descriptors() -> Check {
    /// What two processes and a device take, and a little more.
    const LEAST: u64 = 32;
    const ENOUGH: u64 = 256;
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

/// Each process has a staging area and tables, as addresses far more than in memory.
fn addresses() -> Check {
    const LEAST: u64 = 8 << 30;
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(bytes) if bytes < LEAST => Check::not(
            "addresses",
            Verdict::Limited,
            format!(
                "a process may have {} MiB of addresses: its program shares them with the staging area and tables",
                bytes >> 20
            ),
            "`ulimit -v unlimited`",
        ),
        _ => Check::ok("addresses", "as many as a program needs"),
    }
}

/// Each process that pages has a keeper and a service thread for each processor.
fn processes() -> Check {
    const LEAST: u64 = 256;
    let each = thread::processors() as u64 + 1;
    match rustix::process::getrlimit(rustix::process::Resource::Nproc).current {
        // It does not bind root.
        Some(threads) if threads < LEAST && !rustix::process::geteuid().is_root() => Check::not(
            "threads",
            Verdict::Limited,
            format!(
                "this user may have {threads} processes and threads: each process has {each} more"
            ),
            format!("`ulimit -u {LEAST}` or more"),
        ),
        _ => Check::ok("threads", format!("{each} more in each process")),
    }
}

fn memory() -> Check {
    let room = Room::here();
    let (free, total, budget) = (
        room.free >> 20,
        room.total >> 20,
        room.default_budget() >> 20,
    );
    let whose = match &room.from {
        Source::Cgroup(_) => format!("of {total} MiB that {} allows", room.from),
        Source::Machine => format!("of the machine's {total} MiB"),
    };
    Check::ok(
        "memory",
        format!("{free} MiB free {whose}; `ebb run` without --memory takes {budget} MiB"),
    )
}

fn setting(file: &str) -> String {
    read_to_string(file).map_or_else(|_| "unknown".into(), |text| text.trim().to_string())
}

fn overcommit() -> Check {
    let mode = setting("/proc/sys/vm/overcommit_memory");
    match mode.as_str() {
        "2" => Check::not(
            "overcommit",
            Verdict::Limited,
            "vm.overcommit_memory=2: the system counts reservations, so programs may be refused memory that ebb could give",
            "as root: `sysctl -w vm.overcommit_memory=1`",
        ),
        "0" => Check::ok(
            "overcommit",
            "heuristic: one reservation may not exceed RAM and swap together; `sysctl -w vm.overcommit_memory=1` lifts that",
        ),
        _ => Check::ok("overcommit", format!("vm.overcommit_memory={mode}")),
    }
}

fn maps() -> Check {
    const ENOUGH: u64 = 65530;
    let count = setting("/proc/sys/vm/max_map_count");
    if count.parse::<u64>().is_ok_and(|n| n < ENOUGH) {
        let detail = format!(
            "vm.max_map_count={count} is below the usual {ENOUGH}: large programs may be refused mappings"
        );
        return Check::not(
            "mappings",
            Verdict::Limited,
            detail,
            format!("as root: `sysctl -w vm.max_map_count={ENOUGH}`"),
        );
    }
    Check::ok("mappings", format!("vm.max_map_count={count}"))
}

fn huge_pages() -> Check {
    let text = setting("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.as_str(), |(mode, _)| mode);
    Check::ok(
        "huge-pages",
        format!(
            "transparent huge pages: {chosen} (managed memory uses 4 KiB pages once it is paged)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_that_is_not_ok_has_a_fix() {
        let (mut checks, access) = required();
        checks.extend(advisory(access));
        for check in checks {
            assert_eq!(
                check.fix.is_none(),
                check.verdict == Verdict::Ok,
                "{check:?}"
            );
        }
    }

    #[test]
    fn the_refusal_names_a_fix_for_each_kind_of_machine() {
        let plain = || Machine {
            gvisor: false,
            container: false,
            user: 1000,
        };
        let container = || Machine {
            container: true,
            ..plain()
        };
        let gvisor = Machine {
            gvisor: true,
            ..container()
        };
        for (syscall, device, machine, fix) in [
            (libc::EPERM, libc::EACCES, plain(), "setfacl -m u:1000:rw"),
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
