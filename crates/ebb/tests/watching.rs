//! What a running tree shows: `ebb stats`, `ebb top`, `--metrics`, the summary, and the hook at an end for memory.

mod common;

use common::tree::Tree;
use common::{cannot_page, ebb, helpers, lacks_network_namespaces, processor_time};
use ebb_harness::tools;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Runs `ebb` with a time limit.
fn asked(args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k1", "60"]).arg(ebb()).args(args);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A tree that pages.
fn tree() -> Tree {
    let tree = Tree::start_with("40M", &["a"], "fork", &["--pool", "none"]);
    tree.until_used(0, 2);
    tree
}

#[test]
fn stats_of_a_running_tree_as_text_and_json() {
    if cannot_page() {
        return;
    }
    let tree = tree();
    let json = asked(&["stats", &tree.pid, "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(stats["budget_bytes"], 40 << 20);
    assert_eq!(stats["paged"], true);
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{stats}"));
    assert!(number(&stats["devices"][0]["used_bytes"]) > 0, "{stats}");
    assert!(number(&stats["counters"]["pswpout"]) > 0, "{stats}");
    let latency = stats["fault_latency"].as_object().unwrap();
    let waited: u64 = latency.values().map(|way| number(&way["sum_ns"])).sum();
    let longest = latency.values().map(|way| number(&way["max_ns"])).max();
    assert!(Some(waited) >= longest && waited > 0, "{stats}");
    // The parts of the memory in use: stacks and code, at least, are not managed.
    let [used, pool, staging, unmanaged] = ["used", "pool", "staging", "unmanaged"]
        .map(|part| number(&stats[format!("{part}_bytes")]));
    assert!(unmanaged > 1 << 16, "{stats}");
    assert!(pool + staging + unmanaged < used, "{stats}");
    let members = stats["members"].as_array().unwrap();
    assert!(
        members
            .iter()
            .any(|m| m["pid"].as_u64() == tree.pid.parse().ok()),
        "{stats}"
    );

    let (some, full) = (number(&stats["some_ns"]), number(&stats["full_ns"]));
    assert!(some > 0 && full <= some, "{stats}");
    for way in latency.values() {
        let counts = way["counts"].as_array().unwrap();
        assert_eq!(
            counts.iter().map(number).sum::<u64>(),
            number(&way["count"]),
            "{stats}"
        );
    }

    let shown = text(&asked(&["stats", &tree.pid]).stdout);
    assert!(shown.contains("of 40M in use; it pages"), "{shown}");
    let lines = Command::new("timeout")
        .args(["2"])
        .arg(ebb())
        .args(["stats", &tree.pid, "--json", "--watch", "200ms"])
        .output()
        .unwrap();
    let lines = text(&lines.stdout);
    assert!(lines.lines().count() >= 3, "{lines}");
    for line in lines.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    for (args, says) in [
        (&["stats", "1"][..], "not run by ebb"),
        (&["stats", &tree.pid, "--watch", "soon"], "give a time"),
    ] {
        let refused = asked(args);
        assert_eq!(refused.status.code(), Some(125));
        assert!(
            text(&refused.stderr).contains(says),
            "{}",
            text(&refused.stderr)
        );
    }
}

/// The process by which a tree was named ends, and the tree goes on: so does the watch.
#[test]
fn a_watch_goes_on_as_long_as_the_tree() {
    if cannot_page() {
        return;
    }
    let mut run = Command::new(ebb())
        .args(["run", "-m", "64M", "sh", "-c"])
        .arg("sleep 100 & echo $! $PPID; wait; read line; true")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(run.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let (program, supervisor) = line.trim().split_once(' ').unwrap();
    let top = asked(&["top", "--json", program]);
    let sample: serde_json::Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(sample["pid"].as_u64(), supervisor.parse().ok(), "{line}");
    let mut watch = Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb())
        .args(["stats", program, "--json", "--watch", "50ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(watch.stdout.take().unwrap()).lines();
    shown.next().unwrap().unwrap();
    let kill = Command::new("kill").arg(program).status();
    assert!(kill.unwrap().success());
    let gone = format!("\"pid\":{program},");
    let has_gone = |line: &Result<String, _>| !line.as_ref().unwrap().contains(&gone);
    assert!(shown.any(|line| has_gone(&line)), "the watch has ended");
    assert_eq!(shown.by_ref().take(3).count(), 3);
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    assert!(watch.wait().unwrap().success());
}

/// A supervisor's socket is of one network namespace. Whoever asks from another is told where to ask, and that line works.
#[test]
fn a_tree_in_another_network_namespace() {
    if cannot_page() || lacks_network_namespaces() {
        return;
    }
    let mut run = Command::new("unshare")
        .args(["--net", "timeout", "-k1", "60"])
        .arg(ebb())
        .args(["run", "-m", "64M", "sh", "-c", "echo $PPID $$; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(run.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    for pid in line.split_whitespace() {
        for verb in [&["stats"][..], &["limit"], &["swap", "show"], &["size"]] {
            let refused = asked(&[verb, &[pid]].concat());
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(125), "{said}");
            assert!(said.contains("in another network namespace"), "{said}");
            let step = said.split('`').nth(1).unwrap();
            let step = step.replace(" ebb ", &format!(" {} ", ebb().display()));
            let shown = Command::new("sh").args(["-c", &step]).output().unwrap();
            let shown = text(&shown.stdout);
            assert!(shown.contains("of 64M in use"), "{step}: {shown}");
        }
    }
    drop(run.stdin.take());
    run.wait().unwrap();
    // Elsewhere, and in no tree.
    let mut sleeps = Command::new("unshare");
    let mut sleeps = sleeps.args(["--net", "sleep", "60"]).spawn().unwrap();
    let refused = asked(&["stats", &sleeps.id().to_string()]);
    sleeps.kill().unwrap();
    sleeps.wait().unwrap();
    let said = text(&refused.stderr);
    assert!(said.contains("not run by ebb"), "{said}");
}

/// Reads OpenMetrics with the parser of Prometheus's own client for Python, which checks the format; prints the
/// samples.
const PARSER: &str = "import json, sys
from prometheus_client.openmetrics.parser import text_fd_to_metric_families
samples = [s for family in text_fd_to_metric_families(sys.stdin) for s in family.samples]
name = lambda s: ' '.join([s.name] + [f'{k}={v}' for k, v in sorted(s.labels.items()) if k != 'path'])
print(json.dumps({name(s): s.value for s in samples}))";

/// What the parser makes of a text; none where there is no parser.
fn parsed(metrics: &str) -> Option<Output> {
    let python = tools::python_with("prometheus_client")?;
    let mut child = Command::new(python)
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(metrics.as_bytes()).unwrap();
    drop(stdin);
    Some(child.wait_with_output().unwrap())
}

/// Samples of a text that the parser takes whole; none where there is no parser.
#[track_caller]
fn samples(metrics: &str) -> Option<BTreeMap<String, f64>> {
    let Some(output) = parsed(metrics) else {
        println!("skipped: prometheus_client is not installed");
        return None;
    };
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}\n{metrics}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn the_figures_are_openmetrics() {
    if cannot_page() {
        return;
    }
    let tree = tree();
    let metrics = text(&asked(&["stats", &tree.pid, "--prometheus"]).stdout);
    let Some(samples) = samples(&metrics) else {
        return;
    };
    let value = |series: &str| {
        let value = samples.get(series).copied();
        value.unwrap_or_else(|| panic!("{series}: {samples:#?}"))
    };
    let memory = |kind: &str| value(&format!("ebb_memory_bytes kind={kind}"));
    assert_eq!(memory("budget"), f64::from(40 << 20));
    let parts = ["resident", "staging", "pool", "unmanaged"];
    assert_eq!(parts.map(memory).iter().sum::<f64>(), memory("used"));
    for way in ["zero", "cache", "pool", "device"] {
        let count = value(&format!("ebb_faults_total way={way}"));
        for counted in ["bucket le=+Inf", "count"] {
            let series = format!("ebb_fault_duration_seconds_{counted} way={way}");
            assert_eq!(value(&series), count, "{series}: {samples:#?}");
        }
    }
    for series in [
        "ebb_faults_total way=device",
        "ebb_fault_duration_seconds_sum way=device",
        "ebb_pressure_memory_waiting_seconds_total",
        "ebb_swap_device_used_bytes device=1",
        "ebb_processes",
    ] {
        assert!(value(series) > 0.0, "{series}: {samples:#?}");
    }
    assert!(
        value("ebb_pressure_memory_stalled_seconds_total")
            <= value("ebb_pressure_memory_waiting_seconds_total")
    );
    // It refuses what is not OpenMetrics.
    let cut = parsed(metrics.trim_end_matches("# EOF\n")).unwrap();
    assert!(
        text(&cut.stderr).contains("Missing # EOF"),
        "{}",
        text(&cut.stderr)
    );
}

/// Each answer is whole by itself, and counts go on from one to the next.
#[test]
fn openmetrics_again_and_again() {
    if cannot_page() {
        return;
    }
    let tree = tree();
    let mut watch = Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb())
        .args(["stats", &tree.pid, "--prometheus", "--watch", "50ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    let mut last = 0.0;
    for _ in 0..3 {
        let mut metrics = String::new();
        while !metrics.ends_with("# EOF\n") {
            assert!(out.read_line(&mut metrics).unwrap() > 0, "{metrics}");
        }
        let Some(samples) = samples(&metrics) else {
            break;
        };
        let written = samples["ebb_events_total event=pswpout"];
        assert!(written > 0.0 && written >= last, "{written} after {last}");
        last = written;
    }
    // Nobody reads on: that ends it.
    drop(out);
    watch.wait().unwrap();
}

#[test]
fn top_once_recorded_and_replayed() {
    if cannot_page() {
        return;
    }
    let tree = tree();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recording");
    let path = file.to_str().unwrap();
    let shown = asked(&["top", &tree.pid, "--once", "--record", path]);
    let screen = text(&shown.stdout);
    assert!(
        screen.contains("of 40M") && screen.contains("it pages"),
        "{screen}"
    );
    assert!(screen.contains("device  ["), "{screen}");
    // Members say how full their clusters are once somebody looks, each in its next turn.
    let start = Instant::now();
    loop {
        let screen = text(&asked(&["top", &tree.pid, "--once"]).stdout);
        let map = screen.lines().find(|line| line.starts_with("map     ["));
        let map = map.unwrap_or_else(|| panic!("{screen}"));
        if map.contains(['+', '#', ':', '|']) && map.contains('.') {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{screen}");
    }
    let replayed = text(&asked(&["top", "--replay", path, "--once"]).stdout);
    assert!(replayed.contains("of 40M"), "{replayed}");
    let json = asked(&["top", &tree.pid, "--json"]);
    let sample: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(sample["stats"]["budget_bytes"], 40 << 20);
    fs::write(&file, "{\"seconds\": 1").unwrap();
    let damaged = asked(&["top", "--replay", path, "--once"]);
    assert_eq!(damaged.status.code(), Some(125));
    assert!(text(&damaged.stderr).contains("damaged in line 1"));
    let piped = asked(&["top", &tree.pid]);
    assert!(
        text(&piped.stderr).contains("--once"),
        "{}",
        text(&piped.stderr)
    );
}

/// A real terminal of 80 by 24, in which a shell command runs.
struct Terminal(String);

impl Terminal {
    fn run(command: &str) -> Self {
        static TERMINALS: AtomicU32 = AtomicU32::new(0);
        let number = TERMINALS.fetch_add(1, SeqCst);
        let terminal = Self(format!("ebb-top-{}-{number}", std::process::id()));
        let command = format!("{command}; echo ended $?; sleep 60");
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &command]);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.args(["-k1", "20", "tmux", "-L", &self.0, "-f", "/dev/null"]);
        text(&command.args(args).output().unwrap().stdout)
    }

    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The screen, once it has this.
    fn until(&self, what: &str) -> String {
        let start = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(what) {
                return screen;
            }
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "no {what:?}:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Keys reach it, and it is left as it was.
#[test]
fn top_in_a_terminal() {
    if cannot_page() || common::lacks("tmux") {
        return;
    }
    let (tree, other) = (tree(), tree());
    let ebb = ebb().display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recording");
    let recording = file.display();
    let terminal = Terminal::run(&format!(
        "NO_COLOR=1 {ebb} top {} --record {recording}",
        tree.pid
    ));
    let screen = terminal.until("sort: faults");
    for part in ["resident", "WAITED", "some", "full", "map     ["] {
        assert!(screen.contains(part), "{part}:\n{screen}");
    }
    terminal.key("s");
    terminal.until("sort: memory");
    terminal.key("?");
    terminal.until("the part of it in which no thread");
    terminal.key("?");
    // The list has the trees of this user, and there are two at least.
    terminal.key("t");
    let list = terminal.until("Enter show");
    assert!(list.contains("trees") && list.contains("COMMAND"), "{list}");
    terminal.key("q");
    terminal.until("ended 0");
    let terminal = Terminal::run(&format!("NO_COLOR=1 {ebb} top"));
    terminal.until("Enter show");
    terminal.key("j");
    terminal.key("Enter");
    terminal.until("sort: faults");
    terminal.key("q");
    terminal.until("ended 0");
    drop((tree, other));
    // The recording shows the same again, up to its last picture.
    let terminal = Terminal::run(&format!("NO_COLOR=1 {ebb} top --replay {recording}"));
    terminal.until("PAUSED");
    let screen = terminal.until("of 40M");
    assert!(screen.contains("map     ["), "{screen}");
    terminal.key("q");
    terminal.until("ended 0");
}

/// A device that takes half a second to empty: how far it is stands on a terminal, and is gone at the end.
#[test]
fn a_long_drain_says_how_far_it_is() {
    if cannot_page() || common::lacks("tmux") {
        return;
    }
    let tree = Tree::start_with("40M", &["a", "b"], "fork", &["--pool", "none"]);
    tree.until_used(0, 16);
    let (ebb, device) = (ebb().display(), tree.path("a"));
    let terminal = Terminal::run(&format!("{ebb} swap off {device} {}", tree.pid));
    let screen = terminal.until("moved ");
    assert!(screen.contains(" MiB"), "{screen}");
    let screen = terminal.until("ended 0");
    assert!(!screen.contains("moved "), "{screen}");
    assert!(screen.contains("is not in use any more"), "{screen}");
}

/// Holds a process at its end until a file exists, as a tracer may.
const HOLDS_AT_ITS_END: &str = "import ctypes, os, sys, time
SEIZE, TRACE_EXIT, ALL = 0x4206, 0x40, 0x40000000
pid = int(sys.argv[1])
assert ctypes.CDLL(None).ptrace(SEIZE, pid, None, ctypes.c_void_p(TRACE_EXIT)) == 0
open(sys.argv[2], 'w').close()
os.waitpid(pid, ALL)
end = time.time() + 60
while not os.path.exists(sys.argv[3]) and time.time() < end: time.sleep(0.02)";

/// A process that serves the program's memory and takes long to end: a line says how long it has taken so far.
#[test]
fn a_slow_exit_says_how_long_it_takes() {
    if cannot_page() || common::lacks("tmux") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let [told, held, may_end] = ["told", "held", "may end"].map(|file| dir.path().join(file));
    let script = "import os, sys
kept = [os.urandom(4096) for _ in range(64 * 256)]
open(sys.argv[1], 'w').write(str(os.getppid()))
input()";
    let (ebb, script_file) = (ebb().display(), dir.path().join("script"));
    fs::write(&script_file, script).unwrap();
    let (script, file) = (script_file.display(), told.display());
    let terminal = Terminal::run(&format!("{ebb} run -m 40M python3 {script} {file}"));
    let start = Instant::now();
    let until = |what: &dyn Fn() -> bool| {
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let supervisor = || fs::read_to_string(&told).ok()?.parse::<u32>().ok();
    until(&|| supervisor().is_some());
    let helpers = helpers(supervisor().unwrap());
    let mut tracer = Command::new("python3")
        .args(["-c", HOLDS_AT_ITS_END, &helpers[0].to_string()])
        .args([&held, &may_end])
        .spawn()
        .unwrap();
    until(&|| held.exists());
    terminal.key("Enter");
    for second in [1, 2] {
        terminal.until(&format!("given back: {second} s so far"));
    }
    fs::write(&may_end, "").unwrap();
    let screen = terminal.until("ended 0");
    assert!(!screen.contains("given back"), "{screen}");
    // It paged, and somebody reads: nobody had to ask for the summary.
    assert!(screen.contains(" of 40M at most; "), "{screen}");
    tracer.wait().unwrap();
}

/// `ebb top` asks once a second. Asked a hundred times as often, supervisor and helpers may take half of a processor
/// more: half a percent.
#[test]
fn top_costs_its_tree_little() {
    if cannot_page() {
        return;
    }
    const SHARE: f64 = 0.005;
    let tree = tree();
    let supervisor: u32 = tree.supervisor().parse().unwrap();
    let all = || -> Duration {
        let helpers = helpers(supervisor).into_iter();
        helpers.chain([supervisor]).map(processor_time).sum()
    };
    let took = |during: &mut dyn FnMut()| {
        let before = all();
        during();
        all().saturating_sub(before).as_nanos() as u64
    };
    // Both have other work meanwhile: a machine that is busy with something else shows that in both.
    let quiet = took(&mut || std::thread::sleep(Duration::from_secs(3)));
    let mut asked = 0;
    let watched = took(&mut || {
        let mut watch = Command::new("timeout");
        watch.arg("3").arg(ebb());
        let lines = watch
            .args(["stats", &tree.pid, "--json", "--watch", "10ms"])
            .output()
            .unwrap();
        asked = text(&lines.stdout).lines().count() as u64;
    });
    assert!(asked > 20, "{asked}");
    let each = watched.saturating_sub(quiet) as f64 / asked as f64 / 1e9;
    println!("{:.3}% of a processor, by {asked} requests", each * 100.0);
    assert!(each < SHARE, "{watched} ns for {asked}, {quiet} ns without");
}

/// Another user's tree is neither shown nor listed, and the next step is named.
#[test]
fn a_tree_of_another_user() {
    if cannot_page() || common::lacks("setpriv") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let tree = tree();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("ebb");
    fs::copy(ebb(), &copy).unwrap();
    let pid = tree.pid.as_str();
    for (args, says) in [
        (&["stats", pid][..], "not of user 65534: act as user 0"),
        (&["top", pid, "--once"], "not of user 65534: act as user 0"),
        (&["limit", pid], "not of user 65534: act as user 0"),
        (&["swap", "show", pid], "not of user 65534: act as user 0"),
        (&["top", "--once"], "no `ebb run` of yours runs: start one"),
    ] {
        let mut command = Command::new("timeout");
        command.args([
            "-k1",
            "60",
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
        let output = command.arg(&copy).args(args).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        assert!(
            said.contains(says) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}

/// The answer to a request of HTTP.
fn request(mut to: impl Read + Write, what: &str) -> String {
    write!(to, "GET {what} HTTP/1.1\r\nHost: ebb\r\n\r\n").unwrap();
    let mut answer = String::new();
    to.read_to_string(&mut answer).unwrap();
    answer
}

/// The figures of a run with 40 MiB.
#[track_caller]
fn assert_has_metrics(answer: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("openmetrics-text"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
    assert!(
        body.contains("ebb_memory_bytes{kind=\"budget\"} 41943040"),
        "{body}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
    if let Some(samples) = samples(body) {
        assert_eq!(samples["ebb_memory_bytes kind=budget"], f64::from(40 << 20));
    }
}

/// At a port of the kernel's choice, which a line names.
#[test]
fn metrics_are_served_at_a_port() {
    if cannot_page() {
        return;
    }
    let mut child = Command::new(ebb())
        .args([
            "run",
            "-m",
            "40M",
            "--metrics",
            "127.0.0.1:0",
            "sleep",
            "60",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("ebb: metrics at http://");
    let address = address.and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}"));
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let ask = |what: &str| {
        let stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        request(stream, what)
    };
    assert_has_metrics(&ask("/metrics"));
    assert!(ask("/other").starts_with("HTTP/1.1 404"));
    let pid = child.id().to_string();
    Command::new("kill").arg(pid).status().unwrap();
    child.wait().unwrap();
}

#[test]
fn metrics_are_served_while_the_program_runs() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = format!("unix:{}", path.display());
    let mut child = Command::new(ebb())
        .args(["run", "-m", "40M", "--metrics", &address, "sleep", "60"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let ask = |what: &str| loop {
        if let Ok(stream) = UnixStream::connect(&path) {
            let patience = Some(Duration::from_secs(20));
            stream.set_read_timeout(patience).unwrap();
            return request(stream, what);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_has_metrics(&ask("/metrics"));
    assert!(ask("/other").starts_with("HTTP/1.1 404"));
    let taken = asked(&["run", "--metrics", &address, "true"]);
    assert_eq!(taken.status.code(), Some(125));
    assert!(
        text(&taken.stderr).contains("give another path"),
        "{}",
        text(&taken.stderr)
    );
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    child.wait().unwrap();
    assert!(!path.exists(), "the socket's name is left");

    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = port.local_addr().unwrap().to_string();
    for (address, says) in [
        (used.as_str(), "give another port"),
        ("0.0.0.0:9100", "anybody could read it"),
        ("9100", "127.0.0.1:PORT"),
    ] {
        let refused = asked(&["run", "--metrics", address, "true"]);
        assert_eq!(refused.status.code(), Some(125), "{address}");
        assert!(
            text(&refused.stderr).contains(says),
            "{}",
            text(&refused.stderr)
        );
    }
}

/// The program has ended, and left a process behind that is supervised.
#[test]
fn metrics_are_served_as_long_as_processes_live() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = format!("unix:{}", path.display());
    let output = asked(&[
        "run",
        "-m",
        "40M",
        "--metrics",
        &address,
        "sh",
        "-c",
        "sleep 3 > /dev/null 2>&1 & exit 3",
    ]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let stream = UnixStream::connect(&path).expect("somebody listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_has_metrics(&request(stream, "/metrics"));
    let start = Instant::now();
    while path.exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "the name stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A pager that is not looked at, or a terminal that is held: programs go on, and what was to be said is said later.
#[test]
fn nobody_has_to_read_what_is_said() {
    if cannot_page() {
        return;
    }
    // A program in a network namespace of its own is told of. A process that pages forks, which takes the supervisor's answer.
    const SCRIPT: &str = "import os, subprocess
kept = [os.urandom(32) * 128 for _ in range(96 * 256)]
large = 'import time; large = bytearray(16 << 20); time.sleep(1)'
subprocess.run(['unshare', '-rn', 'python3', '-c', large], check=True)
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(len({page[0] for page in kept}) < 2)
    assert os.waitpid(child, 0)[1] == 0
print('done', flush=True)";
    let (reader, writer) = std::io::pipe().unwrap();
    let fill = Command::new("dd")
        .args([
            "if=/dev/zero",
            "of=/proc/self/fd/1",
            "bs=4096",
            "oflag=nonblock",
        ])
        .stdout(writer.try_clone().unwrap())
        .stderr(Stdio::null())
        .status();
    fill.unwrap();
    let mut child = Command::new(ebb())
        .args([
            "run", "-m", "64M", "--swap", "none", "python3", "-c", SCRIPT,
        ])
        .stdout(Stdio::piped())
        .stderr(writer)
        .spawn()
        .unwrap();
    let (sender, done) = std::sync::mpsc::channel();
    let out = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(out).read_line(&mut line);
        let _ = sender.send(line);
    });
    let line = done.recv_timeout(Duration::from_secs(30));
    let pid = child.id().to_string();
    if line.is_err() {
        Command::new("kill").args(["-9", &pid]).status().unwrap();
    }
    assert_eq!(line.as_deref(), Ok("done\n"));
    let mut said = Vec::new();
    { reader }.read_to_end(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    let said = String::from_utf8_lossy(&said);
    let said = said.trim_start_matches('\0');
    assert!(said.contains("cannot be managed"), "{said}");
}

const HOLDS: &str = "import os
kept = [os.urandom(64) * 64 for _ in range(64 * 256)]
print(sum(page[0] for page in kept) > 0)";

#[test]
fn a_summary_says_what_the_programs_had() {
    if cannot_page() {
        return;
    }
    let run = |options: &[&str], script: &str| {
        let front = [
            &["run", "-m", "40M"][..],
            options,
            &["python3", "-c", script],
        ];
        let output = asked(&front.concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = run(&["--summary"], HOLDS);
    assert!(
        said.contains(" of 40M at most") && said.contains("in the pool at most"),
        "{said}"
    );
    // Data of 64 MiB, what blocks of 4129 bytes take beyond that, and Python itself.
    let (_, had) = said.split_once("the programs had ").expect(&said);
    let had: f64 = had.split_once('M').expect(&said).0.parse().unwrap();
    assert!((64.0..110.0).contains(&had), "{said}");
    assert!(said.contains("threads waited"), "{said}");
    assert!((1..=3).contains(&said.lines().count()), "{said}");
    // The ratio is that of the content: 64 bytes of each page are random there, and half of it here.
    let ratio = |said: &str| -> f64 {
        let (_, rest) = said.split_once(", compressed ").expect(said);
        rest.split_once(" times").expect(said).0.parse().unwrap()
    };
    let half = HOLDS.replace("os.urandom(64) * 64", "os.urandom(2048) + bytes(2048)");
    let (high, low) = (ratio(&said), ratio(&run(&["--summary"], &half)));
    assert!(high > 8.0 && (1.5..2.5).contains(&low), "{high}, {low}");
    let written = run(&["--summary", "--pool", "none"], HOLDS);
    assert!(written.contains("M written to devices"), "{written}");
    assert!(!written.contains("compressed"), "{written}");
    assert!(run(&["--summary"], "").contains("nothing was paged"));
    for options in [&["--summary=off"][..], &[]] {
        assert_eq!(run(options, HOLDS), "", "standard error is no terminal");
    }
}

/// One or two processes touch pages at random, of 64 MiB in all.
const TOUCHES: &str = "import os, random, sys
many = int(sys.argv[1])
child = os.fork() if many == 2 else 0
random.seed(int(child == 0))
kept = bytearray((64 << 20) // many)
for at in range(0, len(kept), 4096): kept[at:at + 64] = os.urandom(64)
for _ in range(40_000 // many): kept[random.randrange(len(kept) >> 12) << 12] ^= 1
if child: os.waitpid(child, 0)";

/// Two processes wait for a slow device most of the time, so their waits overlap: the tree's count once.
#[test]
fn waits_of_two_processes_at_once_count_once_for_the_tree() {
    if cannot_page() {
        return;
    }
    let slow = "delay=1/1:500us";
    let tree = Tree::start_faulty("40M", &["a"], "fork", &["--pool", "none"], slow);
    tree.until_used(0, 2);
    let sample = || {
        let json = asked(&["stats", &tree.pid, "--json"]);
        let stats: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        let each: Vec<u64> = [&tree.pid, &tree.second]
            .map(|pid| {
                let mut members = stats["members"].as_array().unwrap().iter();
                let member = members
                    .find(|m| m["pid"].as_u64() == pid.parse().ok())
                    .expect("a member");
                member["some_ns"].as_u64().unwrap()
            })
            .to_vec();
        let of_tree = ["some_ns", "full_ns"].map(|name| stats[name].as_u64().unwrap());
        (Instant::now(), each, of_tree)
    };
    let (from, each_before, tree_before) = sample();
    std::thread::sleep(Duration::from_secs(3));
    let (to, each, of_tree) = sample();
    let passed = (to - from).as_secs_f64();
    let share = |to: u64, from: u64| (to - from) as f64 / 1e9 / passed;
    let each: Vec<f64> = each
        .iter()
        .zip(&each_before)
        .map(|(to, from)| share(*to, *from))
        .collect();
    let [some, full] = [0, 1].map(|n| share(of_tree[n], tree_before[n]));
    println!("waited: each {each:?}, the tree some {some}, full {full}");
    let (most, sum) = (each[0].max(each[1]), each[0] + each[1]);
    assert!(sum > 1.2, "both wait for long: {each:?}");
    assert!((most - 0.1..1.05).contains(&some), "{some} of {each:?}");
    assert!(full <= some && full > sum - 1.3, "{full} of {each:?}");
}

#[test]
fn the_summary_says_what_more_memory_would_have_spared() {
    assert_spares("1");
}

#[test]
fn the_summary_says_what_more_memory_would_have_spared_two_processes() {
    assert_spares("2");
}

/// The summary names a budget and the waits that it would spare; a run with that budget shows whether it does.
#[track_caller]
fn assert_spares(processes: &str) {
    if cannot_page() {
        return;
    }
    // Each load from the device takes 100 us at least, so that threads wait long enough on any machine.
    let said = |memory: &str| {
        let mut command = Command::new("timeout");
        command.args(["-k1", "200"]).arg(ebb());
        command.args([
            "run",
            "-m",
            memory,
            "--summary",
            "--pool",
            "none",
            "python3",
            "-c",
            TOUCHES,
            processes,
        ]);
        let output = command
            .env("EBB_FAULTS", "delay=1/1:100us")
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        println!("{said}");
        said
    };
    // What is less than a second is none.
    let seconds = |time: &str| {
        let number = time.trim_start_matches(|c: char| !c.is_ascii_digit());
        let number: f64 = number.split(' ').next().unwrap().parse().unwrap();
        if time.contains("ms") || time.contains("less") {
            0.0
        } else {
            number
        }
    };
    let before = said("40M");
    let (_, advice) = before.split_once("with --memory ").expect(&before);
    let (budget, advice) = advice.split_once(" they would have waited ").unwrap();
    let (estimated, waited) = advice.split_once("instead of").unwrap();
    let (estimated, waited) = (seconds(estimated), seconds(waited));
    assert!(waited >= 1.0 && estimated <= waited / 4.0 + 1.0, "{before}");
    // In loads, which do not depend on what else the machine does. The figure printed is rounded to a second.
    let loads = |said: &str| -> f64 {
        let (before, _) = said.split_once(" from devices").expect(said);
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let after = said(budget);
    let expected = loads(&before) * (estimated + 0.5) / waited;
    assert!(
        loads(&after) <= expected + loads(&before) / 4.0,
        "{before}\n{after}"
    );
}

#[test]
fn an_end_for_memory_says_what_filled_the_budget_and_runs_the_hook() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let hook = format!("echo \"$EBB_PID $EBB_MESSAGE\" > {}", file.display());
    // Does not compress, and nothing else takes it. The parent is `ebb run`.
    let script = "import os\nprint(os.getppid(), flush=True)\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let options = common::ends_for_memory(&hook);
    let output = asked(&[&options[..], &["python3", "-c", script]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(
        said.contains("ebb: python3[") && said.contains("out of memory"),
        "{said}"
    );
    assert!(
        said.contains("this process has") && said.contains("there is no swap device"),
        "{said}"
    );
    let start = Instant::now();
    while !fs::read_to_string(&file).is_ok_and(|told| told.ends_with('\n')) {
        assert!(start.elapsed() < Duration::from_secs(20), "no hook");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = fs::read_to_string(&file).unwrap();
    let (pid, message) = told.split_once(' ').unwrap();
    assert_eq!(pid, text(&output.stdout).trim_end());
    assert!(
        message.starts_with("python3[") && message.contains("out of memory"),
        "{told}"
    );
}

/// The tree has one program. In a container whose first process is `ebb`, nobody outlives it.
#[test]
fn the_hook_is_waited_for_and_has_its_answers() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let (ebb, file) = (ebb().display(), file.display());
    let hook = format!("sleep 1; {ebb} stats $EBB_PID > {file}.part; mv {file}.part {file}");
    let script = "import os\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let options = common::ends_for_memory(&hook);
    let output = asked(&[&options[..], &["python3", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(128 + 9));
    let told = fs::read_to_string(file.to_string()).unwrap();
    assert!(told.starts_with("memory   "), "{told}");
}

/// Its wait ends by a signal, and the hook goes on.
#[test]
fn a_signal_ends_the_wait_for_the_hook() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let hook = format!(
        "echo $EBB_PID > {}; exec sleep 20 2> /dev/null",
        file.display()
    );
    let script = "import os\nprint(os.getpid(), flush=True)\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let mut command = Command::new(ebb());
    command.args(common::ends_for_memory(&hook));
    command.args(["python3", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut program = String::new();
    output.read_line(&mut program).unwrap();
    let start = Instant::now();
    while !file.exists() || fs::exists(format!("/proc/{}", program.trim())).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(20), "no hook");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it is not waited for");
    let start = Instant::now();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

/// There is a device, with room, and pages may not go there.
#[test]
fn an_end_for_memory_says_that_writeback_is_off() {
    if cannot_page() {
        return;
    }
    let script = "import os\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let options = [
        "run",
        "-m",
        "40M",
        "--writeback",
        "off",
        "--swap",
        "/var/tmp",
    ];
    let output = asked(&[&options[..], &["python3", "-c", script]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("`ebb limit PID --writeback on`"), "{said}");
    assert!(!said.contains("there is no swap device"), "{said}");
}

/// Pages that do not compress, in more memory than budget and device have.
#[test]
fn an_end_for_memory_says_that_the_devices_are_full() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let swap = format!("{}:8M", dir.path().display());
    let script = "import os\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let options = ["run", "-m", "40M", "--pool", "none", "--swap", &swap];
    let output = asked(&[&options[..], &["python3", "-c", script]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("the swap devices are full or gone"), "{said}");
}

/// Locks 24 MiB. The first of them says so, and starts another, which is not to have as much.
const LOCKS: &str = "import ctypes, mmap, subprocess, sys
kept = mmap.mmap(-1, 24 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(kept))
assert ctypes.CDLL(None).mlock(ctypes.c_void_p(at), ctypes.c_size_t(len(kept))) == 0
for page in range(0, len(kept), 4096): kept[page] = 1
print('locked', flush=True)
if len(sys.argv) > 1: subprocess.run([sys.executable, '-c', sys.argv[1]])";

/// Each process could have what it locks, and both together cannot: the device has room, and nothing can go there.
#[test]
fn an_end_for_memory_says_that_room_on_the_devices_would_not_help() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let swap = format!("{}:256M", dir.path().display());
    let options = ["run", "-m", "48M", "--pool", "none", "--swap", &swap];
    let output = asked(&[&options[..], &["python3", "-c", LOCKS, LOCKS]].concat());
    let (locked, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(locked, "locked\n", "{said}");
    assert!(
        said.contains("there is room for more on the swap devices"),
        "{said}"
    );
}
