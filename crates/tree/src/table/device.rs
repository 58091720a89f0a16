//! A device's row in the table, and what each process says of its share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The tree's plan for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Pages go there.
    On,
    /// The same; every process that holds it says what it would want in order to leave.
    Asked,
    /// Its data moves elsewhere; then the device goes.
    Leaving,
}

impl DeviceState {
    /// Whether a removal is under way.
    pub fn is_to_go(self) -> bool {
        matches!(self, Self::Asked | Self::Leaving)
    }
}

/// A device as every member sees it. What it is like the supervisor says to each who asks: where data goes is no
/// matter of a table that all write.
#[repr(C)]
pub(crate) struct DeviceRow {
    /// 0: the row is free. Else four times the device's serial number, plus its [`DeviceState`].
    stamp: AtomicU64,
}

impl DeviceRow {
    /// The row's device by its serial number, and what becomes of it; none if it is free.
    pub fn device(&self) -> Option<(u64, DeviceState)> {
        let stamp = self.stamp.load(SeqCst);
        let state = match stamp & 3 {
            0 => DeviceState::On,
            1 => DeviceState::Asked,
            _ => DeviceState::Leaving,
        };
        (stamp != 0).then_some((stamp >> 2, state))
    }

    /// Fills a free row.
    pub fn fill(&self, serial: u64) {
        self.set_state(serial, DeviceState::On);
    }

    pub fn set_state(&self, serial: u64, state: DeviceState) {
        self.stamp.store(serial << 2 | state as u64, SeqCst);
    }

    /// Takes back the removal of this device, if one is under way; whether it was. Its leases are reopened first, by
    /// each who comes.
    pub fn stay(&self, serial: u64, reopen: impl FnOnce()) -> bool {
        let stamp = self.stamp.load(SeqCst);
        let goes = |(now, state): (u64, DeviceState)| now == serial && state.is_to_go();
        if !self.device().is_some_and(goes) {
            return false;
        }
        reopen();
        let on = serial << 2 | DeviceState::On as u64;
        let swapped = self.stamp.compare_exchange(stamp, on, SeqCst, SeqCst);
        swapped.is_ok()
    }

    pub fn clear(&self) {
        self.stamp.store(0, SeqCst);
    }
}

/// A process's share of a device, by its own word.
#[repr(C)]
pub(crate) struct Share {
    /// Slots in use, those of its forked relatives included that it reads.
    pub used: AtomicU32,
    /// Write errors that it met.
    pub errors: AtomicU32,
    /// The rest of its report. Bits 0..32: pages. 32..34: the [`Answer`] they belong to, if any. 34: it
    /// takes no room there any more, for errors. 35: it finds the file system there full. 36..: the change of the devices that it answers.
    said: AtomicU64,
}

/// What a process says of its share.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShareReport {
    /// Slots in use.
    pub used: u32,
    /// Write errors that it met.
    pub errors: u32,
    /// Flag: it takes no room there any more, for errors.
    pub out: bool,
    /// Flag: the file system there has no room.
    pub full: bool,
    /// The answer to being asked to leave, with the number of the last change of the devices that it has seen.
    pub answer: Option<(u64, Answer)>,
}

/// The answer of a process that is to leave a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Asked: so many pages would find no place in what is its own, its clusters on other devices
    /// and its memory. Nothing was moved.
    Wants(u32),
    /// This many pages have no place.
    NoRoom(u32),
    /// This many pages can be neither read nor written elsewhere.
    Stuck(u32),
}

impl Share {
    const OUT: u64 = 1 << 34;
    const FULL: u64 = 1 << 35;
    const CHANGE: u32 = 36;

    /// Notes what the process says.
    pub fn report(&self, said: ShareReport) {
        let (change, kind, pages) = match said.answer {
            None => (0, 0, 0),
            Some((change, Answer::Wants(pages))) => (change, 1, pages),
            Some((change, Answer::NoRoom(pages))) => (change, 2, pages),
            Some((change, Answer::Stuck(pages))) => (change, 3, pages),
        };
        self.used.store(said.used, Relaxed);
        self.errors.store(said.errors, Relaxed);
        let out = if said.out { Self::OUT } else { 0 };
        let full = if said.full { Self::FULL } else { 0 };
        let said = change << Self::CHANGE | full | out | kind << 32 | u64::from(pages);
        self.said.store(said, SeqCst);
    }

    /// Whether the process takes no room there any more.
    pub fn is_out(&self) -> bool {
        self.said.load(SeqCst) & Self::OUT != 0
    }

    /// Whether the process finds the file system there full.
    pub fn is_full(&self) -> bool {
        self.said.load(SeqCst) & Self::FULL != 0
    }

    /// The process's answer to a change of the devices, or to a later one.
    pub fn answer_to(&self, change: u64) -> Option<Answer> {
        let said = self.said.load(SeqCst);
        // Both modulo what fits: no answer lies half of that behind.
        let ahead = (said >> Self::CHANGE << Self::CHANGE).wrapping_sub(change << Self::CHANGE);
        let pages = said as u32;
        match said >> 32 & 3 {
            _ if ahead >> 63 == 1 => None,
            1 => Some(Answer::Wants(pages)),
            2 => Some(Answer::NoRoom(pages)),
            3 => Some(Answer::Stuck(pages)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, Table};

    #[test]
    fn a_row_tells_of_its_device() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let row = &table.devices[1];
        assert_eq!(row.device(), None);
        row.fill(7);
        assert_eq!(row.device(), Some((7, DeviceState::On)));
        for state in [DeviceState::Asked, DeviceState::Leaving] {
            row.set_state(7, state);
            assert_eq!(row.device(), Some((7, state)));
        }
        row.clear();
        assert_eq!(row.device(), None);
        assert_eq!(table.devices[0].device(), None);
    }

    #[test]
    fn a_share_carries_everything() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let share = &table.slots[0].shares[0];
        for (out, full) in [(false, true), (true, false)] {
            for answer in [Answer::Wants(4), Answer::NoRoom(5), Answer::Stuck(u32::MAX)] {
                for change in [1, 7, 1 << 29, u64::MAX] {
                    share.report(ShareReport {
                        used: 1,
                        errors: 2,
                        out,
                        full,
                        answer: Some((change, answer)),
                    });
                    assert_eq!((share.is_out(), share.is_full()), (out, full));
                    // Not to what came later.
                    for (asked, said) in [
                        (change - 1, Some(answer)),
                        (change, Some(answer)),
                        (change.wrapping_add(1), None),
                    ] {
                        assert_eq!(share.answer_to(asked), said, "{change} {asked}");
                    }
                }
            }
            share.report(ShareReport {
                out,
                ..ShareReport::default()
            });
            assert_eq!((share.is_out(), share.answer_to(0)), (out, None));
            assert!(!share.is_full());
        }
    }
}
