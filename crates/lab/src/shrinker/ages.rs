//! Share of wrong pages on the device, on real memory. The program knows when it last touched each of
//! its pages, and finds out where they are by touching them.
//!
//! A page that is in memory is passed by: `/proc/self/pagemap` says so. A touch brings a page in, and
//! `/proc/PID/io` says whether this read something from a disk: in this process's name, if the kernel
//! pages, or in that of the helper that serves it. Pages that come in beside it do not count. Each touch
//! changes something itself. So only [`SAMPLES`] random pages are looked at, and all processes that are
//! compared choose theirs before the first touch. Evictions that a touch causes do not count.
//!
//! Two orders are asked for. By last touches, what is wrong may be the fault of whoever chose what
//! leaves memory, or of whoever chose what of that goes to the device. By when pages left memory
//! it is the second's alone: a [`Watch`] looks at all of them again and again. Pages that came in
//! beside others and left untouched do not count there: nobody wrote them, they are still where they
//! were.
//!
//! Not done here: keeping the times; choosing who pages.

use super::PAGE;
use ebb_engine::random::Random;
use ebb_sys::proc;
use procfs::ProcResult;
use procfs::process::Process;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Pages looked at.
const SAMPLES: usize = 400;
/// Fewer of either kind tell nothing.
const FEW: usize = 20;

/// Of an entry of `/proc/self/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// A page that was out when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The time when it was touched last, or left memory.
    pub at: u32,
    /// Flag: it was on the device, not in the pool.
    pub on_device: bool,
}

/// The percentage of pairs, of a page that was on a device and one that was in the pool, in which the
/// one on the device comes later in an order; none if there are too few of either.
#[derive(Clone, Debug, Default)]
pub struct Inverted {
    /// The pages that were looked at, by when they left memory, if that was watched.
    pub leavings: Vec<Sample>,
    /// Inversions by last touches.
    pub by_touch: Option<f64>,
    /// Inversions by when pages left memory, if that was watched.
    pub by_leaving: Option<f64>,
}

/// When pages that lie side by side left memory, as far as looks at them tell.
pub struct Watch {
    pagemap: File,
    pages: Vec<Seen>,
    entries: Vec<u8>,
    /// The time when it looked last.
    looked: u32,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    here: bool,
    /// The last look before it came in, and the last at which it was there.
    came: u32,
    left: u32,
}

impl Watch {
    /// Of so many pages.
    ///
    /// # Errors
    /// As those of [`inverted`].
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Self {
            pagemap: File::open("/proc/self/pagemap")?,
            pages: vec![Seen::default(); pages],
            entries: vec![0; pages * 8],
            looked: 0,
        })
    }

    /// Looks at them; the first is at this address.
    ///
    /// # Errors
    /// As those of [`inverted`].
    pub fn look(&mut self, address: usize, now: u32) -> io::Result<()> {
        let at = (address / PAGE * 8) as u64;
        self.pagemap.read_exact_at(&mut self.entries, at)?;
        let entries = self.entries.as_chunks::<8>().0;
        for (page, entry) in self.pages.iter_mut().zip(entries) {
            let here = u64::from_ne_bytes(*entry) & PRESENT != 0;
            if here && !page.here {
                page.came = self.looked;
            }
            if here {
                page.left = now;
            }
            page.here = here;
        }
        self.looked = now;
        Ok(())
    }

    /// When a page that was touched last then left, unless it came and left since; not before that touch,
    /// however long before it was seen last.
    fn left(&self, page: usize, touched: u32) -> Option<u32> {
        let page = &self.pages[page];
        (touched >= page.came).then_some(page.left.max(touched))
    }
}

/// Some of the pages that are out of memory now, of so many; `address` is where each is.
///
/// # Errors
/// As those of [`inverted`].
pub fn some_out(pages: usize, address: impl Fn(usize) -> usize) -> io::Result<Vec<usize>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut random = Random::new(11);
    let mut out = Vec::with_capacity(SAMPLES);
    for _ in 0..4 * pages {
        if out.len() == SAMPLES {
            break;
        }
        let page = random.below(pages);
        if !out.contains(&page) && !is_here(&pagemap, address(page))? {
            out.push(page);
        }
    }
    Ok(out)
}

fn is_here(pagemap: &File, address: usize) -> io::Result<bool> {
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (address / PAGE * 8) as u64)?;
    Ok(u64::from_ne_bytes(entry) & PRESENT != 0)
}

