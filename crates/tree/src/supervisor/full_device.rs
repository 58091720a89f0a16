//! When the user is told that the file system of a swap device is full: once it has been so for a moment, and again
//! only after it had room for longer. A program that writes there now and then would else fill standard error.
//!
//! Not here: who says that it is full (the processes that write there), what the user is told (`devices`).

use std::time::{Duration, Instant};

/// How long a device is full before the user is told: room that comes back at once is nobody's concern.
const PERSISTS: Duration = Duration::from_secs(1);
/// How long it has room before the next time is another one.
const ANOTHER: Duration = Duration::from_secs(30);

/// What was seen and told of one device.
#[derive(Default)]
pub(super) struct FullDevice {
    /// The time when it became full, if it is.
    since: Option<Instant>,
    /// The time when it was last seen full.
    last: Option<Instant>,
    /// Flag: the user knows.
    told: bool,
}

impl FullDevice {
    /// Whether the user is to be told now.
    pub fn saw(&mut self, is_full: bool, now: Instant) -> bool {
        if !is_full {
            self.since = None;
            let lately = |last: Instant| now.saturating_duration_since(last) < ANOTHER;
            self.told &= self.last.is_some_and(lately);
            return false;
        }
        self.last = Some(now);
        let since = *self.since.get_or_insert(now);
        let persists = now.saturating_duration_since(since) >= PERSISTS;
        let tells = persists && !self.told;
        self.told |= tells;
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_told_once_each_time_that_it_lasts() {
        let mut device = FullDevice::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for tenth in 0..2000 {
            let is_full = match tenth {
                // Moments, then for a while with and without gaps, and once more much later.
                0..100 => tenth % 10 < 5,
                100..200 => true,
                200..300 => tenth % 20 != 0,
                _ => tenth >= 1000,
            };
            let now = start + Duration::from_millis(100) * tenth;
            if device.saw(is_full, now) {
                told.push(tenth);
            }
        }
        assert_eq!(told, [110, 1010]);
    }
}
