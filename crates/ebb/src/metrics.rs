//! The figures of a tree as OpenMetrics: `ebb stats --prometheus`, and `ebb run --metrics`.
//!
//! Names follow the conventions of node_exporter: base units, `_total` for counts.
//! ```text
//! ebb run --metrics ADDRESS    a thread listens, and asks the supervisor as `ebb stats` does, for each scrape
//! ```

use crate::{ask, say};
use anyhow::{Context, Result, anyhow, bail};
use ebb_tree::{BOUNDS_NS, DeviceShown, FaultsShown, StatsShown};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The figures, for the library that writes the format.
#[derive(Debug)]
struct Figures(StatsShown);

const SECOND: f64 = 1e9;

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0;
        let gauge = ConstGauge::new(0u64).metric_type();
        let counter = ConstCounter::new(0u64).metric_type();
        let kinds = [
            ("budget", stats.budget_bytes),
            ("used", stats.used_bytes),
            ("peak", stats.peak_bytes),
            ("resident", stats.resident_bytes()),
            ("staging", stats.staging_bytes),
            ("pool", stats.pool_bytes),
            ("unmanaged", stats.unmanaged_bytes),
        ];
        let bytes = Some(&Unit::Bytes);
        let seconds = Some(&Unit::Seconds);
        let mut of = encoder.encode_descriptor("ebb_memory", "Memory of the tree", bytes, gauge)?;
        for (kind, value) in kinds {
            put(&mut of, &[("kind", kind)], &ConstGauge::new(value))?;
        }
        let mut of =
            encoder.encode_descriptor("ebb_faults", "Page faults served", None, counter)?;
        for (way, faults) in &stats.fault_latency {
            put(&mut of, &[("way", way)], &ConstCounter::new(faults.count))?;
        }
        const SOME: &str = "Time in which a thread of the tree waited for a page";
        const FULL: &str = "The part of it in which no thread of the tree ran";
        for (name, help, ns) in [
            ("ebb_pressure_memory_waiting", SOME, stats.some_ns),
            ("ebb_pressure_memory_stalled", FULL, stats.full_ns),
        ] {
            let of = encoder.encode_descriptor(name, help, seconds, counter)?;
            ConstCounter::new(ns as f64 / SECOND).encode(of)?;
        }
        const DURATION: &str = "Time to serve a fault";
        let kind = MetricType::Histogram;
        let mut of = encoder.encode_descriptor("ebb_fault_duration", DURATION, seconds, kind)?;
        for (way, faults) in &stats.fault_latency {
            let labels = [("way", way.as_str())];
            let mut of = of.encode_family(&labels)?;
            of.encode_histogram::<NoLabelSet>(
                faults.sum_ns as f64 / SECOND,
                faults.counts.iter().sum(),
                &buckets(faults),
                None,
            )?;
        }
        let used: fn(&DeviceShown) -> u64 = |device| device.used_bytes;
        let size: fn(&DeviceShown) -> u64 = |device| device.size_bytes;
        for (name, help, value) in [
            ("ebb_swap_device_used", "Data on a swap device", used),
            ("ebb_swap_device_size", "Size of a swap device", size),
        ] {
            let mut of = encoder.encode_descriptor(name, help, bytes, gauge)?;
            for device in &stats.devices {
                let number = device.device.to_string();
                let labels = [("device", number.as_str()), ("path", &device.path)];
                put(&mut of, &labels, &ConstGauge::new(value(device)))?;
            }
        }
        encode_counts(stats, encoder)
    }
}

/// The buckets of a histogram: bound in seconds, and count. The library adds them up.
fn buckets(faults: &FaultsShown) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / SECOND);
    bounds.chain([f64::INFINITY]).zip(faults.counts).collect()
}

/// Processes, and the counters with the kernel's names.
fn encode_counts(stats: &StatsShown, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let gauge = ConstGauge::new(0u64).metric_type();
    let counter = ConstCounter::new(0u64).metric_type();
    let of = encoder.encode_descriptor("ebb_processes", "Managed processes", None, gauge)?;
    ConstGauge::new(stats.members.len() as u64).encode(of)?;
    let mut of = encoder.encode_descriptor(
        "ebb_events",
        "Counters with the kernel's names",
        None,
        counter,
    )?;
    for (event, count) in &stats.counters {
        put(&mut of, &[("event", event)], &ConstCounter::new(*count))?;
    }
    Ok(())
}

fn put(
    of: &mut MetricEncoder<'_>,
    labels: &[(&str, &str)],
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(of.encode_family(&labels)?)
}

/// The figures as OpenMetrics.
pub fn text(stats: StatsShown) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(stats)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Where a scraper connects.
pub enum Listener {
    /// An address of this machine.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(Named),
}

/// A socket whose name goes with it.
pub struct Named {
    socket: UnixListener,
    path: PathBuf,
    /// Flag: another process has it, or nobody any more.
    left: AtomicBool,
}

