//! Kills for memory by the system. They leave no word of their own: a program is gone with SIGKILL. The kernel counts
//! them for each memory cgroup, so a count that rose while the tree ran tells.

use crate::cgroups::{MEMORY, own_groups};
use crate::say;
use std::path::{Path, PathBuf};

/// Kills for memory in our memory cgroup so far.
pub struct SystemKills {
    group: Option<(PathBuf, u64)>,
}

impl SystemKills {
    /// From now on.
    pub fn begin() -> Self {
        Self::of(own_groups(Path::new("/"), MEMORY))
    }

    /// The same in the first of these groups that tells.
    fn of(groups: Vec<PathBuf>) -> Self {
        let told = |group: PathBuf| kills(&group).map(|count| (group, count));
        Self {
            group: groups.into_iter().find_map(told),
        }
    }

    /// Tells the user, if there were some since.
    pub fn tell(&self) {
        if let Some(told) = self.told() {
            say::line(&format!("ebb: {told}"));
        }
    }

    fn told(&self) -> Option<String> {
        let (group, before) = self.group.as_ref()?;
        let count = kills(group)?.checked_sub(*before)?;
        let processes = if count == 1 { "a process" } else { "processes" };
        (count > 0).then(|| {
            format!(
                "the system killed {processes} for memory in the memory cgroup {}: beside the budget, page cache, files in \
                 memory and the kernel's own memory count there; raise its limit, or give --memory less",
                group.display()
            )
        })
    }
}

/// As version 2 and version 1 tell it; none: the group does not.
fn kills(group: &Path) -> Option<u64> {
    ["memory.events", "memory.oom_control"]
        .iter()
        .find_map(|file| {
            let text = std::fs::read_to_string(group.join(file)).ok()?;
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            count?.trim().parse().ok()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_count_that_rises_is_told() {
        let group = tempfile::tempdir().unwrap();
        assert_eq!(kills(group.path()), None);
        let write = |file: &str, text: &str| fs::write(group.path().join(file), text).unwrap();
        write(
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        );
        let before = SystemKills::of(vec![group.path().into()]);
        assert_eq!(before.told(), None);
        write(
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        );
        assert!(
            before
                .told()
                .unwrap()
                .contains("killed a process for memory")
        );
        write("memory.events", "low 0\nmax 39\noom 22220\noom_kill 5\n");
        assert!(
            before
                .told()
                .unwrap()
                .contains("killed processes for memory")
        );
    }
}