/// How many pairs are inverted of these pages, those left out that have come in meanwhile. `touched` says
/// when each page was touched last; `address` where it is; `touch` touches it.
///
/// # Errors
/// `/proc` cannot be read.
pub fn inverted(
    pages: &[usize],
    touched: &[u32],
    watch: Option<&Watch>,
    address: impl Fn(usize) -> usize,
    mut touch: impl FnMut(usize),
) -> io::Result<Inverted> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let (mut samples, mut leavings) = (Vec::new(), Vec::new());
    for &page in pages {
        if is_here(&pagemap, address(page))? {
            continue;
        }
        let before = bytes_read()?;
        touch(page);
        let on_device = bytes_read()? > before;
        let sample = |at| Sample { at, on_device };
        samples.push(sample(touched[page]));
        let left = watch.and_then(|watch| watch.left(page, touched[page]));
        leavings.extend(left.map(sample));
    }
    Ok(Inverted {
        by_touch: percent(&samples),
        by_leaving: percent(&leavings),
        leavings,
    })
}

/// The same of pages of several processes, by one clock: of pairs of different processes.
pub fn across(processes: &[Vec<Sample>]) -> Option<f64> {
    let (mut inverted, mut pairs) = (0.0, 0.0);
    let all: Vec<Sample> = processes.iter().flatten().copied().collect();
    let few = |on_device| all.iter().filter(|s| s.on_device == on_device).count() < FEW;
    if few(true) || few(false) {
        return None;
    }
    for (samples, sign) in processes.iter().map(|own| (own, -1.0)).chain([(&all, 1.0)]) {
        let (later, of) = count(samples);
        inverted += sign * later as f64;
        pairs += sign * of as f64;
    }
    (pairs > 0.0).then(|| inverted * 100.0 / pairs)
}

/// Bytes that this process had read from disks, with those that its helper had.
fn bytes_read() -> io::Result<u64> {
    let helper = helper().map_or(Ok(0), |pid| bytes_read_by(Process::new(pid as i32)));
    Ok(bytes_read_by(Process::myself())? + helper.unwrap_or(0))
}

/// The process that serves this one's faults, if one does.
fn helper() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let own = std::process::id();
        let mut found = None;
        let shares = |pid| proc::share_memory(own, pid) == Some(true);
        let looked = proc::all(|pid| {
            if pid != own
                && proc::name(pid).as_bytes() == ebb_sys::thread::HELPER.to_bytes()
                && shares(pid)
            {
                found = Some(pid);
            }
        });
        looked.ok().and(found)
    })
}

fn bytes_read_by(process: ProcResult<Process>) -> io::Result<u64> {
    let io = process.and_then(|process| process.io());
    Ok(io.map_err(io::Error::other)?.read_bytes)
}

fn percent(samples: &[Sample]) -> Option<f64> {
    let (device, pool): (Vec<&Sample>, Vec<_>) = samples.iter().partition(|s| s.on_device);
    if device.len() < FEW || pool.len() < FEW {
        return None;
    }
    let (inverted, pairs) = count(samples);
    Some(inverted as f64 * 100.0 / pairs as f64)
}

