//! The checks for more speed or more room, without which `ebb run` works; and those of the values that it takes where its
//! command line gives none.

use super::check::{Check, Verdict};
use crate::available::{Available, Source};
use crate::defaults::{self, InUse};
use crate::outer::Outer;
use crate::setup;
use anyhow::Result;
use ebb_engine::PAGE_SIZE;
use ebb_stores::{OpenError, SearchTime, SwapSpec, human};
use ebb_sys::probe;
use ebb_sys::secret::{self, Secret};
use ebb_sys::thread;
use ebb_sys::userfaultfd::Access;
use std::fs::read_to_string;
use std::time::Duration;

/// The checks; some need the way to a userfaultfd.
pub fn advisory(access: Option<Access>) -> Vec<Check> {
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
    checks.push(match probe::asynchronous_reads_work() {
        Ok(()) => Check::ok(
            "asynchronous reads",
            "scattered pages are read at once",
        ),
        Err(error) => Check::not(
            "asynchronous reads",
            Verdict::Limited,
            format!("{error}: swap files are read one page after the other"),
            "`sysctl -w fs.aio-max-nr=1048576`, or allow io_setup and its kin in the container's seccomp profile",
        ),
    });
    let in_use = defaults::in_use();
    let used = in_use.as_ref().ok();
    checks.extend(used.map(|used| swap_file(&used.swap)));
    checks.push(signatures());
    checks.push(keys());
    checks.extend(used.map(|used| memory(used.memory.as_deref())));
    checks.push(overcommit());
    checks.push(addresses());
    checks.push(processes());
    checks.push(maps());
    checks.push(huge_pages());
    checks.push(set_elsewhere(in_use));
    checks.push(match crate::library::path() {
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

/// Options that are set outside the command line.
fn set_elsewhere(in_use: Result<InUse>) -> Check {
    match in_use.map(|used| used.shown) {
        Ok(Some(all)) => Check::ok("defaults", all),
        Ok(None) => Check::ok(
            "defaults",
            match defaults::file() {
                Some(file) => format!(
                    "none in EBB_MEMORY, EBB_SWAP, EBB_POOL and {}",
                    file.display()
                ),
                None => "none in EBB_MEMORY, EBB_SWAP and EBB_POOL".into(),
            },
        ),
        Err(error) => Check::not(
            "defaults",
            Verdict::Missing,
            format!("{error:#}"),
            "correct the variable or the file that is named",
        ),
    }
}

/// The places for pages that the pool has no room for.
fn swap_file(specs: &[SwapSpec]) -> Check {
    const FIX: &str =
        "set TMPDIR to a directory on a disk, or name one with --swap PATH or EBB_SWAP";
    let not = |verdict, detail: String| Check::not("swap-file", verdict, detail, FIX);
    // Nothing is written: what is empty gets its header later.
    let look = SearchTime::AtMost(Duration::ZERO);
    let open = |spec| ebb_stores::open(spec, &look).transpose();
    let devices: Vec<_> = match specs.iter().filter_map(open).collect() {
        Ok(devices) => devices,
        // A run takes the time.
        Err(error @ OpenError::NotSeen { .. }) => return not(Verdict::Limited, error.to_string()),
        Err(error) => return not(Verdict::Missing, error.to_string()),
    };
    if let Some(device) = devices.iter().find(|device| device.facts.in_memory) {
        return not(
            Verdict::Limited,
            format!(
                "{}: it lies in memory, where what is written still takes RAM",
                device.name
            ),
        );
    }
    let shown = devices.iter().map(|device| {
        let size = human(device.facts.slots * PAGE_SIZE as u64);
        format!("{}, at most {size}", device.name)
    });
    let shown: Vec<_> = shown.collect();
    Check::ok(
        "swap-file",
        match shown.is_empty() {
            true => "none: cold pages stay in RAM, compressed".into(),
            false => shown.join("; "),
        },
    )
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

/// Whether data on a device that the user gives can be named.
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

/// Each process has a staging area and tables, which take far more addresses than memory. They are private and may be
/// written, so they count as data too.
fn addresses() -> Check {
    use rustix::process::{Resource, getrlimit};
    const LEAST: u64 = 8 << 30;
    let limits = [
        (Resource::As, "addresses", "`ulimit -v unlimited`"),
        (Resource::Data, "data", "`ulimit -d unlimited`"),
    ];
    let low = |(limit, what, fix)| {
        let bytes = getrlimit(limit).current.filter(|bytes| *bytes < LEAST)?;
        let why = format!(
            "a process may have {} MiB of {what}: its program shares them with the staging area and tables",
            bytes >> 20
        );
        Some(Check::not("addresses", Verdict::Limited, why, fix))
    };
    let low = limits.into_iter().find_map(low);
    low.unwrap_or_else(|| Check::ok("addresses", "as many as a program needs"))
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

fn memory(given: Option<&str>) -> Check {
    let available = Available::here(Outer::here().map(|outer| outer.available()));
    let budget = match setup::budget(given, &available) {
        Ok(budget) => budget >> 20,
        Err(error) => {
            const FIX: &str = "free memory, or set another --memory or EBB_MEMORY";
            return Check::not("memory", Verdict::Missing, format!("{error:#}"), FIX);
        }
    };
    let (free, total) = (available.free >> 20, available.total >> 20);
    let whose = match &available.total_from {
        Source::Cgroup(_) | Source::Tree(_) => {
            format!("of {total} MiB that {} allows", available.total_from)
        }
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
