//! Tasks of ours follow the program's changes of user.
//!
//! To the kernel, users and groups are each thread's own. libc's `setuid` and its kin change every thread
//! that libc knows; it knows none of ours (`task`). One that kept the program's former rights would be a
//! way back to them for whoever takes the program over, as both have one memory. So the thread that changed
//! says so, and goes on when all have followed.
//!
//! Protocol: [`changed`] writes down its caller's credentials and raises the count of changes. Each task of
//! ours that finds the count above the last change that it `followed` takes those credentials over, and
//! says so. It calls [`follow`] whenever it wakes. The change is `over` when all have.
//!
//! Numbers of users and groups are those of a user namespace, and a program may make one of its own (`unshare`), where
//! tasks of ours are not. So each reads who the changed thread is in `/proc`, which has the numbers of its reader. What
//! the thread found itself to be serves where that cannot be read.
//!
//! Capabilities follow where the program keeps them across a change of user, as `setpriv` and container runtimes do:
//! its groups are changed by them later. A task of ours uses what it was left, and then has no more than its program.
//! Where that keeps none, the system takes them from tasks of ours as it does from the program.
//!
//! Not here: other attributes of a single thread that libc leaves alone (capabilities dropped by hand, seccomp
//! filters).

use crate::Errno;
use crate::kernel::signal::Blocked;
use crate::kernel::tasks::{REGISTRY, TASKS, helper_lives};
use crate::kernel::{clock, futex, raw};
use crate::memory;
use crate::proc::{self, Ids};
use crate::process::{program, thread};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    set_capabilities, set_keep_capabilities,
};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst,
};
use std::time::{Duration, Instant};

/// Real, effective and saved.
type Three = [AtomicU32; 3];

/// Credentials that tasks of ours follow.
struct Changes {
    /// The number of changes of credentials.
    count: AtomicU32,
    /// The last change that all have followed.
    over: AtomicU32,
    /// The last change that the task of a number has followed.
    followed: [AtomicU32; TASKS],
    /// The thread that changed.
    thread: AtomicU32,
    /// The inode of its user namespace; 0: not known.
    namespace: AtomicU64,
    /// Numbers in the user namespace of the program.
    users: Three,
    groups: Three,
    /// Supplementary groups; behind them room for as many, as they are called in the namespace of tasks of ours.
    list: AtomicPtr<AtomicU32>,
    listed: AtomicUsize,
    /// Flag: the program kept capabilities once.
    keeps: AtomicBool,
    /// The thread's capabilities, if they are kept: effective and permitted.
    effective: AtomicU64,
    permitted: AtomicU64,
    /// The error by which a task could not follow; 0: none.
    refused: AtomicI32,
    /// The process one of whose threads changes credentials now; 0: none. In a forked child the parent's
    /// number means nobody.
    holder: AtomicU32,
}

/// One for the process, as its credentials are.
static CHANGES: Changes = Changes {
    count: AtomicU32::new(0),
    over: AtomicU32::new(0),
    followed: [const { AtomicU32::new(0) }; TASKS],
    thread: AtomicU32::new(0),
    namespace: AtomicU64::new(0),
    users: [const { AtomicU32::new(0) }; 3],
    groups: [const { AtomicU32::new(0) }; 3],
    list: AtomicPtr::new(std::ptr::null_mut()),
    listed: AtomicUsize::new(0),
    keeps: AtomicBool::new(false),
    effective: AtomicU64::new(0),
    permitted: AtomicU64::new(0),
    refused: AtomicI32::new(0),
    holder: AtomicU32::new(0),
};

/// A thread that does not follow in this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// The real, effective and saved user of the calling thread. By the system calls, here and below: other libraries
/// stand before libc's, and have answers of their own (fakeroot).
pub fn users() -> [u32; 3] {
    three_of(libc::SYS_getresuid)
}

/// Calls `f` as a user that the calling thread can become again, with all capabilities that it then has; as who it is,
/// if it is that user or cannot become it. Others look at who opens and connects, and take no notice of what a process
/// may become.
///
/// # Panics
/// The thread cannot become again who it was.
pub fn as_user<T>(user: u32, f: impl FnOnce() -> T) -> T {
    let [_, effective, _] = users();
    let sets = capabilities(None).ok().filter(|_| can_become(user));
    let is_dumpable = control(libc::PR_GET_DUMPABLE, 0) == Ok(1);
    let Some(sets) = sets.filter(|_| become_effective(user).is_ok()) else {
        return f();
    };
    let result = f();
    // The system takes capabilities away as a thread ceases to be root.
    let again = become_effective(effective).is_ok() && set_capabilities(None, sets).is_ok();
    // It also takes back what the program may have said of its memory, which is the process's.
    if is_dumpable {
        let _ = control(libc::PR_SET_DUMPABLE, 1);
    }
    assert!(
        again,
        "a thread of ours keeps rights that its program gave up"
    );
    result
}

