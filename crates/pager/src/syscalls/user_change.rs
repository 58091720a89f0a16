//! A process that becomes another user, and what it keeps of the tree's.
//!
//! A worker that gives up root must not be a way to what root has, whoever takes it over. It has a copy of
//! its parent's memory, and the keys to what of it is on devices; it has no key to what others wrote, or
//! write later (`ebb_stores::keyring`). But a descriptor that writes a swap file writes anywhere in it. So
//! descriptors that only read take its place, before the program's code goes on as the new user.
//!
//! # Protocol
//! The program's thread, after the change: raises `CHANGES` and waits until the keeper, whose descriptors
//! they are, has [followed](follow). The keeper asks the supervisor for the devices again, which judges by the
//! process's real, effective and saved users ([`Member`]'s `attach`). Who can become the tree's user
//! again gets what it had. A process that does not get them is ended, but where there is no supervisor.
//!
//! What it does not do: take away what the process has in memory, table and leases of the tree among it;
//! with those it can hold up the tree, and have pages of others lost, but neither read nor change any.

use crate::process::paging::Process;
use ebb_sys::futex;
use ebb_tree::Member;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Changes by which the process may have given up the tree's user.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// Those that the keeper has acted upon.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);

/// The calling thread is another user by now, as are all others.
pub fn changed() {
    let Some(process) = Process::current() else {
        // If it is just being taken under management, the keeper looks first thing after that.
        CHANGES.fetch_add(1, SeqCst);
        return;
    };
    if is_of(process.member.user()) {
        return;
    }
    let change = CHANGES.fetch_add(1, SeqCst) + 1;
    loop {
        let followed = FOLLOWED.load(SeqCst);
        if followed.wrapping_sub(change) as i32 >= 0 {
            return;
        }
        process.member.wake_self();
        futex::wait(&FOLLOWED, followed, Some(Duration::from_millis(5)), false);
    }
}

/// Whether this user is among the thread's real, effective and saved ones.
fn is_of(user: u32) -> bool {
    let mut users = [0; 3];
    let [real, effective, saved] = &mut users;
    // SAFETY: writes three words that are there.
    unsafe { libc::getresuid(real, effective, saved) };
    users.contains(&user)
}

/// In the keeper of a process that pages.
pub fn follow(process: &Process) {
    let change = CHANGES.load(SeqCst);
    if FOLLOWED.load(SeqCst) == change {
        return;
    }
    let member: &Member = process.member;
    // Without a supervisor nobody gives others; it goes on with what it has, as the tree does.
    if let Err(why) = process.swap_space.devices.change_user(member)
        && member.supervised()
    {
        process.fail(&format!(
            "the process became another user and cannot give back the swap devices, so it is ended: {why}; \
             start `ebb run` as that user, or with --swap none"
        ));
    }
    FOLLOWED.store(change, SeqCst);
    futex::wake(&FOLLOWED, i32::MAX, false);
}
