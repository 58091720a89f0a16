//! Burial: once the supervisor is gone, members take back what forked children had that are dead.
//!
//! # How a death is known
//! By the number that the slot is named with (`Slot::named`), for which the kernel knows no
//! process. Numbers mean something within one PID namespace only. So the table says in which one
//! it was made, and once a process of another has come to the tree ([`Table::arrive`]) nobody
//! buries any more. Each process that can name a slot, or bury, has arrived before; so who finds a
//! name that a stranger wrote finds the flag too, if it looks at the name first.
//!
//! # Who buries
//! Whoever writes itself into the slot's `burier`, where there was nobody, or one that is dead
//! itself. Until the slot is free its state and name stay as they were, so that the next can do it
//! all again if the burier dies in the midst of it: each step does nothing where it was done.
//!
//! # What stays taken for ever
//! - Slots that nobody named: those of processes that are no fork of another's.
//! - All of them in a tree of several PID namespaces.
//! - Slots whose number, or whose dead burier's, lives on as another process's, as long as it does.
//! - Slots in a tree with a device of which no member that is left holds the leases: it is not
//!   known which clusters there the dead have, and the next of that slot's name would have them.
//! - What a burier had taken out of one sum and not yet out of the other when it was killed
//!   (`charge`): too much stays charged, never too little.

use crate::member::Member;
use crate::table::{Named, SlotNumber, StateWord, Table};
use ebb_sys::proc;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::Ordering::*;