/// A call of prctl(2).
fn control(option: c_int, value: c_long) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { raw::checked(libc::SYS_prctl, [option.into(), value, 0, 0, 0, 0]) }
}

/// The effective user of the calling thread alone.
fn become_effective(user: u32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    unsafe { raw::checked(libc::SYS_setresuid, [-1, user.into(), -1, 0, 0, 0]) }.map(|_| ())
}

/// Whether the calling thread is another user, and can become this one again.
pub fn can_become(user: u32) -> bool {
    let [real, effective, saved] = users();
    effective != user && [real, saved].contains(&user)
}

/// Users or groups, by a call that writes three of them.
fn three_of(number: c_long) -> [u32; 3] {
    let mut ids = [0u32; 3];
    let [a, b, c] = &mut ids;
    let args = [a, b, c].map(|id| &raw mut *id as c_long);
    // SAFETY: writes three words that are there.
    unsafe { raw::call(number, [args[0], args[1], args[2], 0, 0, 0]) };
    ids
}

/// Writes the calling thread's groups to `list`, where so many have room; with none, how many there are.
fn groups_into(list: usize, room: usize) -> usize {
    // SAFETY: the callers' memory holds so many.
    let got = unsafe {
        raw::checked(
            libc::SYS_getgroups,
            [room as c_long, list as c_long, 0, 0, 0, 0],
        )
    };
    got.unwrap_or(0)
}

/// The calling thread, of the program, is another user or in other groups by now. Returns when
/// threads of ours are, too; `nudge` wakes those that sleep.
///
/// # Errors
/// Why one of them may have the former rights still: the process must end.
pub fn changed(nudge: impl Fn()) -> Result<(), String> {
    if !helper_lives() {
        return Ok(());
    }
    // A handler may touch paged memory, which is served by threads that map memory too, and may change the user.
    let _blocked = Blocked::all();
    let _exclusive = Exclusive::wait();
    let (users, groups) = (users(), three_of(libc::SYS_getresgid));
    let count = groups_into(0, 0);
    let bytes = memory::page_up(2 * count.max(1) * size_of::<libc::gid_t>());
    let list =
        memory::reserve(bytes).map_err(|e| format!("no memory for its {count} groups: {e}"))?;
    if groups_into(list, count) != count {
        return Err("its groups changed while they were read".into());
    }
    for i in 0..3 {
        CHANGES.users[i].store(users[i], SeqCst);
        CHANGES.groups[i].store(groups[i], SeqCst);
    }
    note_capabilities();
    CHANGES.thread.store(thread::id(), SeqCst);
    CHANGES.list.store(list as *mut AtomicU32, SeqCst);
    CHANGES.listed.store(count, SeqCst);
    let change = CHANGES.count.fetch_add(1, SeqCst) + 1;
    let begin = Instant::now();
    // A helper that ends meanwhile has no rights any more.
    let follows = |number: usize| CHANGES.followed[number].load(SeqCst) == change;
    // Asked anew after each: the first starts the others, and follows after that.
    let all = || REGISTRY.living().all(follows);
    while helper_lives() && !all() {
        if begin.elapsed() > PATIENCE {
            let late: Vec<usize> = REGISTRY.living().filter(|&n| !follows(n)).collect();
            return Err(format!(
                "threads {late:?} that serve its memory did not follow within {} s",
                PATIENCE.as_secs()
            ));
        }
        futex::wake(&CHANGES.count, i32::MAX, false);
        nudge();
        clock::sleep(Duration::from_micros(100));
    }
    CHANGES.over.store(change, SeqCst);
    // SAFETY: nobody reads the list any more.
    let _ = unsafe { memory::release(list, bytes) };
    match CHANGES.refused.load(SeqCst) {
        0 => Ok(()),
        error => Err(format!(
            "a thread that serves its memory may not follow: {}",
            Errno(error)
        )),
    }
}

