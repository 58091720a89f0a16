//! Which container this is, as far as the way to `/dev/userfaultfd`, or away from the kernel's swap, depends on it.

use std::fs::read_to_string;
use std::path::Path;

/// Who gives a container its devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Container {
    /// The node, by a plugin.
    Kubernetes,
    /// Docker, Podman, or what starts containers as they do.
    Engine,
    /// LXC, systemd-nspawn, or what only shows by its filter of system calls.
    Other,
}

impl Container {
    /// The one that this process is in; `refused`: userfaultfd(2) failed with EPERM.
    pub fn here(refused: bool) -> Option<Self> {
        // Not each of these files may be read.
        let file = |path: &str| {
            let there = Path::new(path).exists();
            there.then(|| read_to_string(path).unwrap_or_default())
        };
        container(|name| std::env::var(name).ok(), file, refused)
    }

    /// What opens the device to it.
    pub fn fix(self) -> &'static str {
        match self {
            Self::Kubernetes => {
                "offer /dev/userfaultfd to pods by a device plugin, and request it in the pod's limits: \
                 examples/kubernetes has both"
            }
            Self::Engine => {
                "start the container with `--device /dev/userfaultfd` (its seccomp profile blocks the system call, \
                 not the device)"
            }
            Self::Other => {
                "give the container the host's /dev/userfaultfd, to read and write: \
                 systemd-nspawn `--bind=/dev/userfaultfd --property=DeviceAllow=\"/dev/userfaultfd rw\"`, \
                 LXC `lxc.mount.entry` and `lxc.cgroup2.devices.allow`, containerd `--device /dev/userfaultfd`"
            }
        }
    }

    /// What forbids the kernel's swap to it.
    pub fn without_swap(self) -> &'static str {
        match self {
            Self::Kubernetes => {
                "give the pod's containers limits of memory and processors that equal their requests: pods of the class \
                 Guaranteed do not swap"
            }
            Self::Engine => {
                "start the container with `--memory SIZE --memory-swap SIZE`, the same SIZE twice"
            }
            Self::Other => {
                "forbid swap to the container: systemd-nspawn `--property=MemorySwapMax=0`, LXC \
                 `lxc.cgroup2.memory.swap.max = 0`"
            }
        }
    }
}

/// By variables of the environment, by the text of files that are there, and see [`Container::here`].
fn container(
    variable: impl Fn(&str) -> Option<String>,
    file: impl Fn(&str) -> Option<String>,
    refused: bool,
) -> Option<Container> {
    let kind = variable("container").or_else(|| file("/run/systemd/container"));
    let kind = kind.as_deref().map_or("", str::trim);
    let by_engine = |path: &str| file(path).is_some();
    let is_filtered = |status: String| {
        let mut modes = status
            .lines()
            .filter_map(|line| line.strip_prefix("Seccomp:"));
        modes.any(|mode| mode.trim() == "2")
    };
    if variable("KUBERNETES_SERVICE_HOST").is_some() {
        Some(Container::Kubernetes)
    } else if ["/.dockerenv", "/run/.containerenv"]
        .into_iter()
        .any(by_engine)
    {
        Some(Container::Engine)
    } else {
        match kind {
            "docker" | "podman" | "oci" => Some(Container::Engine),
            // A machine with a kernel of its own.
            "wsl" => None,
            "" if !(refused && file("/proc/self/status").is_some_and(is_filtered)) => None,
            _ => Some(Container::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Texts<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn containers_show_by_the_environment_by_files_and_by_their_filter() {
        use Container::{Engine, Kubernetes, Other};
        const POD: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        const DOCKER: (&str, &str) = ("/.dockerenv", "");
        const PODMAN: (&str, &str) = ("/run/.containerenv", "");
        const FREE: (&str, &str) = ("/proc/self/status", "Name:\tebb\nSeccomp:\t0\n");
        const FILTERED: (&str, &str) = (
            "/proc/self/status",
            "Name:\tebb\nSeccomp:\t2\nSeccomp_filters:\t1\n",
        );
        const NSPAWN: (&str, &str) = ("/run/systemd/container", "systemd-nspawn\n");
        const WSL: (&str, &str) = ("/run/systemd/container", "wsl");
        let cases: [(Texts, Texts, bool, Option<Container>); 13] = [
            (&[], &[FREE], true, None),
            (&[POD], &[FREE], true, Some(Kubernetes)),
            (&[POD], &[DOCKER, FILTERED], true, Some(Kubernetes)),
            (&[], &[DOCKER, FREE], true, Some(Engine)),
            (&[], &[PODMAN, FILTERED], true, Some(Engine)),
            (&[("container", "podman")], &[FREE], true, Some(Engine)),
            (&[("container", "lxc")], &[FREE], true, Some(Other)),
            (&[], &[NSPAWN], false, Some(Other)),
            (&[], &[WSL, FREE], true, None),
            (&[], &[FILTERED], true, Some(Other)),
            (&[], &[FILTERED], false, None),
            (&[("container", "")], &[], true, None),
            (&[], &[], true, None),
        ];
        let of = |texts: Texts, name: &str| {
            let mut texts = texts.iter();
            texts.find_map(|(known, text)| (*known == name).then(|| (*text).to_owned()))
        };
        for (variables, files, refused, expected) in cases {
            let found = container(|name| of(variables, name), |path| of(files, path), refused);
            assert_eq!(found, expected, "{variables:?} {files:?} {refused}");
        }
    }
}
