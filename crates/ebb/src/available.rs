//! Available memory: the tightest bounds of the machine, of the memory cgroups (v1 and v2) and of the `ebb run` that
//! this process is in. Free memory and memory in all have bounds of their own. A container on a machine that is short
//! has its limit in all, and free is what the machine has.

#[cfg(fuzzing)]
use crate::cgroups::groups;
use crate::cgroups::{MEMORY, directory, own_groups, read};
use std::fmt;
use std::path::{Path, PathBuf};

/// Bytes that the default budget leaves free: page cache, kernel memory, and growth of other programs of the
/// cgroup.
const MARGIN: u64 = 64 << 20;

/// Memory that could be used from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Available {
    /// Bytes not used yet.
    pub free: u64,
    /// Setter of that bound.
    pub from: Source,
    /// Bytes in all: a cgroup's limit, or the machine's memory.
    pub total: u64,
    /// Setter of that bound.
    pub total_from: Source,
}

/// A bound of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A memory cgroup, by its path.
    Cgroup(PathBuf),
    /// Another `ebb run`, by its number.
    Tree(u32),
    /// The machine: MemAvailable.
    Machine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Cgroup(path) => write!(f, "the memory cgroup {}", path.display()),
            Source::Tree(supervisor) => write!(f, "the budget of `ebb run` {supervisor}"),
            Source::Machine => f.write_str("the machine's available memory"),
        }
    }
}

impl Available {
    /// The tightest bounds that apply to this process; `tree` is that of the `ebb run` that it is under.
    pub fn here(tree: Option<Available>) -> Available {
        let here = Self::under(Path::new("/"));
        tree.into_iter().fold(here, Self::tightest)
    }

    /// The bounds of the system whose files lie under `root`.
    fn under(root: &Path) -> Available {
        let machine = machine(&read(root.join("proc/meminfo")));
        own_groups(root, MEMORY)
            .into_iter()
            .filter_map(|group| group_available(root, group))
            .fold(machine, Self::tightest)
    }

    /// Of two places the tighter bounds.
    fn tightest(self, other: Available) -> Available {
        let (free, from) = match other.free < self.free {
            true => (other.free, other.from),
            false => (self.free, self.from),
        };
        let (total, total_from) = match other.total < self.total {
            true => (other.total, other.total_from),
            false => (self.total, self.total_from),
        };
        Available {
            free,
            from,
            total,
            total_from,
        }
    }

    /// The budget where the user names none.
    pub fn default_budget(&self) -> u64 {
        self.free - (self.free / 8).min(MARGIN)
    }
}

/// Reads a text as each of the files, for the fuzz target (`fuzz/`).
#[cfg(fuzzing)]
pub fn fuzzing(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    machine(&text);
    let (one, other) = text.split_once("\n\n").unwrap_or((&text, &text));
    groups(MEMORY, one, other);
}

fn machine(meminfo: &str) -> Available {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    };
    Available {
        free: field("MemAvailable:"),
        from: Source::Machine,
        total: field("MemTotal:"),
        total_from: Source::Machine,
    }
}

