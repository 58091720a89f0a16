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
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, capabilities, capabilities_secure_bits,
    set_capabilities, set_keep_capabilities,
};
use std::ffi::c_long;
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
    users: Three,
    groups: Three,
    /// Supplementary groups.
    list: AtomicPtr<libc::gid_t>,
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
    let (mut users, mut groups) = ([0; 3], [0; 3]);
    let ([a, b, c], [d, e, f]) = (&mut users, &mut groups);
    // SAFETY: each writes three words that are there.
    unsafe {
        libc::getresuid(a, b, c);
        libc::getresgid(d, e, f);
    }
    // SAFETY: asks for their number alone.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) }.max(0) as usize;
    let bytes = memory::page_up(count.max(1) * size_of::<libc::gid_t>());
    let list =
        memory::reserve(bytes).map_err(|e| format!("no memory for its {count} groups: {e}"))?;
    // SAFETY: the map holds that many.
    if unsafe { libc::getgroups(count as i32, list as *mut libc::gid_t) } != count as i32 {
        return Err("its groups changed while they were read".into());
    }
    for i in 0..3 {
        CHANGES.users[i].store(users[i], SeqCst);
        CHANGES.groups[i].store(groups[i], SeqCst);
    }
    note_capabilities();
    CHANGES.list.store(list as *mut libc::gid_t, SeqCst);
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
    let became = if CHANGES.keeps.load(SeqCst) {
        become_with_capabilities()
    } else {
        become_program()
    };
    if let Err(Errno(error)) = became {
        CHANGES.refused.store(error, SeqCst);
    }
    CHANGES.followed[number].store(change, SeqCst);
}

/// The calling thread has the users and groups of the program.
fn become_program() -> Result<(), Errno> {
    let [u, v, w] = CHANGES.users.each_ref().map(|id| id.load(SeqCst));
    let [g, h, i] = CHANGES.groups.each_ref().map(|id| id.load(SeqCst));
    let (list, count) = (CHANGES.list.load(SeqCst), CHANGES.listed.load(SeqCst));
    let ids = |a: u32, b: u32, c: u32| [a.into(), b.into(), c.into(), 0, 0, 0];
    let groups = [count as c_long, list as c_long, 0, 0, 0, 0];
    // The system calls themselves, which change this thread alone. A thread without the right to set
    // groups had none before, so its groups are the same. SAFETY: the list holds so many until this thread
    // has said that it followed.
    unsafe {
        raw::call(libc::SYS_setgroups, groups);
        raw::checked(libc::SYS_setresgid, ids(g, h, i))?;
        raw::checked(libc::SYS_setresuid, ids(u, v, w))?;
    }
    Ok(())
}

/// The same, by all capabilities that this thread was left; it keeps those that the program has.
fn become_with_capabilities() -> Result<(), Errno> {
    let error = |e: rustix::io::Errno| Errno(e.raw_os_error());
    let mut sets = capabilities(None).map_err(error)?;
    sets.effective = sets.permitted;
    set_capabilities(None, sets).map_err(error)?;
    // Refused where the program locked it: then it is as the program has it.
    let _ = set_keep_capabilities(true);
    become_program()?;
    let left = capabilities(None).map_err(error)?.permitted;
    let of_program = |word: &AtomicU64| CapabilitySet::from_bits_retain(word.load(SeqCst)) & left;
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
