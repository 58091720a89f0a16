//! Putting pages into place: the kernel fills new pages from a buffer.
//!
//! Moving frames that hold the data there would allocate nothing, but takes longer. A move has to forget the old
//! translation, with an interrupt to every other processor that runs the program. And filling a frame waits for
//! memory, while the buffer lies in the nearest cache. Measured: random touches in half the memory 4.0 µs by copy,
//! 5.1 by moves; in order no slower.
//!
//! The lock need not be held: pages in transit are the thread's that brings them. Waiting threads are woken by the
//! caller, or by the copy itself, which saves a system call. A woken thread takes the processor at once, so the rest
//! is done when it faults or waits again. The pages are in transit until then. Changes that the program makes
//! meanwhile without libc (mapping over, unmapping) are its wish, and counted.
//!
//! The system may have no page, although the budget has room. Mostly it ends somebody then, but a memory
//! cgroup can be told not to (`memory.oom_control`), and where it finds nobody whom it may end
//! (`oom_score_adj`) it refuses too. The keeper then gives up pages of ours, and others may; if that does
//! not help for long, the process is ended (`refused`).

use crate::fault::fault_service::FaultService;
use crate::map::page_map::PageNumber;
use crate::process::memory_ops::Waking;
use crate::process::memory_ops::Writes;
use crate::reclaim::memory_stall::GIVE_UP;
use ebb_engine::{PAGE_SIZE, PageBytes};
use ebb_sys::Errno;
use ebb_sys::paging::Kernel;
use ebb_sys::paging::Time;
use std::time::Duration;

/// How long a page is refused until others have to give some up for it.
const A_MOMENT: Duration = Duration::from_millis(1);

/// Refusals one after the other.
#[derive(Default)]
pub struct Refusals {
    /// The time that they have lasted. A program that was stopped meanwhile has not waited.
    lasted: Duration,
    /// The last.
    last: Option<Time>,
}

impl Refusals {
    fn lasted(&mut self, now: Time) -> Duration {
        let since = now.saturating_sub(self.last.unwrap_or(now));
        self.lasted += since.min(100 * A_MOMENT);
        self.last = Some(now);
        self.lasted
    }
}

impl<K: Kernel> FaultService<K> {
    /// Puts copies of `content` where pages are missing; false if some were there already, or gone. Waits
    /// for the system's memory.
    pub fn install(
        &self,
        first: PageNumber,
        content: &[PageBytes],
        writes: Writes,
        waking: Waking,
    ) -> bool {
        let mut refusals = Refusals::default();
        let (mut at, mut all) = (0, true);
        loop {
            let (done, good) = self.try_install(first.plus(at), &content[at..], writes, waking);
            (at, all) = (at + done, all & good);
            if at == content.len() {
                return all;
            }
            self.refused(&mut refusals);
        }
    }

    /// The same without waiting, and how many it was done for: fewer if the system has no page for the
    /// next.
    pub fn try_install(
        &self,
        first: PageNumber,
        content: &[PageBytes],
        writes: Writes,
        waking: Waking,
    ) -> (usize, bool) {
        let (mut at, mut one, mut all) = (0, false, true);
        let mut woken = waking == Waking::AtOnce;
        while at < content.len() {
            let end = if one { at + 1 } else { content.len() };
            let to = first.plus(at).address();
            let (done, result) = self.copy(to, &content[at..end], writes, waking);
            at += done / PAGE_SIZE;
            woken &= result.is_ok();
            match result {
                Ok(()) => one = false,
                Err(Errno(libc::EAGAIN)) => {}
                Err(Errno(libc::ENOMEM)) => break,
                // A range may be several mappings to the kernel, and no copy crosses from one to the next. Nothing of
                // it was done, so the first page alone says what is wrong.
                Err(_) if end - at > 1 => one = true,
                // Mapped over or unmapped without libc: what is there now is the program's wish.
                Err(Errno(libc::EEXIST | libc::ENOENT)) => {
                    self.counters().map_disagrees.add(1);
                    (at, one, all) = (at + 1, false, false);
                }
                Err(error) => self.fail(&format!(
                    "the page at {:#x} could not be put into place: {error:?}",
                    first.plus(at).address()
                )),
            }
        }
        if waking == Waking::AtOnce && !woken {
            self.wake(first, at);
        }
        (at, all)
    }

    /// The system had no page for us, one time more: waits a moment. If that alone does not help, the keeper gives up
    /// some in the next moment. Giving up some on every refusal would outrun loading, and nothing would stay. Ends
    /// the process if it lasts for long.
    pub fn refused(&self, refusals: &mut Refusals) {
        self.counters().page_refused.add(1);
        let lasted = refusals.lasted(self.now());
        if lasted >= A_MOMENT {
            self.report_refusal();
        }
        self.kernel.sleep(lasted.clamp(A_MOMENT / 32, A_MOMENT));
        if lasted > GIVE_UP {
            self.fail(
                "out of memory: the system has no page for this process, although the budget has room; \
                 raise the limit of its memory cgroup, or lower --memory",
            )
        }
    }

    /// The time that it takes to install so many pages, about. Threads woken by the copy are served when it is over,
    /// and nobody is left to look at the clock then.
    pub fn install_estimate(pages: usize) -> Duration {
        Duration::from_nanos(300 + 400 * pages as u64)
    }
}