/// Limit less usage, page cache that can be dropped counted as free. `None`: no limit here.
fn group_available(root: &Path, group: PathBuf) -> Option<Available> {
    let dir = directory(root, &group);
    let number = |file: &str| read(dir.join(file)).trim().parse::<u64>().ok();
    let stat = read(dir.join("memory.stat"));
    let stat = |name: &str| {
        let value = stat
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|v| v.trim().parse::<u64>().ok())
    };
    let v2_limit = [number("memory.max"), number("memory.high")]
        .into_iter()
        .flatten()
        .min();
    let (limit, used, cache) = match v2_limit {
        Some(limit) => (
            limit,
            number("memory.current")?,
            stat("inactive_file").unwrap_or(0),
        ),
        None => (
            number("memory.limit_in_bytes")?,
            number("memory.usage_in_bytes")?,
            stat("total_inactive_file").unwrap_or(0),
        ),
    };
    // v1 says "no limit" with a number near 2^63.
    (limit < 1 << 60).then(|| Available {
        free: limit.saturating_sub(used.saturating_sub(cache)),
        from: Source::Cgroup(group.clone()),
        total: limit,
        total_from: Source::Cgroup(group),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let available =
            machine("MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
        assert_eq!((available.total, available.free), (1 << 20, 512 << 10));
    }

    /// A system's files: a machine of 8 GiB with 6 free, a process in the group `a/b` of this version.
    fn system(v2: bool) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let (kind, line, options) = match v2 {
            true => ("cgroup2", "0::/a/b\n", "rw"),
            false => ("cgroup", "4:memory:/a/b\n", "rw,memory"),
        };
        put(
            root.path(),
            "proc/meminfo",
            "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n",
        );
        put(root.path(), "proc/self/cgroup", line);
        let mounts = format!("30 25 0:27 / /cg rw - {kind} cgroup {options}\n");
        put(root.path(), "proc/self/mountinfo", &mounts);
        root
    }

    fn put(root: &Path, name: &str, text: &str) {
        let file = root.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn groups_of_version_2() {
        let root = system(true);
        let put = |name: &str, text: &str| put(root.path(), name, text);
        let available = || Available::under(root.path());
        let machine = |available: Available| {
            assert_eq!((available.free, available.from), (6 * GIB, Source::Machine))
        };
        let group = |path: &str| Source::Cgroup(path.into());
        // The top has no such files; nothing bounds the others.
        for dir in ["cg/a", "cg/a/b"] {
            put(&format!("{dir}/memory.max"), "max\n");
            put(&format!("{dir}/memory.high"), "max\n");
            put(&format!("{dir}/memory.current"), "1000\n");
        }
        machine(available());
        // One above it does, with what it may drop counted as free.
        put("cg/a/memory.max", "2147483648\n");
        put("cg/a/memory.current", "1073741824\n");
        put(
            "cg/a/memory.stat",
            "anon 1\ninactive_file 536870912\ninactive_anon 7\n",
        );
        let bound = available();
        assert_eq!((bound.free, bound.total), (GIB / 2 * 3, 2 * GIB));
        assert_eq!(bound.from, group("/cg/a"));
        assert_eq!(bound.default_budget(), bound.free - MARGIN);
        // Where it is throttled bounds it too, and nearer.
        put("cg/a/b/memory.high", "268435456\n");
        let bound = available();
        assert_eq!((bound.free, bound.from), (GIB / 4 - 1000, group("/cg/a/b")));
        // More is used than allowed: no room, and no less than none.
        put("cg/a/b/memory.current", "268435457\n");
        let bound = available();
        assert_eq!((bound.free, bound.default_budget()), (0, 0));
        // A limit above what the machine has.
        put("cg/a/b/memory.high", "max\n");
        put("cg/a/memory.max", "17179869184\n");
        machine(available());
    }

    #[test]
    fn a_share_is_of_the_least_there_is_in_all() {
        let root = system(true);
        let put = |name: &str, text: &str| put(root.path(), name, text);
        let group = |path: &str| Source::Cgroup(path.into());
        // A container of 4 GiB, where the machine has 1 free; and a group above that has less free.
        put(
            "proc/meminfo",
            "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n",
        );
        put("cg/a/b/memory.max", "4294967296\n");
        put("cg/a/b/memory.current", "4096\n");
        let bound = Available::under(root.path());
        assert_eq!((bound.free, bound.from), (GIB, Source::Machine));
        assert_eq!((bound.total, bound.total_from), (4 * GIB, group("/cg/a/b")));
        put("cg/a/memory.max", "6442450944\n");
        put("cg/a/memory.current", "6442446848\n");
        let bound = Available::under(root.path());
        assert_eq!((bound.free, bound.from), (4096, group("/cg/a")));
        assert_eq!((bound.total, bound.total_from), (4 * GIB, group("/cg/a/b")));
    }

    #[test]
    fn another_run_bounds_both() {
        let tree = |free: u64, total: u64| Available {
            free,
            from: Source::Tree(7),
            total,
            total_from: Source::Tree(7),
        };
        let machine = machine("MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n");
        let bound = machine.clone().tightest(tree(GIB / 2, 2 * GIB));
        assert_eq!(bound, tree(GIB / 2, 2 * GIB));
        let bound = machine.tightest(tree(3 * GIB, 4 * GIB));
        assert_eq!((bound.free, bound.from), (GIB, Source::Machine));
        assert_eq!((bound.total, bound.total_from), (4 * GIB, Source::Tree(7)));
    }

    #[test]
    fn groups_of_version_1() {
        let root = system(false);
        let put = |name: &str, text: &str| put(root.path(), name, text);
        let available = || Available::under(root.path());
        // How the kernel says that there is no limit: with pages of 4 and of 64 KiB, and in old kernels.
        for unlimited in [
            "9223372036854771712",
            "9223372036854710272",
            "9223372036854775807",
        ] {
            for dir in ["cg", "cg/a", "cg/a/b"] {
                put(
                    &format!("{dir}/memory.limit_in_bytes"),
                    &format!("{unlimited}\n"),
                );
                put(&format!("{dir}/memory.usage_in_bytes"), "4096\n");
                put(&format!("{dir}/memory.stat"), "total_inactive_file 0\n");
            }
            let available = available();
            assert_eq!((available.free, available.from), (6 * GIB, Source::Machine));
        }
        put("cg/a/memory.limit_in_bytes", "3221225472\n");
        put("cg/a/memory.usage_in_bytes", "2147483648\n");
        // Its own cache, and that of all below it.
        put(
            "cg/a/memory.stat",
            "inactive_file 5\ntotal_inactive_file 268435456\n",
        );
        let bound = available();
        assert_eq!((bound.free, bound.total), (GIB + GIB / 4, 3 * GIB));
        assert_eq!(bound.from, Source::Cgroup("/cg/a".into()));
    }

    #[test]
    fn this_machine_has_memory() {
        let available = Available::here(None);
        assert!(available.free > 0 && available.free <= available.total);
        assert!(available.default_budget() > 0 && available.default_budget() <= available.free);
    }
}