/// Pairs that are inverted, and all of them.
fn count(samples: &[Sample]) -> (usize, usize) {
    let (device, pool): (Vec<&Sample>, Vec<_>) = samples.iter().partition(|s| s.on_device);
    let later = |s: &&Sample| pool.iter().filter(|p| p.at < s.at).count();
    (device.iter().map(later).sum(), device.len() * pool.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn samples(on_device: impl Fn(u32) -> bool) -> Vec<Sample> {
        let sample = |at| Sample {
            at,
            on_device: on_device(at),
        };
        (0..100).map(sample).collect()
    }

    #[test]
    fn an_order_is_seen_and_so_is_its_reverse() {
        assert_eq!(percent(&samples(|t| t < 40)), Some(0.0));
        assert_eq!(percent(&samples(|t| t >= 40)), Some(100.0));
        let mixed = percent(&samples(|t| t % 2 == 0)).unwrap();
        assert!((48.0..52.0).contains(&mixed), "{mixed}");
        assert_eq!(percent(&samples(|t| t < 10)), None);
    }

    #[test]
    fn pairs_of_one_process_count_for_nothing_across_them() {
        let of = |range: std::ops::Range<u32>, on_device| -> Vec<Sample> {
            range.map(|at| Sample { at, on_device }).collect()
        };
        let [old, young] = [0..50, 50..100];
        let right = [of(old.clone(), true), of(young.clone(), false)];
        assert_eq!(across(&right), Some(0.0));
        let wrong = [of(old, false), of(young, true)];
        assert_eq!(across(&wrong), Some(100.0));
        assert_eq!(across(&[wrong.concat()]), None, "all are of one");
        // One is the wrong way round in itself: that is not asked here.
        let both = across(&[wrong.concat(), right.concat()]).unwrap();
        assert!((48.0..50.0).contains(&both), "{both}");
        assert_eq!(across(&right[..1]), None, "none is in the pool");
    }

    #[test]
    fn resident_pages_are_passed_by() {
        let pages = vec![1u8; 64 * PAGE];
        let address = |page| pages.as_ptr() as usize + page * PAGE;
        let touch = |_| panic!("a page in memory is touched");
        assert!(some_out(63, address).unwrap().is_empty());
        let result = inverted(&[5, 62], &[0; 63], None, address, touch).unwrap();
        assert_eq!(result.by_touch, None);
    }

    /// Pages that are touched at random leave memory, and then a pool, in the order in which they came
    /// in. That order is kept; the order of last touches is not, though each choice was right among the
    /// pages that there were. Where touches are seen, both are.
    #[test]
    fn reclaim_that_sees_no_touches_inverts_them() {
        const PAGES: usize = 9216;
        let inverted = |resident: usize, pooled: usize, sees_touches: bool| {
            let mut random = Random::new(3);
            let (mut touched, mut came, mut left) = ([0; PAGES], [0; PAGES], [0; PAGES]);
            // In memory and in the pool, oldest first; a page has left where its time is another.
            let (mut memory, mut pool) = (VecDeque::new(), VecDeque::new());
            let (mut here, mut there) = (vec![false; PAGES], vec![false; PAGES]);
            let (mut n, mut m) = (0, 0);
            for now in 1..50_000u32 {
                let page = match now as usize {
                    filled if filled <= PAGES => filled - 1,
                    _ => random.below(PAGES),
                };
                touched[page] = now;
                if here[page] && !sees_touches {
                    continue;
                }
                n += usize::from(!here[page]);
                m -= usize::from(there[page]);
                (here[page], there[page], came[page]) = (true, false, now);
                memory.push_back((page, now));
                while n > resident {
                    let (page, at) = memory.pop_front().unwrap();
                    if here[page] && came[page] == at {
                        (here[page], there[page], left[page]) = (false, true, now);
                        (n, m) = (n - 1, m + 1);
                        pool.push_back((page, now));
                    }
                }
                while m > pooled {
                    let (page, at) = pool.pop_front().unwrap();
                    if there[page] && left[page] == at {
                        (there[page], m) = (false, m - 1);
                    }
                }
            }
            let out = (0..PAGES).filter(|&page| !here[page]);
            let by = |at: &[u32]| {
                let sample = |page: usize| Sample {
                    at: at[page],
                    on_device: !there[page],
                };
                percent(&out.clone().map(sample).collect::<Vec<_>>()).unwrap()
            };
            (by(&touched), by(&left))
        };
        for (resident, pooled) in [(7000, 500), (6000, 1500), (5000, 1000), (4000, 2500)] {
            let (touches, leavings) = inverted(resident, pooled, false);
            println!("{resident} in memory, {pooled} in the pool: {touches:.1}%");
            assert!((2.0..25.0).contains(&touches) && leavings == 0.0);
            assert_eq!(inverted(resident, pooled, true), (0.0, 0.0));
        }
    }

    #[test]
    fn the_time_of_each_eviction_is_seen() {
        let pages = vec![1u8; 3 * PAGE];
        let start = pages.as_ptr() as usize;
        let mut watch = Watch::new(2).unwrap();
        watch.look(start, 7).unwrap();
        watch.look(start, 9).unwrap();
        assert_eq!([watch.left(0, 3), watch.left(1, 8)], [Some(9); 2]);
        // As if it had been out before the second look.
        watch.pages[0].here = false;
        watch.look(start, 12).unwrap();
        assert_eq!([watch.left(0, 8), watch.left(0, 10)], [None, Some(12)]);
        assert_eq!(watch.left(0, 15), Some(15), "it was touched since");
    }
}
