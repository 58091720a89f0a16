//! The effect of a fork on every part of the pager, in the child.
//!
//! | part | in the child |
//! |---|---|
//! | kernel | stacks, threads and the program's number become its own; descriptors are opened anew by its keeper |
//! | state: map, queue, pool split, pattern | copies of the parent's |
//! | state: ranges | what the program keeps from children goes; nothing is locked or registered |
//! | state: holders | copies; the thread that forked has another number |
//! | state: staging, parked faults, attempts | empty: they are the parent's threads' |
//! | faults that wait | none |
//! | state: charge | the copy that the tree made of the parent's |
//! | state: peer reclaim | nobody was asked: requests are the parent's |
//! | state: offer | a copy; it may be asked at once |
//! | state: protection, size of the tables | copies |
//! | process | none, until the child's keeper has taken over from the parent's |
//! | fork stage | nobody forks; the child is starting |
//! | vfork calls | nobody shares this memory yet; nothing is asked for |
//! | admission, transit | no thread waits |
//! | lifecycle | a copy; its keeper's descriptors are still to be opened |
//! | heap break, user changes, registration, shared pages | copies |
//! | swap space | a reader of the parent's clusters, with keys and a generation of its own |

use crate::fault::fault_service::FaultService;
use crate::map::ranges::InChild;
use crate::pager::Pager;
use crate::process::base::Locked;
use ebb_sys::paging::Kernel;
use ebb_tree::ChildSlot;

impl<K: Kernel> Pager<K> {
    /// Makes every part the child's own: see the table above. `slot` is the child's place in the tree, if
    /// the parent pages.
    pub fn reset_in_child(&'static self, mut locked: Locked, slot: Option<ChildSlot>) {
        self.reset_without_lock();
        self.fork.reset_in_child();
        // Locks on memory are not inherited.
        locked.ranges.change(0, usize::MAX, |a| a.locked = false);
        locked.holders.reset_in_child(self.kernel.thread());
        let Some(parent) = self.process() else {
            let gone = |r: &crate::map::ranges::Range| r.attributes.in_child.absent;
            let gone: Vec<_> = locked.ranges.all().filter(gone).collect();
            for range in gone {
                locked.ranges.remove(range.start, range.end);
            }
            self.fork.watch(None);
            return;
        };
        let slot = slot.expect("a process that pages forks with a place for its child");
        if !parent.member.child_started(slot) {
            let pid = self.kernel.process();
            self.base().kill(
                None,
                &format!(
                    "process {pid} lost its place in the tree while it was forked, and is ended"
                ),
            );
        }
        parent.swap.fork_child();
        parent.swap_space.generations.begin(parent.swap);
        locked.pages.reset_in_child();
        locked.parked.reset_in_child();
        locked.peer_reclaim.reset_in_child();
        locked.offer.reset_in_child();
        parent.pressure.reset_in_child();
        self.disinherit(&mut locked, parent);
        parent.swap_space.devices.rotate_keys(true);
        let charged = parent.member.own_charge();
        locked.charge.begins_with(charged as i64);
        locked
            .ranges
            .change(0, usize::MAX, |a| a.registered = false);
        self.inherit_process();
        self.fork.child_starts();
    }

    /// The same of the parts that need no lock.
    pub fn reset_without_lock(&'static self) {
        self.kernel.reset_in_child();
        self.vfork_calls.reset_in_child(&self.kernel);
        self.admission.reset_in_child();
        self.transit.reset_in_child();
        self.lifecycle.reset_in_child();
    }

    /// In a forked child: forgets the content of what the program wanted it to have no copy of.
    fn disinherit(&'static self, locked: &mut Locked, parent: &FaultService<K>) {
        let mut at = 0;
        while let Some(range) = locked.ranges.next(at, usize::MAX) {
            at = range.end;
            let kind = range.attributes.in_child;
            if kind == InChild::default() {
                continue;
            }
            locked
                .pages
                .forget(Some(parent.swap_here()), range.start, range.end);
            if kind.absent {
                locked.ranges.remove(range.start, range.end);
            }
        }
    }
}