/// Notes the caller's capabilities, if it keeps any across a change of user, or once did.
fn note_capabilities() {
    let keeps = CapabilitiesSecureBits::KEEP_CAPS | CapabilitiesSecureBits::NO_SETUID_FIXUP;
    if capabilities_secure_bits().is_ok_and(|bits| bits.intersects(keeps)) {
        CHANGES.keeps.store(true, SeqCst);
    }
    if CHANGES.keeps.load(SeqCst)
        && let Ok(sets) = capabilities(None)
    {
        CHANGES.effective.store(sets.effective.bits(), SeqCst);
        CHANGES.permitted.store(sets.permitted.bits(), SeqCst);
        let namespace = proc::user_namespace().unwrap_or(0);
        CHANGES.namespace.store(namespace, SeqCst);
    }
}

/// On a thread of ours: becomes who the program has become. Whether others may have to as well.
#[inline]
pub fn follow() -> bool {
    let count = CHANGES.count.load(SeqCst);
    if count != 0 {
        follow_now();
    }
    count != CHANGES.over.load(SeqCst)
}

#[cold]
fn follow_now() {
    let Some(number) = REGISTRY.number() else {
        return;
    };
    let change = CHANGES.count.load(SeqCst);
    if CHANGES.followed[number].load(SeqCst) == change {
        return;
    }
    let told = ProgramIs::told();
    let seen = told.seen();
    let program = seen.unwrap_or(told);
    let became = if CHANGES.keeps.load(SeqCst) {
        // Capabilities of another user namespace are none here, though it may have the same numbers.
        let same = match CHANGES.namespace.load(SeqCst) {
            0 => seen.is_none_or(|seen| seen.ids == told.ids),
            namespace => proc::user_namespace() == Some(namespace),
        };
        become_with_capabilities(program, same)
    } else {
        become_by_all_capabilities(program)
    };
    if let Err(Errno(error)) = became {
        CHANGES.refused.store(error, SeqCst);
    }
    CHANGES.followed[number].store(change, SeqCst);
}

/// Who the program has become.
#[derive(Clone, Copy)]
struct ProgramIs {
    ids: Ids,
    /// Supplementary groups.
    list: &'static [AtomicU32],
}

impl ProgramIs {
    /// As its thread was told, in the numbers of its user namespace.
    fn told() -> Self {
        let three = |ids: &Three| ids.each_ref().map(|id| id.load(SeqCst));
        let (list, count) = (CHANGES.list.load(SeqCst), CHANGES.listed.load(SeqCst));
        Self {
            ids: Ids {
                users: three(&CHANGES.users),
                groups: three(&CHANGES.groups),
            },
            // SAFETY: the list holds so many until the calling task has said that it followed, and is used no more.
            list: unsafe { std::slice::from_raw_parts(list, count) },
        }
    }

    /// As the calling task sees it; none where `/proc` does not tell.
    fn seen(&self) -> Option<Self> {
        let pid = program::pid();
        // That of another PID namespace has other processes under these numbers.
        let target = proc::pidfd_target(program::pidfd()?).ok()?;
        if target.pid != pid {
            return None;
        }
        // SAFETY: behind the list there is room for as many. Tasks of ours write the same there.
        let room = unsafe {
            let end = self.list.as_ptr().add(self.list.len());
            std::slice::from_raw_parts(end, self.list.len())
        };
        let mut places = room.iter();
        let listed = |group| {
            if let Some(place) = places.next() {
                place.store(group, SeqCst);
            }
        };
        let ids = proc::ids_of(pid, CHANGES.thread.load(SeqCst), listed).ok()?;
        let list = &room[..room.len() - places.len()];
        Some(Self { ids, list })
    }

    /// The calling thread has these users and groups.
    fn become_it(self) -> Result<(), Errno> {
        let three = |[a, b, c]: [u32; 3]| [a.into(), b.into(), c.into(), 0, 0, 0];
        let (list, count) = (self.list.as_ptr(), self.list.len());
        let groups = [count as c_long, list as c_long, 0, 0, 0, 0];
        // The system calls themselves, which change this thread alone. Without the right to set groups it may have
        // those that it is to have. SAFETY: the list holds so many.
        unsafe {
            raw::checked(libc::SYS_setgroups, groups)
                .or_else(|refused| self.has_groups(refused))?;
            raw::checked(libc::SYS_setresgid, three(self.ids.groups))?;
            raw::checked(libc::SYS_setresuid, three(self.ids.users))?;
        }
        Ok(())
    }

