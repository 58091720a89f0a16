//! The cgroups that this process is in, of either version, and whether they limit its processors.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The controller of memory.
pub const MEMORY: &str = "memory";
/// The controller of processors.
const PROCESSORS: &str = "cpu";

/// A file's text; nothing where there is none.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The directories of our cgroup of this controller and all above it, for the system whose files lie under `root`.
pub fn own_groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let proc = |file: &str| read(root.join("proc/self").join(file));
    groups(controller, &proc("cgroup"), &proc("mountinfo"))
}

/// The same as the texts tell: a limit may stand on any of them.
pub fn groups(controller: &str, cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        // ID:CONTROLLERS:PATH; v2 has no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == controller) {
            continue;
        }
        for (root, mount) in mounts(mountinfo, (!v2).then_some(controller)) {
            let Some(leaf) = below(&mount, &root, Path::new(path)) else {
                continue;
            };
            found.extend(
                leaf.ancestors()
                    .take_while(|dir| dir.starts_with(&mount))
                    .map(PathBuf::from),
            );
        }
    }
    found
}

/// Where a mount, which shows the hierarchy from `root` on, has the group `path`; `None`: what it has of ours cannot be
/// told.
fn below(mount: &Path, root: &Path, path: &Path) -> Option<PathBuf> {
    let above = root
        .components()
        .filter(|part| *part == Component::ParentDir)
        .count();
    if above == 0 {
        // In a container the mount shows a part of the hierarchy, or the path leads outside of it.
        // The mount's own top is the nearest group to be seen then.
        return Some(mount.join(path.strip_prefix(root).unwrap_or(Path::new(""))));
    }
    // Mounted outside of this cgroup namespace, whose top lies so many levels below. The kernel does not tell its name.
    let inside = path.strip_prefix("/").unwrap_or(path);
    let mut tops = vec![mount.to_path_buf()];
    for _ in 0..above {
        let children = tops.iter().filter_map(|top| fs::read_dir(top).ok());
        let children = children.flatten().flatten().map(|entry| entry.path());
        tops = children.filter(|child| child.is_dir()).collect();
    }
    let own = std::process::id().to_string();
    let has_us = |group: &PathBuf| {
        read(group.join("cgroup.procs"))
            .lines()
            .any(|pid| pid == own)
    };
    tops.into_iter().map(|top| top.join(inside)).find(has_us)
}

/// (root inside the hierarchy, mount point) of the mounts of a controller of version 1, or of version 2.
fn mounts(mountinfo: &str, controller: Option<&str>) -> Vec<(PathBuf, PathBuf)> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (root, mount) = (left.next()?, left.next()?);
            let mut right = right.split(' ');
            let (kind, options) = (right.next()?, right.nth(1)?);
            let matches = match controller {
                None => kind == "cgroup2",
                Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
            };
            matches.then(|| (root.into(), mount.into()))
        })
        .collect()
}

/// Where a group's files lie, for the system whose files lie under `root`.
pub fn directory(root: &Path, group: &Path) -> PathBuf {
    root.join(group.strip_prefix("/").unwrap_or(group))
}

/// Whether a cgroup gives us a part of the processors' time alone: who uses it up is stopped for a while.
pub fn has_processor_quota() -> bool {
    has_quota(Path::new("/"))
}

/// The same for the system whose files lie under `root`.
fn has_quota(root: &Path) -> bool {
    let quota = |group: PathBuf| {
        let dir = directory(root, &group);
        // In version 2 "QUOTA PERIOD" or "max PERIOD", in version 1 -1 where there is none.
        let texts = ["cpu.max", "cpu.cfs_quota_us"].map(|file| read(dir.join(file)));
        let first = |text: &String| text.split_whitespace().next()?.parse::<u64>().ok();
        texts.iter().any(|text| first(text).is_some())
    };
    own_groups(root, PROCESSORS).into_iter().any(quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_groups_and_their_parents() {
        let mounts = "30 25 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n\
                      31 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let found = groups(MEMORY, "4:memory:/a/b\n3:cpu:/c\n0::/\n", mounts);
        let expected = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn a_mount_from_outside_of_the_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        for (group, process) in [("a/b", 1), ("a/ours/in", std::process::id()), ("c/ours", 2)] {
            fs::create_dir_all(mount.join(group)).unwrap();
            fs::write(
                mount.join(group).join("cgroup.procs"),
                format!("0\n{process}\n"),
            )
            .unwrap();
        }
        let mounts = format!(
            "30 25 0:27 /../.. {} rw - cgroup2 cgroup rw\n",
            mount.display()
        );
        let found = groups(MEMORY, "0::/in\n", &mounts);
        let expected = ["a/ours/in", "a/ours", "a", ""].map(|group| mount.join(group));
        assert_eq!(found.len(), expected.len());
        assert!(
            found
                .iter()
                .zip(&expected)
                .all(|(found, expected)| found == expected)
        );
        assert!(groups(MEMORY, "0::/elsewhere\n", &mounts).is_empty());
    }

    #[test]
    fn v2_in_a_container_that_sees_only_its_own_part() {
        let mounts = "30 25 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            groups(MEMORY, "0::/docker/x\n", mounts),
            [PathBuf::from("/sys/fs/cgroup")]
        );
        let namespaced = "30 25 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            groups(MEMORY, "0::/\n", namespaced),
            [PathBuf::from("/sys/fs/cgroup")]
        );
    }

    #[test]
    fn a_quota_of_processors_on_any_level() {
        let cases = [
            (
                "cgroup2",
                "0::/a/b\n",
                "rw",
                "cpu.max",
                "max 100000\n",
                "50000 100000\n",
            ),
            (
                "cgroup",
                "3:cpu,cpuacct:/a/b\n",
                "rw,cpu,cpuacct",
                "cpu.cfs_quota_us",
                "-1\n",
                "50000\n",
            ),
        ];
        for (kind, line, options, file, none, some) in cases {
            let root = tempfile::tempdir().unwrap();
            let put = |name: &str, text: &str| {
                let file = root.path().join(name);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            };
            put("proc/self/cgroup", line);
            let mounts = format!("30 25 0:27 / /cg rw - {kind} cgroup {options}\n");
            put("proc/self/mountinfo", &mounts);
            assert!(!has_quota(root.path()), "{kind}: no files");
            for dir in ["cg/a", "cg/a/b"] {
                put(&format!("{dir}/{file}"), none);
            }
            assert!(!has_quota(root.path()), "{kind}");
            put(&format!("cg/a/{file}"), some);
            assert!(has_quota(root.path()), "{kind}: above");
        }
    }
}
