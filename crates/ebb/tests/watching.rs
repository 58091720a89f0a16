//! What a running tree shows: `ebb stats`, `ebb top`, `--metrics`, the summary, and the hook at an end for memory.

mod common;

use common::tree::Tree;
use common::{cannot_page, ebb};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
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
fn stats_of_a_running_tree_as_text_json_and_openmetrics() {
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
    let members = stats["members"].as_array().unwrap();
    assert!(
        members
            .iter()
            .any(|m| m["pid"].as_u64() == tree.pid.parse().ok()),
        "{stats}"
    );

    let shown = text(&asked(&["stats", &tree.pid]).stdout);
    assert!(shown.contains("of 40M in use; it pages"), "{shown}");
    let metrics = asked(&["stats", &tree.pid, "--prometheus"]);
    check_openmetrics(&text(&metrics.stdout));

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

/// The grammar of OpenMetrics, as far as these metrics use it: each family is described before its samples, a
/// counter's samples end in `_total`, no sample comes twice, and the text ends in `# EOF`.
fn check_openmetrics(metrics: &str) {
    let mut kinds = std::collections::HashMap::new();
    let mut seen = std::collections::HashSet::new();
    let lines = metrics.lines();
    assert_eq!(metrics.lines().last(), Some("# EOF"), "{metrics}");
    for line in lines {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(kinds.insert(name, kind).is_none(), "{name} twice");
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        assert!(seen.insert(series), "{series} twice");
        let name = series.split('{').next().unwrap();
        let family = name.strip_suffix("_total").unwrap_or(name);
        let kind = kinds
            .get(family)
            .unwrap_or_else(|| panic!("{name} is not described"));
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{line}");
    }
    for series in [
        "ebb_memory_bytes{kind=\"budget\"} 41943040",
        "ebb_memory_bytes{kind=\"pool\"} ",
        "ebb_faults_total{way=\"device\"} ",
        "ebb_fault_duration_seconds{way=\"device\",quantile=\"0.99\"} ",
        "ebb_pressure_memory_waiting_seconds_total ",
        "ebb_swap_device_used_bytes{device=",
        "ebb_processes ",
    ] {
        assert!(
            metrics.lines().any(|line| line.starts_with(series)),
            "{series}:\n{metrics}"
        );
    }
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

/// A real terminal: keys reach it, and it is left as it was.
#[test]
fn top_in_a_terminal() {
    if cannot_page() || common::lacks("tmux") {
        return;
    }
    let tree = tree();
    let socket = format!("ebb-top-{}", std::process::id());
    let tmux = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["-k1", "20", "tmux", "-L", &socket, "-f", "/dev/null"]);
        text(&command.args(args).output().unwrap().stdout)
    };
    let until = |what: &str| {
        let start = Instant::now();
        loop {
            let screen = tmux(&["capture-pane", "-p"]);
            if screen.contains(what) {
                return screen;
            }
            if start.elapsed() > Duration::from_secs(30) {
                tmux(&["kill-server"]);
                panic!("no {what:?}:\n{screen}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let command = format!(
        "NO_COLOR=1 {} top {}; echo ended $?; sleep 60",
        ebb().display(),
        tree.pid
    );
    tmux(&["new-session", "-d", "-x", "80", "-y", "24", &command]);
    let screen = until("sort: faults");
    assert!(
        screen.contains("resident") && screen.contains("WAITED"),
        "{screen}"
    );
    tmux(&["send-keys", "s"]);
    until("sort: memory");
    tmux(&["send-keys", "?"]);
    until("keys and words");
    tmux(&["send-keys", "q"]);
    until("ended 0");
    tmux(&["kill-server"]);
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
        if let Ok(mut stream) = std::os::unix::net::UnixStream::connect(&path) {
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            write!(stream, "GET {what} HTTP/1.1\r\nHost: ebb\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    };
    let answer = ask("/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("openmetrics-text"),
        "{head}"
    );
    assert!(
        body.contains("ebb_memory_bytes{kind=\"budget\"} 41943040"),
        "{body}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
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

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
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
    assert!(said.contains("threads waited"), "{said}");
    assert!((1..=3).contains(&said.lines().count()), "{said}");
    assert!(run(&["--summary"], "").contains("nothing was paged"));
    for options in [&["--summary=off"][..], &[]] {
        assert_eq!(run(options, HOLDS), "", "standard error is no terminal");
    }
}

#[test]
fn an_end_for_memory_says_what_filled_the_budget_and_runs_the_hook() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let hook = format!("echo \"$EBB_PID $EBB_MESSAGE\" > {}", file.display());
    // Does not compress, and nothing else takes it.
    let script = "import os\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let options = [
        "run",
        "-m",
        "40M",
        "--swap",
        "none",
        "--on-exhausted",
        &hook,
    ];
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
    assert!(
        told.contains("python3[") && told.contains("out of memory"),
        "{told}"
    );
}