    /// Whether the calling thread is in no group but those of the list; else it was `refused` to leave one.
    fn has_groups(self, refused: Errno) -> Result<usize, Errno> {
        let count = groups_into(0, 0);
        let bytes = memory::page_up(count.max(1) * size_of::<libc::gid_t>());
        let own = memory::reserve(bytes)?;
        let got = groups_into(own, count);
        // SAFETY: so many were written there.
        let own_groups = unsafe { std::slice::from_raw_parts(own as *const libc::gid_t, count) };
        let listed = |group: &u32| self.list.iter().any(|other| other.load(SeqCst) == *group);
        let has = got == count && own_groups.iter().all(listed);
        // SAFETY: nobody reads it any more.
        unsafe { memory::release(own, bytes) }?;
        if has { Ok(0) } else { Err(refused) }
    }
}

/// By all capabilities that this thread was left: the program may have raised one for the change that it had not when
/// this thread was made.
fn become_by_all_capabilities(program: ProgramIs) -> Result<(), Errno> {
    let Ok(before) = capabilities(None) else {
        return program.become_it();
    };
    let set = |now: CapabilitySets, effective| {
        if now.effective != effective {
            let _ = set_capabilities(None, CapabilitySets { effective, ..now });
        }
    };
    let is_root = || rustix::process::geteuid().is_root();
    let was_root = is_root();
    set(before, before.permitted);
    program.become_it()?;
    // A thread that becomes root, or ceases to be, has what the system gives or takes, as the program has.
    if is_root() == was_root
        && let Ok(left) = capabilities(None)
    {
        set(left, before.effective & left.permitted);
    }
    Ok(())
}

/// The same, by all capabilities that this thread was left; it keeps those that the program has, if they are `same` in
/// this thread's user namespace.
fn become_with_capabilities(program: ProgramIs, same: bool) -> Result<(), Errno> {
    let error = |e: rustix::io::Errno| Errno(e.raw_os_error());
    let mut sets = capabilities(None).map_err(error)?;
    sets.effective = sets.permitted;
    set_capabilities(None, sets).map_err(error)?;
    // Refused where the program locked it: then it is as the program has it.
    let _ = set_keep_capabilities(true);
    program.become_it()?;
    let left = capabilities(None).map_err(error)?.permitted;
    let of_program = |word: &AtomicU64| match same {
        true => CapabilitySet::from_bits_retain(word.load(SeqCst)) & left,
        false => CapabilitySet::empty(),
    };
    sets.effective = of_program(&CHANGES.effective);
    sets.permitted = of_program(&CHANGES.permitted);
    set_capabilities(None, sets).map_err(error)
}

/// A task of `number` is who the calling one is, by which it is started; the first is who the program's
/// thread was.
pub(crate) fn started(number: usize) {
    let creator = REGISTRY.number().filter(|creator| *creator != number);
    let count = CHANGES.count.load(SeqCst);
    if creator.is_none() {
        // In a forked child nobody is left who would say so.
        CHANGES.over.store(count, SeqCst);
    }
    let followed = creator.map_or(count, |n| CHANGES.followed[n].load(SeqCst));
    CHANGES.followed[number].store(followed, SeqCst);
}

/// Held by one thread of the process at a time.
struct Exclusive;

impl Exclusive {
    fn wait() -> Self {
        let own = std::process::id();
        loop {
            let holder = CHANGES.holder.load(SeqCst);
            if holder != own
                && CHANGES
                    .holder
                    .compare_exchange(holder, own, SeqCst, SeqCst)
                    .is_ok()
            {
                return Self;
            }
            clock::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        CHANGES.holder.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process may be looked at by its user before and after.
    #[test]
    fn being_another_user_for_a_while_leaves_the_process_as_it_was() {
        const SOMEBODY: u32 = 65534;
        if users() != [0; 3] {
            return println!("skipped: not root");
        }
        let seen = std::thread::spawn(|| {
            become_effective(SOMEBODY).unwrap();
            control(libc::PR_SET_DUMPABLE, 1).unwrap();
            let user = as_user(0, || users()[1]);
            let seen = (user, users()[1], control(libc::PR_GET_DUMPABLE, 0));
            become_effective(0).unwrap();
            control(libc::PR_SET_DUMPABLE, 1).unwrap();
            seen
        });
        assert_eq!(seen.join().unwrap(), (0, SOMEBODY, Ok(1)));
    }
}
