//! Threads, time and chance for the kernel in memory: [`SimThreads`].

use crate::chance::Rate;
use crate::life;
use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Key, MAX_SHARED, Role};
use ebb_memory_kernel::frames::Sharers;
use ebb_memory_kernel::threads::{Call, Disturbance, Event, Threads};
use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Time};
use ebb_sys::program::Gone;
use ebb_sys::thread::Urgency;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// How often a call is disturbed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disturbances {
    /// Transfers that stop short.
    pub partial: Rate,
    /// Moves that are to be tried again.
    pub again: Rate,
    /// Pages that are in use for a moment.
    pub busy: Rate,
    /// Pages that the system does not have.
    pub no_page: Rate,
    /// Mappings that it does not make.
    pub no_mapping: Rate,
    /// Faults that come in another order.
    pub order: Rate,
}

impl Disturbances {
    fn rate(&self, disturbance: Disturbance) -> Rate {
        match disturbance {
            Disturbance::Partial => self.partial,
            Disturbance::Again => self.again,
            Disturbance::Busy => self.busy,
            Disturbance::NoPage => self.no_page,
            Disturbance::NoMapping => self.no_mapping,
            Disturbance::Order => self.order,
        }
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub struct SimThreads {
    /// The rate at which calls are disturbed.
    pub disturbances: Disturbances,
    /// Counts of mappings of pages, in shared memory.
    pub counts: &'static [AtomicU32],
    /// Flag: idle work may become other work.
    pub is_privileged: bool,
}

/// Nanoseconds between two looks at the clock. A thread that finds no victim looks often whether its time is over, and
/// its other work takes no time here.
const LOOK_AT_CLOCK: u64 = 2_000;

/// Calls that look at pages in order to take them, by a move or by a copy after which they are dropped, and those that do.
const ASK: [Call; 6] = [
    Call::IsRegistered,
    Call::Move,
    Call::Protect,
    Call::ReadMemory,
    Call::Madvise,
    Call::DropPages,
];

const _: () = assert!(MAX_SHARED.is_power_of_two());

/// A thread that sleeps is woken late, as on a busy machine. So those that wait for memory in vain do not try too often.
fn late(time: Duration) -> Duration {
    time * (1 + world().below(20)) as u32
}

fn key_of(event: Event) -> Key {
    match event {
        Event::Fault => Key::Fault,
        Event::Page(thread) => Key::Page(thread),
    }
}

fn name_of(call: Call) -> &'static str {
    match call {
        Call::ReadFaults => "read",
        Call::HasFaults => "poll",
        Call::Register => "register",
        Call::Unregister => "unregister",
        Call::Copy => "copy",
        Call::Move => "move",
        Call::Protect => "protect",
        Call::IsRegistered => "is_registered",
        Call::Wake => "wake",
        Call::Poison => "poison",
        Call::Look => "look",
        Call::Scan => "scan",
        Call::Shared => "shared",
        Call::ReadMemory => "read_memory",
        Call::Mmap => "mmap",
        Call::Munmap => "munmap",
        Call::Mremap => "mremap",
        Call::Mprotect => "mprotect",
        Call::Madvise => "madvise",
        Call::Brk => "brk",
        Call::Mlock => "mlock",
        Call::Munlock => "munlock",
        Call::DropPages => "drop",
        Call::GiveBack => "give_back",
        Call::WriteMemory => "write_memory",
        Call::Touch => "touch",
    }
}

impl Threads for SimThreads {
    fn now(&self) -> Time {
        let world = world();
        world.now.set(world.now.get() + LOOK_AT_CLOCK);
        Duration::from_nanos(world.now.get())
    }
    fn sleep(&self, time: Duration) {
        scheduler().wait(Key::Never, Some(late(time)));
    }
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        scheduler().step("wait", [u64::from(seen), 0]);
        if word.load(SeqCst) == seen {
            scheduler().wait(Key::Word(word.as_ptr().addr()), timeout);
        }
    }
    fn wake_word(&self, word: &AtomicU32, count: i32) {
        scheduler().step("wake_word", [0, 0]);
        scheduler().wake(Key::Word(word.as_ptr().addr()), count);
    }
    fn wait_for_news(
        &self,
        seen: u32,
        timeout: Duration,
        mut wait: impl FnMut(Duration) -> u32,
    ) -> u32 {
        scheduler().step("news", [u64::from(seen), 0]);
        // Shorter pauses are not told from waits within a turn, and not counted.
        if scheduler().me().role.get() == Role::Keeper && timeout >= Duration::from_millis(10) {
            life::keeper_turns();
        }
        let mut now = seen;
        scheduler().looks(Key::News, late(timeout), || {
            now = wait(Duration::ZERO);
            now != seen
        });
        now
    }
    fn wait_event(&self, event: Event, timeout: Option<Duration>) -> bool {
        scheduler().wait(key_of(event), timeout)
    }
    fn notify(&self, event: Event) {
        scheduler().wake(key_of(event), i32::MAX);
    }
    fn switch(&self, call: Call, about: [u64; 2]) {
        if self.is_own_thread() && about[0] != 0 {
            world().near.set(about[0] as usize);
        }
        if scheduler().is_inside() {
            scheduler().me().asked.set(ASK.contains(&call));
        }
        scheduler().step(name_of(call), about);
    }
    fn answered(&self, call: Call, answer: u64) {
        if call == Call::ReadFaults {
            world().faults.set(world().faults.get() + answer);
        }
        world().note(What::Answer, name_of(call), [answer, 0]);
    }
    fn strikes(&self, disturbance: Disturbance, call: Call) -> bool {
        let strikes = world().goes_wrong(self.disturbances.rate(disturbance));
        if strikes {
            // Faults in another order are nothing that is done again, and come all the time.
            if disturbance != Disturbance::Order {
                scheduler().is_tense();
            }
            world().note(What::Struck, name_of(call), [disturbance as u64, 0]);
        }
        strikes
    }
    fn below(&self, limit: usize) -> usize {
        world().below(limit)
    }
    fn can_wait(&self) -> bool {
        true
    }
    fn thread(&self) -> u32 {
        match scheduler().is_inside() {
            true => scheduler().me().id.get(),
            false => 0,
        }
    }
    fn process(&self) -> u32 {
        match scheduler().is_inside() && scheduler().me().child.get() != 0 {
            true => scheduler().me().child.get(),
            false => 1000 + u32::from(scheduler().process()),
        }
    }
    fn is_own_thread(&self) -> bool {
        !scheduler().is_inside() || scheduler().me().role.get() != Role::Program
    }
    fn masks_signals(&self, masks: bool) {
        if scheduler().is_inside() {
            scheduler().mask_signals(masks);
        }
    }
    fn cpu(&self) -> usize {
        match scheduler().is_inside() {
            true => usize::from(scheduler().me().cpu.get()),
            false => 0,
        }
    }
    fn cpu_of(&self, thread: u32) -> Option<usize> {
        let tasks = world().there();
        let task = tasks.iter().find(|task| task.id.get() == thread)?;
        Some(usize::from(task.cpu.get()))
    }
    fn processors(&self) -> usize {
        2
    }
    fn spawn(&self, entry: Entry, index: usize) -> Result<u32, Errno> {
        let id = scheduler().spawn(Role::Service, move || entry(index));
        Ok(id)
    }
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> bool {
        let process = scheduler().process();
        let mut tasks = world().there().iter();
        let task = match thread {
            0 => Some(scheduler().me()),
            _ => tasks.find(|t| t.id.get() == thread && t.process.get() == process),
        };
        let Some(task) = task else { return false };
        let idle = urgency == Urgency::Idle;
        let permitted = idle || !task.idle.get() || self.is_privileged;
        if permitted {
            task.idle.set(idle);
        }
        permitted
    }
    fn end_thread(&self) -> ! {
        scheduler().leave()
    }
    fn start_helper(&self, entry: Entry) -> Result<(), Errno> {
        life::this().served.set(true);
        scheduler().spawn(Role::Keeper, move || entry(0));
        Ok(())
    }
    fn helper_lives(&self) -> bool {
        life::this().has_helper(scheduler().image())
    }
    fn end_helper(&self) -> ! {
        life::end_helper()
    }
    fn program_is_gone(&self) -> Option<Gone> {
        life::program_is_gone()
    }
    fn kill_program(&self) {
        life::killed_by_pager();
    }
    fn die(&self) -> ! {
        life::killed_by_pager();
        scheduler().leave()
    }
    fn say(&self, line: &[u8]) {
        world().note(What::Do, "says", [line.len() as u64, 0]);
    }
    fn sharers(&self) -> Option<Sharers> {
        Some(Sharers {
            counts: self.counts,
            next: &world().next_shared,
        })
    }
}
