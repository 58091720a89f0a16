//! The same pages in the kernel's zram: a device of our own is added, written, read, and
//! removed again. Needs root and a kernel whose zram can add devices.

use ebb_engine::{PAGE_SIZE, PageBytes};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// zram's result for the pages.
pub struct Figures {
    /// Bytes of pages for each byte of memory that zram holds.
    pub ratio: f64,
    /// Share of that memory that holds no compressed bytes, in percent.
    pub waste_percent: f64,
    /// The times to write one page, and to read one, the block layer's part included, in µs.
    pub write_us: f64,
    pub read_us: f64,
}

/// A device of our own; it goes when dropped.
struct Device(u32);

impl Device {
    fn add() -> Option<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add").ok()?;
        Some(Self(number.trim().parse().ok()?))
    }
    fn setting(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::write(self.setting("reset"), "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", self.0.to_string());
    }
}

/// Writes the pages to a zram with this algorithm; none where zram does not allow it.
pub fn measure(algorithm: &str, pages: &[&PageBytes]) -> Option<Figures> {
    let device = Device::add()?;
    fs::write(device.setting("comp_algorithm"), algorithm).ok()?;
    let size = (pages.len() * PAGE_SIZE) as u64;
    fs::write(device.setting("disksize"), size.to_string()).ok()?;
    let path = format!("/dev/zram{}", device.0);
    // Without the page cache, which would put off the work.
    let file = (0..100).find_map(|_| {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        // The node may take a moment to appear.
        if file.is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        file.ok()
    })?;
    let file = fs::File::from(file);
    let mut room = vec![0u8; 2 * PAGE_SIZE];
    let skip = room.as_ptr().align_offset(PAGE_SIZE);
    let page = &mut room[skip..skip + PAGE_SIZE];
    let start = Instant::now();
    for (i, content) in pages.iter().enumerate() {
        page.copy_from_slice(&content[..]);
        file.write_all_at(page, (i * PAGE_SIZE) as u64).ok()?;
    }
    let wrote = start.elapsed();
    let stat = fs::read_to_string(device.setting("mm_stat")).ok()?;
    let start = Instant::now();
    for i in 0..pages.len() {
        file.read_exact_at(page, (i * PAGE_SIZE) as u64).ok()?;
    }
    let read = start.elapsed();
    let fields: Vec<f64> = stat
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    let [original, compressed, held, ..] = fields[..] else {
        return None;
    };
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6 / pages.len() as f64;
    Some(Figures {
        ratio: original / held,
        waste_percent: (held - compressed) / held * 100.0,
        write_us: us(wrote),
        read_us: us(read),
    })
}
