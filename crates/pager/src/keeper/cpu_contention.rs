//! Whether the processors are taken by others than ourselves. The system tells of all its processors alone. So a process
//! that may use some of them learns it when its service is starved (`keeper_loop`).

use ebb_sys::paging::Kernel;
use ebb_sys::thread;

/// Watches whether the processors are taken: whether more threads want to run than there are
/// processors, our own left out.
pub struct CpuContention {
    processors: i32,
    /// Flag: the process may use some of them alone.
    blind: bool,
    /// Decaying mean of the threads that want to run, in sixteenths.
    mean: i32,
    crowded: bool,
}

impl CpuContention {
    pub fn new(kernel: &impl Kernel) -> Self {
        Self {
            processors: kernel.processors() as i32,
            blind: kernel.allowed_cpus().len() < kernel.processors().min(thread::TOLD),
            mean: Self::others(kernel) * 16,
            crowded: false,
        }
    }

    fn others(kernel: &impl Kernel) -> i32 {
        // This thread is one, and a service thread with idle urgency that waits for its turn
        // while the program runs is another.
        kernel.running().unwrap_or(0).saturating_sub(2) as i32
    }

    /// Whether nothing can be seen.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// One more look; whether the processors are taken.
    pub fn sample(&mut self, kernel: &impl Kernel) -> bool {
        if self.blind {
            return false;
        }
        self.mean += (Self::others(kernel) * 16 - self.mean) / 8;
        let full = self.processors * 16;
        self.crowded = if self.crowded {
            self.mean > full * 5 / 8
        } else {
            self.mean > full * 7 / 8
        };
        self.crowded
    }
}
