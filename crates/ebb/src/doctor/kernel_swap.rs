//! The kernel's own swap beside ours. Where the kernel swaps the pages that are moved out of a program, UFFDIO_MOVE
//! races with it on kernels without the repair of CVE-2025-38242: a page may be lost, or be given twice. No program
//! is started there. No interface tells whether a kernel has the repair, so its version decides.
//!
//! Does not see swap that is turned on later.

use super::check::{Check, Verdict};
use super::container::Container;
use std::fs::read_to_string;
use std::path::Path;

/// The kernels that have the repair.
const REPAIRED: &str = "Linux 6.12.37 (of 6.12) or 6.16 or newer";

/// The facts on which it depends.
struct Facts {
    /// The release, as in `uname -r`.
    kernel: String,
    /// Flag: the kernel has swap.
    on: bool,
    /// Flag: a control group forbids swap to this process.
    forbidden: bool,
    /// The container that this is.
    container: Option<Container>,
}

/// The check.
pub fn kernel_swap() -> Check {
    judge(&Facts {
        kernel: super::kernel(),
        on: !ebb_stores::active_swaps().is_empty(),
        forbidden: forbidden(Path::new("/sys/fs/cgroup")),
        container: Container::here(false),
    })
}

fn judge(facts: &Facts) -> Check {
    const NAME: &str = "kernel-swap";
    if !facts.on {
        return Check::ok(NAME, "off");
    }
    if facts.forbidden {
        return Check::ok(NAME, "on, but forbidden to this control group");
    }
    if is_repaired(&facts.kernel) {
        return Check::ok(NAME, "on; this kernel moves pages safely beside it");
    }
    let detail = format!(
        "on, and moving pages beside it may lose some (CVE-2025-38242, kernel {})",
        facts.kernel
    );
    Check::not(NAME, Verdict::Missing, detail, fix(facts.container))
}

/// What can be done about it from here: a container has neither the host's kernel nor its swap in hand.
fn fix(container: Option<Container>) -> String {
    match container {
        Some(container) => format!(
            "{}; or have its host run {REPAIRED}",
            container.without_swap()
        ),
        None => format!(
            "run {REPAIRED}; or as root `swapoff -a`; or forbid swap to the command alone: \
             `systemd-run --user --scope -p MemorySwapMax=0 ebb run ...`"
        ),
    }
}

/// Whether a kernel of this release has the repair of CVE-2025-38242.
fn is_repaired(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    let (series, patch) = ((next(), next()), next());
    series >= (6, 16) || series == (6, 12) && patch >= 37
}

/// Whether memory.swap.max of this process's group, or of one above it, is 0.
fn forbidden(top: &Path) -> bool {
    let text = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return false;
    };
    top.join(path)
        .ancestors()
        .take_while(|dir| dir.starts_with(top))
        .any(|dir| read_to_string(dir.join("memory.swap.max")).is_ok_and(|text| text.trim() == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_beside_a_kernel_that_loses_pages_is_refused() {
        let judge = |kernel: &str, on: bool, forbidden: bool| {
            judge(&Facts {
                kernel: kernel.into(),
                on,
                forbidden,
                container: None,
            })
            .verdict
        };
        let losing = [
            "6.8.0-45-generic",
            "6.11.0",
            "6.12.36",
            "6.12.0-55.el10.x86_64",
            "6.13.12",
            "6.15.2",
        ];
        for kernel in losing {
            assert_eq!(judge(kernel, true, false), Verdict::Missing, "{kernel}");
            assert_eq!(judge(kernel, true, true), Verdict::Ok, "{kernel}");
            assert_eq!(judge(kernel, false, false), Verdict::Ok, "{kernel}");
        }
        for kernel in [
            "6.12.37",
            "6.12.117+deb12-cloud-amd64",
            "6.16.0",
            "6.18.44",
            "7.3.4+deb13",
        ] {
            assert_eq!(judge(kernel, true, false), Verdict::Ok, "{kernel}");
        }
    }

    #[test]
    fn the_refusal_names_a_step_that_can_be_taken_there() {
        use Container::{Engine, Kubernetes, Other};
        let of = |container| {
            let facts = Facts {
                kernel: "6.12.36".into(),
                on: true,
                forbidden: false,
                container,
            };
            judge(&facts).fix.unwrap()
        };
        for (container, step) in [
            (None, "systemd-run --user --scope -p MemorySwapMax=0"),
            (Some(Engine), "--memory SIZE --memory-swap SIZE"),
            (Some(Kubernetes), "Guaranteed"),
            (Some(Other), "lxc.cgroup2.memory.swap.max = 0"),
        ] {
            let fix = of(container);
            assert!(fix.contains(step), "{container:?}: {fix}");
            assert_eq!(fix.contains("swapoff"), container.is_none(), "{fix}");
        }
    }
}
