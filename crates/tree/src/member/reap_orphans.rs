//! Without a supervisor, members take back the slots, charges and leases of dead forked children.
//!
//! # How a death is known
//! The kernel knows no process of the number that names the slot (`Slot::named`). Numbers mean
//! something within one PID namespace only. The table says in which namespace it was made. Once a
//! process of another namespace has come to the tree ([`Table::arrive`]) no member reaps any more.
//! Each process arrives before it names a slot or reaps. So a member that looks at the name first,
//! and at the flag after it, never takes a foreign name for one of its own namespace.
//!
//! # When
//! While there is a supervisor it alone reaps: it may know of the same death, and would take the slot's next life
//! for it. A member that cannot reach it knows it from the table ([`Table::is_supervised`]). A dead process stays
//! dead, and no other follows a supervisor than its copy, which stands in the table before the supervisor ends.
//!
//! # Who reaps
//! A member reaps a slot once it has written itself into the slot's `reaper`, which was empty or
//! named a dead process. State and name of the slot stay as they were until it is freed, and each
//! step does nothing where it was done. So the next reaper can repeat all of it if this one dies.
//!
//! # What stays taken for ever
//! - Slots without a name: those of processes that no member forked.
//! - All slots of a tree with several PID namespaces.
//! - Slots whose number, or whose dead reaper's number, another process has, as long as it lives. All slots, while
//!   another has the supervisor's number.
//! - Slots of a tree with a device whose leases no living member holds. The dead child's clusters there are
//!   not known, and the next process in that slot would own them.
//! - Charges that a killed reaper had taken out of one sum and not yet out of the other (`charge`), and credit that
//!   the next one takes again. Too much stays charged, never too little.

use super::Member;
use crate::table::{Named, SlotNumber, StateWord, Table, is_nobody as is_dead};
use std::sync::atomic::Ordering::*;

impl Table {
    /// Makes process `me`, the caller, the reaper of a slot whose process is dead, and whose state was `seen`.
    /// False: another process reaps it, or did.
    fn claim(&self, n: SlotNumber, seen: StateWord, me: u32) -> bool {
        let claim = |pid: u32| (seen.taken as u64) << 32 | pid as u64;
        let reaper = &self.slot(n).reaper;
        let before = reaper.load(SeqCst);
        let other = before as u32;
        if other != 0 && before == claim(other) && !is_dead(other) {
            return false;
        }
        // Not ours if the other was done before it died: what is in the word now says nothing of
        // the slot's next process.
        let swapped = reaper.compare_exchange(before, claim(me), SeqCst, SeqCst);
        swapped.is_ok() && self.state(n) == seen
    }
}

impl Member {
    /// Takes back the slots, charges and leases of dead forked children, once the supervisor is
    /// gone. Any number of members may do so at a time, each on the thread that attaches devices.
    /// Nothing is done while the supervisor lives, whether or not this process can reach it. Nor is it in a tree of
    /// several PID namespaces, or by a member that does not hold every device. The module `reap_orphans` lists what
    /// else stays taken.
    pub fn reap_dead(&self) {
        let table = self.table;
        // Numbers mean something in a tree of one namespace alone.
        if table.is_mixed() || !self.held.is_all_of(&table.devices) || table.is_supervised() {
            return;
        }
        for (n, word) in table.taken() {
            let named = table.slot(n).named(word.taken);
            let helper = table.slot(n).helper(word.taken);
            if n == self.slot()
                || !matches!(named, Named::Pid(pid) if is_dead(pid))
                // It may be in the midst of writing to a device.
                || !matches!(helper, Named::Unborn)
                    && !matches!(helper, Named::Pid(pid) if is_dead(pid))
                // It may be a stranger's name.
                || table.is_mixed()
                // Named by the task that does it: a helper goes on when its program is dead.
                || !table.claim(n, word, std::process::id())
            {
                continue;
            }
            self.reap_slot(n);
        }
    }

    /// The leases first, and the slot last: who takes it next has a clean one.
    fn reap_slot(&self, n: SlotNumber) {
        self.held.each(|leases| {
            leases.reap(n.index());
        });
        self.lose_credit(n);
        self.table.slot(n).family.store(0, SeqCst);
        self.table.clear_charges(Some(self.slot()), n);
        self.table.set_state(n, StateWord::FREE);
        self.table.wake_waiters();
    }

