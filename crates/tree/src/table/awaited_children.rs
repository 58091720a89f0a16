//! For how long the helper of a program that has ended waits for children that take devices from it.
//!
//! A child that cannot reach the supervisor, in another network namespace say, takes devices and `/proc` from its
//! parent's helper before it pages. Meanwhile the dead program's memory stays, so nobody is waited for long:
//! ```text
//! born, and not served yet          CHILD
//! not known to be born              BIRTH: the program may have been killed before its fork
//! killed before it was served       not at all
//! ```

use super::{Named, SlotNumber, SlotState, Table, is_nobody};
use std::time::Duration;

/// For a child that is there.
pub const CHILD: Duration = Duration::from_secs(1);
/// For a child that may have been forked, and has not said so: it does so first thing.
const BIRTH: Duration = Duration::from_millis(100);

impl Table {
    /// How long the children of a slot's process may be waited for that have slots and are not served yet; none: there
    /// are none.
    pub fn waits_for_children(&self, parent: SlotNumber) -> Option<Duration> {
        let children = self.taken();
        let children = children
            .filter(|(_, word)| word.state == SlotState::Reserved && word.parent == Some(parent));
        let waits = children.filter_map(|(n, word)| match self.slot(n).named(word.taken) {
            Named::Unborn => Some(BIRTH),
            // A stranger's name says nothing.
            Named::Pid(pid) if is_nobody(pid) && !self.is_mixed() => None,
            _ => Some(CHILD),
        });
        waits.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Member;
    use crate::table::{Config, StateWord};

    /// Above any that the kernel gives.
    const NOBODY: u32 = 1 << 29;

    #[test]
    fn a_child_is_waited_for_from_its_birth_until_it_pages_or_dies() {
        let (table, _fd) = Table::create(1000, Config::default()).unwrap();
        table.arrive();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let member = Member::for_test(table, me);
        assert_eq!(table.waits_for_children(me), None);
        let child = member.reserve_child(100).unwrap();
        assert_eq!(table.waits_for_children(me), Some(BIRTH));
        let other = member.reserve_child(100).unwrap();
        member.child_forked(other, NOBODY);
        assert_eq!(table.waits_for_children(me), Some(BIRTH));
        member.child_forked(child, std::process::id());
        assert_eq!(table.waits_for_children(me), Some(CHILD));
        table.set_state(child.number(), StateWord::of(SlotState::Paging));
        assert_eq!(table.waits_for_children(me), None);
        assert_eq!(table.waits_for_children(child.number()), None);
    }
}
