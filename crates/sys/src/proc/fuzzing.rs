//! Entry point of the fuzz target of `/proc` texts (`fuzz/`). Built with `--cfg fuzzing` alone.

use super::pidfd::PidfdTarget;
use super::stat::{Disposition, Rollup, Stat, Statm, users};
use super::touched::Sums;

/// A text as each of the files.
pub fn texts(text: &[u8]) {
    let _ = Stat::parse(text).map(|stat| (stat.is_dead(), stat.image.is_some()));
    let _ = Statm::parse(text).map(|statm| statm.anonymous());
    let _ = Rollup::parse(text).map(|rollup| rollup.shared_away());
    let _ = users(text);
    let _ = PidfdTarget::parse(text);
    let mut sums = Sums::default();
    sums.text(text);
    let _ = sums.end();
    for signal in [i32::MIN, -1, 0, 1, 15, 64, 65, i32::MAX] {
        let _ = Disposition::parse(text, signal);
    }
}
