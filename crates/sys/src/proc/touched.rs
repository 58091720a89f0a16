//! The memory that a process touched since somebody last asked, by the accessed bits of its page tables.
//! `/proc/PID/smaps` adds them up for each mapping, and `/proc/PID/clear_refs` clears them.
//!
//! Needs no privilege beside being of the same user. A huge page has one bit, so it is touched as a whole. A page
//! that the processor still has a translation of counts as not touched: 8 MiB at most, of those used most. Clearing
//! keeps the process from faults for about 20 µs a MiB.

use super::Process;
use super::file::{Path, number};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Anonymous memory. Pages that processes share count in equal parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Touched {
    /// Bytes in memory.
    pub resident: u64,
    /// Bytes of them that were touched.
    pub touched: u64,
}

impl Process {
    /// Its memory, and how much of it was touched since [`forget_touches`](Self::forget_touches). About 14 ms a GiB.
    ///
    /// # Errors
    /// ESRCH if it is gone, EACCES if it is another user's, ENOENT where the kernel does not have it.
    pub fn touched(&self) -> Result<Touched, Errno> {
        let pid = self.pid();
        let file = Path::new(format_args!("/proc/{pid}/smaps")).open(OFlags::RDONLY)?;
        let mut sums = Sums::default();
        let mut buf = [0; 8192];
        loop {
            match rustix::io::read(&file, &mut buf[..]) {
                Ok(0) => break,
                Ok(n) => sums.text(&buf[..n]),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // Opened by number: ours only if our process is still there.
        self.stat()?;
        Ok(sums.end())
    }

    /// From now on its pages count as not touched.
    ///
    /// # Errors
    /// As [`touched`](Self::touched).
    pub fn forget_touches(&self) -> Result<(), Errno> {
        let pid = self.pid();
        let file = Path::new(format_args!("/proc/{pid}/clear_refs")).open(OFlags::WRONLY)?;
        rustix::io::write(&file, b"1")?;
        self.stat().map(drop)
    }
}

/// The text of `smaps`, which comes in parts: a line of addresses for each mapping, then lines "Name: N kB".
#[derive(Default)]
pub(super) struct Sums {
    line: Vec<u8>,
    mapping: Mapping,
    all: Touched,
}

/// Of one mapping, in KiB.
#[derive(Default)]
struct Mapping {
    resident: u64,
    proportional: u64,
    touched: u64,
    anonymous: u64,
}

impl Sums {
    /// The next part.
    pub fn text(&mut self, part: &[u8]) {
        for &byte in part {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            self.line(&line);
            // Its memory serves the next line.
            self.line = line;
            self.line.clear();
        }
    }

    fn line(&mut self, line: &[u8]) {
        let mut words = line.split(|b| *b == b' ').filter(|word| !word.is_empty());
        let (Some(name), value) = (words.next(), words.next()) else {
            return;
        };
        if !name.first().is_some_and(u8::is_ascii_uppercase) {
            return self.close();
        }
        let Some(value) = value.and_then(number) else {
            return;
        };
        match name {
            b"Rss:" => self.mapping.resident = value,
            b"Pss:" => self.mapping.proportional = value,
            b"Referenced:" => self.mapping.touched = value,
            b"Anonymous:" => self.mapping.anonymous = value,
            _ => {}
        }
    }

    /// The mapping is complete.
    fn close(&mut self) {
        let mapping = std::mem::take(&mut self.mapping);
        if mapping.anonymous == 0 {
            return;
        }
        let share = |kib: u64| {
            let part = kib.min(mapping.resident) as u128 * u128::from(mapping.proportional);
            let part = part / u128::from(mapping.resident.max(1));
            u64::try_from(part).unwrap_or(u64::MAX).saturating_mul(1024)
        };
        let touched = mapping.touched.min(mapping.anonymous);
        self.all.resident = self.all.resident.saturating_add(share(mapping.anonymous));
        self.all.touched = self.all.touched.saturating_add(share(touched));
    }

    /// All mappings together.
    pub fn end(mut self) -> Touched {
        self.close();
        self.all
    }
}