    /// Pages that relatives shared with the dead process alone are theirs to pay for. Nobody measures which those are,
    /// so all of its uncredited charge is assumed. Done twice, it takes too much credit.
    fn lose_credit(&self, dead: SlotNumber) {
        let slot = self.table.slot(dead);
        let (charged, credit) = (slot.charged.load(SeqCst), slot.credit.load(SeqCst));
        let others = self.table.relatives(dead).filter(|&n| n != dead);
        self.table.bracketed(self.slot(), || {
            self.table
                .take_credit(others, charged.saturating_sub(credit))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Leases;
    use crate::table::{Config, SlotState, create_leases};
    use ebb_sys::proc;
    use std::sync::atomic::AtomicU64;

    /// Above any that the kernel gives.
    const NOBODY: u32 = i32::MAX as u32;
    const SERIAL: u64 = 7;

    /// A member with 100 pages and one device, and its forked child, which is dead: the same 100
    /// pages, and a cluster more of its own.
    struct DeadChild {
        member: Member,
        dead: SlotNumber,
        leases: Leases<'static>,
    }

    impl DeadChild {
        fn new() -> Self {
            let (table, _fd) = Table::create(1000, Config::default()).unwrap();
            table.arrive();
            let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
            let member = Member::for_test(table, me);
            let (leases, _fd) = create_leases(10).unwrap();
            table.devices[2].fill(SERIAL);
            member.held.hold(2, SERIAL, leases);
            assert!(table.try_charge(me, 100));
            let acquire = |who: SlotNumber| {
                let vain = AtomicU64::new(u64::MAX);
                leases.acquire(who.index(), &vain).unwrap();
            };
            acquire(me);

            let child = member.reserve_child(0).unwrap();
            let dead = child.number();
            member.child_forked(child, NOBODY);
            acquire(dead);
            let fixture = Self {
                member,
                dead,
                leases,
            };
            fixture.assert_kept();
            fixture
        }

        fn has(&self) -> (i64, bool, u64, bool) {
            let table = self.member.table;
            assert_eq!(table.drift(), Some(0));
            (
                table.charged.0.load(SeqCst),
                table.state(self.dead).state == SlotState::Free,
                self.leases.free(),
                self.leases.has_readers(0, self.member.slot().index()),
            )
        }

        #[track_caller]
        fn assert_kept(&self) {
            assert_eq!(self.has(), (200, false, 8, true));
        }

        #[track_caller]
        fn assert_reaped(&self) {
            assert_eq!(self.has(), (100, true, 9, false));
            let live = |n| self.member.table.state(SlotNumber(n as u16)).state != SlotState::Free;
            self.leases.check(live).unwrap();
            assert_eq!(self.member.table.limit.0.load(SeqCst), 1000);
        }

        fn word(&self) -> StateWord {
            self.member.table.state(self.dead)
        }
    }

    #[test]
    fn what_a_child_reads_is_no_room_until_it_is_reaped() {
        let fixture = DeadChild::new();
        let (leases, me) = (fixture.leases, fixture.member.slot().index());
        assert_eq!((leases.free(), leases.takeable()), (8, 8));
        assert!(leases.release(me, 0));
        assert_eq!((leases.free(), leases.takeable()), (9, 8));
        fixture.member.reap_dead();
        assert_eq!((leases.free(), leases.takeable()), (10, 10));
    }

    #[test]
    fn dead_children_are_reaped_and_living_ones_are_not() {
        let fixture = DeadChild::new();
        let living = fixture.member.reserve_child(100).unwrap();
        fixture.member.child_forked(living, std::process::id());
        let nameless = fixture.member.reserve_child(100).unwrap();
        fixture.member.child_forked(nameless, 0);
        fixture.member.reap_dead();
        for child in [living, nameless] {
            let state = fixture.member.table.state(child.number()).state;
            assert_eq!(state, SlotState::Reserved);
            fixture.member.cancel_child(child);
        }
        fixture.assert_reaped();
    }

    #[test]
    fn no_member_reaps_beside_a_supervisor() {
        let fixture = DeadChild::new();
        let table = fixture.member.table;
        table.supervised_by(std::process::id());
        assert!(!fixture.member.supervised(), "it has no connection");
        fixture.member.reap_dead();
        fixture.assert_kept();
        table.supervised_by(NOBODY);
        fixture.member.reap_dead();
        fixture.assert_reaped();
    }

    #[test]
    fn no_child_is_reaped_while_its_helper_lives() {
        let fixture = DeadChild::new();
        let (slot, taken) = (
            fixture.member.table.slot(fixture.dead),
            fixture.word().taken,
        );
        slot.name_helper(taken, Named::Pid(std::process::id()));
        fixture.member.reap_dead();
        fixture.assert_kept();
        // Who has that number elsewhere is not known.
        slot.name_helper(taken, Named::Foreign(NOBODY - 1));
        fixture.member.reap_dead();
        fixture.assert_kept();
        slot.name_helper(taken, Named::Pid(NOBODY));
        fixture.member.reap_dead();
        fixture.assert_reaped();
    }

    #[test]
    fn no_member_reaps_across_pid_namespaces() {
        let ours = proc::pid_namespace().unwrap();
        let shown = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(shown.to_str(), Some(&*format!("pid:[{ours}]")));
        for stranger in [Some(ours + 1), None] {
            let fixture = DeadChild::new();
            let table = fixture.member.table;
            table.arrive_from(Some(ours));
            assert!(!table.is_mixed());
            table.arrive_from(stranger);
            // It stays so when more of ours come.
            table.arrive_from(Some(ours));
            fixture.member.reap_dead();
            fixture.assert_kept();
        }
        // A maker that could not tell.
        let fixture = DeadChild::new();
        fixture.member.table.namespace.store(0, SeqCst);
        fixture.member.table.arrive();
        fixture.member.reap_dead();
        fixture.assert_kept();
    }

    #[test]
    fn the_next_reaper_finishes_for_one_that_died() {
        for steps in 0..5 {
            let fixture = DeadChild::new();
            let table = fixture.member.table;
            assert!(table.claim(fixture.dead, fixture.word(), NOBODY));
            if steps > 0 {
                fixture.leases.reap(fixture.dead.index());
            }
            if steps > 1 {
                fixture.member.lose_credit(fixture.dead);
            }
            if steps > 2 {
                table.slot(fixture.dead).family.store(0, SeqCst);
            }
            if steps > 3 {
                table.clear_charges(Some(fixture.member.slot()), fixture.dead);
            }
            fixture.member.reap_dead();
            fixture.assert_reaped();
        }
    }

    /// Two children share pages with each other that their parent has copied. Their parent took credit of the first.
    #[test]
    fn pages_shared_with_a_dead_child_are_paid_for() {
        let (table, _fd) = Table::create(1000, Config::default()).unwrap();
        table.arrive();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let member = Member::for_test(table, me);
        table.slot(me).family.store(7, SeqCst);
        assert!(table.try_charge(me, 100));
        let fork = |pid| {
            let child = member.reserve_child(0).unwrap();
            member.child_forked(child, pid);
            child.number()
        };
        let (dead, living) = (fork(NOBODY), fork(std::process::id()));
        member.charge_forced(100);
        member.unshare(100, 0);
        let credit = |n| table.slot(n).credit.load(SeqCst);
        assert_eq!(table.in_use(), 200);
        assert_eq!((credit(dead), credit(living)), (0, 100));
        // The second reaper of a slot whose first died takes none that is not there.
        member.lose_credit(dead);
        member.reap_dead();
        assert_eq!(table.state(dead).state, SlotState::Free);
        assert_eq!((table.in_use(), credit(living)), (200, 0));
        member.reap_slot(living);
        assert_eq!((table.in_use(), table.drift()), (100, Some(0)));
    }

    #[test]
    fn one_member_reaps_at_a_time() {
        let fixture = DeadChild::new();
        let (table, word) = (fixture.member.table, fixture.word());
        assert!(table.claim(fixture.dead, word, std::process::id()));
        assert!(!table.claim(fixture.dead, word, NOBODY));
        fixture.member.reap_dead();
        fixture.assert_kept();

        // A member that saw the slot before it was freed and taken again does not reap the next child.
        fixture.member.reap_slot(fixture.dead);
        assert!(!table.claim(fixture.dead, word, NOBODY), "free");
        let next = table.take_slot(StateWord::reserved(None, false));
        assert_eq!(next, Some(fixture.dead));
        assert!(!table.claim(fixture.dead, word, std::process::id()), "late");
        // Nor does it keep others from reaping that one.
        let next = fixture.word();
        assert!(table.claim(fixture.dead, next, std::process::id()));
    }

    #[test]
    fn nothing_is_freed_while_leases_are_out_of_reach() {
        let fixture = DeadChild::new();
        let row = &fixture.member.table.devices[5];
        row.fill(SERIAL + 1);
        fixture.member.reap_dead();
        fixture.assert_kept();
        // Nor where the leases held in that row are of another device.
        fixture.member.held.hold(5, SERIAL + 2, fixture.leases);
        fixture.member.reap_dead();
        fixture.assert_kept();
        row.clear();
        fixture.member.reap_dead();
        fixture.assert_reaped();
    }
}
