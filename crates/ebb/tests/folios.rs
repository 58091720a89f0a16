//! The mTHP test of the lab through the real pager, one mode of it: folios come, go and are
//! renewed on a nearly full device, and none is split.

mod common;

use common::{Under, cannot_page, ebb};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use std::time::Duration;

#[test]
fn folios_of_a_nearly_full_device_stay_whole() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let work = ["lab", "mthp", "--work", "default"];
    let job =
        Job::new(std::iter::once(ebb().as_os_str()).chain(work.iter().map(|word| word.as_ref())))
            .time_limit(Duration::from_secs(120));
    let swap = format!("{}:64M", dir.path().display());
    let managed = Under::budget(24 * MIB)
        .options(&["--pool", "none", "--swap", &swap])
        .run(&job);
    let run = &managed.run;
    // It checks every page itself before it ends.
    assert!(run.ok(), "{}: {}", run.ending(), run.stderr);
    let whole = managed.counter("swpout_4");
    assert!(whole > 1000, "{whole} folios: {}", managed.stats);
    assert_eq!(managed.counter("swpout_fallback_4"), 0, "{}", managed.stats);
    assert!(managed.counter("swpout_runs") >= whole, "{}", managed.stats);
}
