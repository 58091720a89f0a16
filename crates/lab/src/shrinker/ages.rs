//! How often the wrong page went to the device, on real memory: the program knows when it touched
//! each of its pages last, and finds out where they are by touching them.
//!
//! A page that is in memory is passed by: `/proc/self/pagemap` says so. One that is out is touched,
//! and `/proc/self/io` says whether this read something from a disk, whoever pages, since whoever
//! does it does it in this process's name. What comes in beside it counts for nothing. Each touch
//! changes something itself, so only [`SAMPLES`] pages are looked at, at random.
//!
//! Not done here: keeping the times; choosing who pages.

use crate::sim::Random;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Pages looked at.
const SAMPLES: usize = 400;
/// Fewer of either kind tell nothing.
const FEW: usize = 20;

const PAGE: usize = 4096;
/// Of an entry of `/proc/self/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// A page that was out when it was looked at.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// When it was touched last.
    touched: u32,
    on_device: bool,
}

/// Of all pairs of a page that was on a device and one that was in the pool, in how many percent
/// the one on the device was touched later; none if there are too few of either. `touched` says
/// when each page was; `address` where it is; `touch` touches it.
///
/// # Errors
/// What `/proc` tells cannot be read.
pub fn inverted_percent(
    touched: &[u32],
    address: impl Fn(usize) -> usize,
    mut touch: impl FnMut(usize),
) -> io::Result<Option<f64>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut random = Random::new(11);
    let mut samples = Vec::new();
    // Some are met twice; those are in memory by then.
    for _ in 0..4 * touched.len() {
        if samples.len() == SAMPLES {
            break;
        }
        let page = random.below(touched.len());
        let mut entry = [0; 8];
        let at = address(page) / PAGE * entry.len();
        pagemap.read_exact_at(&mut entry, at as u64)?;
        if u64::from_ne_bytes(entry) & PRESENT != 0 {
            continue;
        }
        let before = bytes_read()?;
        touch(page);
        samples.push(Sample {
            touched: touched[page],
            on_device: bytes_read()? > before,
        });
    }
    Ok(inverted(&samples))
}

/// Bytes that this process had read from disks.
fn bytes_read() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok())
        .ok_or_else(|| io::Error::other("/proc/self/io does not say what was read"))
}

fn inverted(samples: &[Sample]) -> Option<f64> {
    let (device, pool): (Vec<&Sample>, Vec<_>) = samples.iter().partition(|s| s.on_device);
    if device.len() < FEW || pool.len() < FEW {
        return None;
    }
    let later = |s: &Sample| pool.iter().filter(|p| p.touched < s.touched).count();
    let inverted: usize = device.into_iter().map(later).sum();
    Some(inverted as f64 * 100.0 / ((samples.len() - pool.len()) * pool.len()) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(on_device: impl Fn(u32) -> bool) -> Vec<Sample> {
        let sample = |touched| Sample {
            touched,
            on_device: on_device(touched),
        };
        (0..100).map(sample).collect()
    }

    #[test]
    fn an_order_is_seen_and_so_is_its_reverse() {
        assert_eq!(inverted(&samples(|t| t < 40)), Some(0.0));
        assert_eq!(inverted(&samples(|t| t >= 40)), Some(100.0));
        let mixed = inverted(&samples(|t| t % 2 == 0)).unwrap();
        assert!((48.0..52.0).contains(&mixed), "{mixed}");
        assert_eq!(inverted(&samples(|t| t < 10)), None);
    }

    #[test]
    fn what_is_in_memory_is_passed_by() {
        let pages = vec![1u8; 64 * PAGE];
        let address = |page| pages.as_ptr() as usize + page * PAGE;
        let result = inverted_percent(&[0; 63], address, |_| panic!("a page in memory is touched"));
        assert_eq!(result.unwrap(), None);
    }
}
