//! Tasks of ours follow the program's changes of user.
//!
//! To the kernel, users and groups are each thread's own. libc's `setuid` and its kin have every
//! thread change that libc knows, and it knows none of ours (`task`). One that kept the program's former
//! rights would be a way back to them for whoever takes the program over, as both have one memory. So the
//! thread that changed says so, and goes on when all have followed.
//!
//! Protocol: [`changed`] writes down what its caller is now and raises `CHANGES`; each task of ours
//! that finds it above what it has `FOLLOWED` becomes the same, and says so. It calls
//! [`follow`] whenever it wakes.
//!
//! What it does not do: what else is a thread's own and libc leaves so (capabilities set by hand,
//! seccomp filters).

use crate::task::{self, TASKS};
use crate::{futex, memory};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How often users were changed.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// Up to which change the thread of a number has followed.
static FOLLOWED: [AtomicU32; TASKS] = [const { AtomicU32::new(0) }; TASKS];

type Three = [AtomicU32; 3];
/// Real, effective and saved.
static USERS: Three = [const { AtomicU32::new(0) }; 3];
static GROUPS: Three = [const { AtomicU32::new(0) }; 3];
/// Supplementary groups.
static LIST: AtomicPtr<libc::gid_t> = AtomicPtr::new(std::ptr::null_mut());
static LISTED: AtomicUsize = AtomicUsize::new(0);

/// A thread that does not follow in this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// The calling thread, of the program, is another user or in other groups by now. Returns when
/// threads of ours are, too; `nudge` wakes those that sleep. One that cannot ends the process.
pub fn changed(nudge: impl Fn()) {
    if !task::helper_lives() {
        return;
    }
    let _one = One::wait();
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
    let Ok(list) = memory::reserve(bytes) else {
        abort();
    };
    // SAFETY: the map holds that many.
    if unsafe { libc::getgroups(count as i32, list as *mut libc::gid_t) } != count as i32 {
        abort();
    }
    for i in 0..3 {
        USERS[i].store(users[i], SeqCst);
        GROUPS[i].store(groups[i], SeqCst);
    }
    LIST.store(list as *mut libc::gid_t, SeqCst);
    LISTED.store(count, SeqCst);
    let change = CHANGES.fetch_add(1, SeqCst) + 1;
    let begin = Instant::now();
    // A helper that ends meanwhile has no rights any more.
    let follows = |number: usize| FOLLOWED[number].load(SeqCst) == change;
    // Asked anew after each: the first starts the others, and follows after that.
    let all = || {
        (0..TASKS)
            .take_while(|&number| number < task::started())
            .all(follows)
    };
    while task::helper_lives() && !all() {
        if begin.elapsed() > PATIENCE {
            abort();
        }
        futex::wake(&CHANGES, i32::MAX, false);
        nudge();
        std::thread::sleep(Duration::from_micros(100));
    }
    // SAFETY: nobody reads the list any more.
    let _ = unsafe { memory::munmap(list, bytes) };
}

/// On a thread of ours: becomes who the program has become.
#[inline]
pub fn follow() {
    if CHANGES.load(SeqCst) != 0 {
        follow_now();
    }
}

#[cold]
fn follow_now() {
    let Some(number) = task::number() else {
        return;
    };
    let change = CHANGES.load(SeqCst);
    if FOLLOWED[number].load(SeqCst) == change {
        return;
    }
    let [u, v, w] = USERS.each_ref().map(|id| id.load(SeqCst));
    let [g, h, i] = GROUPS.each_ref().map(|id| id.load(SeqCst));
    let (list, count) = (LIST.load(SeqCst), LISTED.load(SeqCst));
    // The system calls themselves, which change this thread alone. Who may not set groups had the
    // right no more before, and they are the same.
    // SAFETY: the list holds so many until this thread has said that it followed.
    let followed = unsafe {
        libc::syscall(libc::SYS_setgroups, count, list);
        libc::syscall(libc::SYS_setresgid, g, h, i) == 0
            && libc::syscall(libc::SYS_setresuid, u, v, w) == 0
    };
    if !followed {
        abort();
    }
    FOLLOWED[number].store(change, SeqCst);
}

/// A task of `number` is who the calling one is, by which it is started; the first is who the program's
/// thread was.
pub(crate) fn started(number: usize) {
    let creator = task::number().filter(|creator| *creator != number);
    let followed = creator.map_or(CHANGES.load(SeqCst), |n| FOLLOWED[n].load(SeqCst));
    FOLLOWED[number].store(followed, SeqCst);
}

/// One thread at a time. A holder in the process that forked this one is none here.
struct One;

static HOLDER: AtomicU32 = AtomicU32::new(0);

impl One {
    fn wait() -> Self {
        let own = std::process::id();
        loop {
            let holder = HOLDER.load(SeqCst);
            if holder != own && HOLDER.compare_exchange(holder, own, SeqCst, SeqCst).is_ok() {
                return Self;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        HOLDER.store(0, SeqCst);
    }
}

fn abort() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