/// Whether there is no process of this number, as this process's PID namespace has it.
fn is_dead(number: u32) -> bool {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

impl Table {
    /// This process comes to the tree: by joining, or in a reserved slot. Before it is named
    /// anywhere. One system call, and nothing is allocated.
    pub fn arrive(&self) {
        self.arrive_from(proc::pid_namespace().ok());
    }

    /// 0 in the table: not even its maker could tell.
    fn arrive_from(&self, namespace: Option<u64>) {
        let home = self.namespace.load(SeqCst);
        if home == 0 || namespace != Some(home) {
            self.mixed.store(1, SeqCst);
        }
    }

    /// Whether processes of several PID namespaces are, or were, in the tree.
    fn is_mixed(&self) -> bool {
        self.mixed.load(SeqCst) != 0
    }

    /// Makes process `me` the one who buries the process of a slot, which is dead and was seen in
    /// this state; false if another does or did.
    fn claim(&self, n: SlotNumber, seen: StateWord, me: u32) -> bool {
        let claim = |pid: u32| (seen.taken as u64) << 32 | pid as u64;
        let burier = &self.slot(n).burier;
        let before = burier.load(SeqCst);
        let other = before as u32;
        if other != 0 && before == claim(other) && !is_dead(other) {
            return false;
        }
        // Not ours if the other was done before it died: what is in the word now says nothing of
        // the slot's next process.
        let swapped = burier.compare_exchange(before, claim(me), SeqCst, SeqCst);
        swapped.is_ok() && self.state(n) == seen
    }
}

impl Member {
    /// Does for forked children what the supervisor, which is gone, did: takes back the slots,
    /// charges and leases of those that are dead. Any number of members may do so at a time, each
    /// on the thread that attaches devices. Nothing is done in a tree of several PID namespaces, nor
    /// by a member that does not hold every device of the tree; what else stays taken, the module
    /// `burial` says.
    pub fn bury_dead(&self) {
        let table = self.table;
        if table.is_mixed() || !self.held.is_all_of(&table.devices) {
            return;
        }
        for (n, word) in table.taken() {
            let named = table.slot(n).named(word.taken);
            let helper = table.slot(n).helper(word.taken);
            if n == self.slot()
                || !matches!(named, Named::Pid(pid) if is_dead(pid))
                // It may be in the midst of writing to a device.
                || helper.is_some_and(|pid| !is_dead(pid))
                // It may be a stranger's name.
                || table.is_mixed()
                || !table.claim(n, word, self.program_pid())
            {
                continue;
            }
            self.bury(n);
        }
    }

    /// The leases first, and the slot last: who takes it next has a clean one.
    fn bury(&self, n: SlotNumber) {
        self.held.each(|leases| {
            leases.reap(n.index());
        });
        self.table.slot(n).family.store(0, SeqCst);
        self.table.clear_charges(Some(self.slot()), n);
        self.table.set_state(n, StateWord::FREE);
        self.table.feed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Leases;
    use crate::table::{Config, SlotState, create_leases};
    use std::sync::atomic::AtomicU64;

    /// Above any that the kernel gives.
    const NOBODY: u32 = i32::MAX as u32;
    const SERIAL: u64 = 7;

    /// A member with 100 pages and one device, and its forked child, which is dead: the same 100
    /// pages, and a cluster more of its own.
    struct Grave {
        member: Member,
        dead: SlotNumber,
        leases: Leases<'static>,
    }

    impl Grave {
        fn new() -> Self {
            let (table, _fd) = Table::create(1000, Config::default()).unwrap();
            table.arrive();
            let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
            let member = Member::for_test(table, me);
            let (leases, _fd) = create_leases(10).unwrap();
            table.devices[2].fill(SERIAL, [0; 3], None, 10);
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
            let grave = Self {
                member,
                dead,
                leases,
            };
            grave.assert_kept();
            grave
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
        fn assert_buried(&self) {
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
    fn the_dead_are_buried_and_the_living_are_not() {
        let grave = Grave::new();
        let living = grave.member.reserve_child(100).unwrap();
        grave.member.child_forked(living, std::process::id());
        let nameless = grave.member.reserve_child(100).unwrap();
        grave.member.child_forked(nameless, 0);
        grave.member.bury_dead();
        for child in [living, nameless] {
            let state = grave.member.table.state(child.number()).state;
            assert_eq!(state, SlotState::Reserved);
            grave.member.cancel_child(child);
        }
        grave.assert_buried();
    }

    #[test]
    fn nobody_is_buried_while_its_helper_lives() {
        let grave = Grave::new();
        let (slot, taken) = (grave.member.table.slot(grave.dead), grave.word().taken);
        slot.name_helper(taken, std::process::id());
        grave.member.bury_dead();
        grave.assert_kept();
        slot.name_helper(taken, NOBODY);
        grave.member.bury_dead();
        grave.assert_buried();
    }

    #[test]
    fn nobody_buries_where_numbers_are_of_several_namespaces() {
        let ours = proc::pid_namespace().unwrap();
        let shown = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(shown.to_str(), Some(&*format!("pid:[{ours}]")));
        for stranger in [Some(ours + 1), None] {
            let grave = Grave::new();
            let table = grave.member.table;
            table.arrive_from(Some(ours));
            assert!(!table.is_mixed());
            table.arrive_from(stranger);
            // It stays so when more of ours come.
            table.arrive_from(Some(ours));
            grave.member.bury_dead();
            grave.assert_kept();
        }
        // A maker that could not tell.
        let grave = Grave::new();
        grave.member.table.namespace.store(0, SeqCst);
        grave.member.table.arrive();
        grave.member.bury_dead();
        grave.assert_kept();
    }

    #[test]
    fn a_burial_whose_burier_died_is_finished_by_the_next() {
        for steps in 0..4 {
            let grave = Grave::new();
            let table = grave.member.table;
            assert!(table.claim(grave.dead, grave.word(), NOBODY));
            if steps > 0 {
                grave.leases.reap(grave.dead.index());
            }
            if steps > 1 {
                table.slot(grave.dead).family.store(0, SeqCst);
            }
            if steps > 2 {
                table.clear_charges(Some(grave.member.slot()), grave.dead);
            }
            grave.member.bury_dead();
            grave.assert_buried();
        }
    }

    #[test]
    fn one_buries_at_a_time() {
        let grave = Grave::new();
        let (table, word) = (grave.member.table, grave.word());
        assert!(table.claim(grave.dead, word, std::process::id()));
        assert!(!table.claim(grave.dead, word, NOBODY));
        grave.member.bury_dead();
        grave.assert_kept();

        // Who saw the slot before it was freed, and taken again, does not bury the next one.
        grave.member.bury(grave.dead);
        assert!(!table.claim(grave.dead, word, NOBODY), "free");
        let next = table.take_slot(StateWord::reserved(None, false));
        assert_eq!(next, Some(grave.dead));
        assert!(!table.claim(grave.dead, word, std::process::id()), "late");
        // And does not keep others from burying that.
        let next = grave.word();
        assert!(table.claim(grave.dead, next, std::process::id()));
    }

    #[test]
    fn nothing_is_freed_while_leases_are_out_of_reach() {
        let grave = Grave::new();
        let row = &grave.member.table.devices[5];
        row.fill(SERIAL + 1, [0; 3], None, 10);
        grave.member.bury_dead();
        grave.assert_kept();
        // Nor where the leases held in that row are of another device.
        grave.member.held.hold(5, SERIAL + 2, grave.leases);
        grave.member.bury_dead();
        grave.assert_kept();
        row.clear();
        grave.member.bury_dead();
        grave.assert_buried();
    }
}