impl Named {
    /// Listens there. A socket at which nobody listens was left by a run that was killed, and is replaced.
    fn bind(path: PathBuf) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|meta| meta.file_type().is_socket());
        // Another error tells of somebody: of another kind of socket, or of one that only others may use.
        let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(&path).is_err_and(refused) {
            let _ = fs::remove_file(&path);
        }
        Ok(Self {
            socket: UnixListener::bind(&path)?,
            path,
            left: AtomicBool::new(false),
        })
    }

    /// Its name goes now.
    fn remove(&self) {
        if !self.left.swap(true, SeqCst) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Listener {
    /// Listens at 127.0.0.1:PORT or unix:PATH.
    ///
    /// # Errors
    /// It is no such address, or in use.
    pub fn bind(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let named = Named::bind(path.into())
                .map_err(|error| anyhow!("--metrics {text}: {error}: give another path"))?;
            return Ok(Self::Unix(named));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            anyhow!("--metrics {text}: give 127.0.0.1:PORT, [::1]:PORT or unix:PATH")
        })?;
        if !address.ip().is_loopback() {
            bail!(
                "--metrics {text}: anybody could read it: give 127.0.0.1:PORT, and a proxy for others"
            );
        }
        let listener = TcpListener::bind(address).map_err(|error| {
            anyhow!("--metrics {text}: {error}: give another port, or 0 for any")
        })?;
        if address.port() == 0 {
            let place = listener.local_addr()?;
            say::now(&format!("ebb: metrics at http://{place}/metrics"));
        }
        Ok(Self::Tcp(listener))
    }

    /// Answers scrapers in a thread of its own, with the figures of the tree of this `control_value`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self, control: &str) -> Result<Serving> {
        let mut serving = Serving {
            listener: Arc::new(self),
            control: control.to_owned(),
            ends: Arc::new(AtomicBool::new(false)),
            thread: None,
        };
        serving.again()?;
        Ok(serving)
    }

    fn answer_until(&self, ends: &AtomicBool, control: &str) {
        const LOOK: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        while !ends.load(SeqCst) {
            let listener = match self {
                Self::Tcp(listener) => listener.as_fd(),
                Self::Unix(named) => named.socket.as_fd(),
            };
            let mut fds = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
            if !matches!(poll(&mut fds, Some(&LOOK)), Ok(1)) {
                continue;
            }
            // A scraper that breaks off is its own matter.
            if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
                let _ = [Timeout::Recv, Timeout::Send]
                    .map(|which| set_socket_timeout(&socket, which, LIMIT));
                let stream = File::from(socket);
                let _ = answer(&stream, &stream, control);
            }
        }
    }
}

/// For one read, and for one write.
const LIMIT: Option<Duration> = Some(Duration::from_secs(2));

/// A request that has to come in the time that one read may take.
struct Hurried<R> {
    from: R,
    until: Instant,
}

impl<R: Read> Read for Hurried<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match Instant::now() < self.until {
            true => self.from.read(into),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}

/// A listener that is served.
pub struct Serving {
    listener: Arc<Listener>,
    control: String,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Ends the thread once it has answered the scraper that it has, which may need the supervisor's `turn`. Others wait.
    pub fn stop(&mut self, turn: &mut dyn FnMut()) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.ends.store(true, SeqCst);
        while !thread.is_finished() {
            turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }

    /// Serves again.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn again(&mut self) -> Result<()> {
        self.ends.store(false, SeqCst);
        let (listener, ends) = (self.listener.clone(), self.ends.clone());
        let thread = std::thread::Builder::new().name("metrics".into());
        let control = self.control.clone();
        let thread = thread.spawn(move || listener.answer_until(&ends, &control));
        self.thread = Some(thread.context("--metrics")?);
        Ok(())
    }

    /// A copy of this process serves from now on.
    pub fn leave(&mut self) {
        if let Listener::Unix(named) = &*self.listener {
            named.left.store(true, SeqCst);
        }
    }
}

/// The thread may still have the listener.
impl Drop for Serving {
    fn drop(&mut self) {
        if let Listener::Unix(named) = &*self.listener {
            named.remove();
        }
    }
}

/// Answers one request of HTTP.
fn answer(from: impl Read, mut to: impl Write, control: &str) -> Result<()> {
    const MOST: u64 = 8 << 10;
    let until = Instant::now() + LIMIT.unwrap_or_default();
    let mut lines = BufReader::new(Hurried { from, until }.take(MOST)).lines();
    let request = lines.next().context("nothing was asked")??;
    // Its headers say nothing that matters here.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    // A scraper may add parameters, which change nothing.
    let path = |target: &str| target.split('?').next().map(str::to_owned);
    let (method, path) = (words.next(), words.next().and_then(path));
    let asked = (method, path.as_deref());
    let (status, kind, body) = match asked {
        (Some("GET"), Some("/metrics" | "/")) => match ask::own_stats(control).and_then(text) {
            Ok(text) => (
                "200 OK",
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                text,
            ),
            Err(error) => (
                "503 Service Unavailable",
                "text/plain",
                format!("{error:#}\n"),
            ),
        },
        _ => (
            "404 Not Found",
            "text/plain",
            "ask for /metrics\n".to_owned(),
        ),
    };
    let length = body.len();
    write!(
        to,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn sockets_of_others_stay_and_our_own_goes() {
        let dir = tempfile::tempdir().unwrap();
        let bind =
            |name: &str| Listener::bind(&format!("unix:{}", dir.path().join(name).display()));
        let _other = UnixDatagram::bind(dir.path().join("log")).unwrap();
        assert!(bind("log").is_err());
        assert!(dir.path().join("log").exists());
        // Its owner was killed.
        drop(UnixListener::bind(dir.path().join("left")).unwrap());
        let own = bind("left").unwrap();
        assert!(bind("left").is_err());
        drop(own);
        assert!(!dir.path().join("left").exists());
        assert!(Listener::bind("unix:").is_err());
    }
}
