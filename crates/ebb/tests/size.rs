//! `ebb size`: how much memory a program needs, and its time with less. The predicted times are held against real runs.

mod common;

use common::tree::{BUDGET, Tree};
use common::{alone, cannot_page, ebb, lacks};
use ebb_harness::job::Job;
use ebb_harness::workloads::{Scale, Workload};
use ebb_harness::{MIB, tools};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn size(arguments: &[&str]) -> Output {
    let mut timeout = Command::new("timeout");
    timeout.args(["-k1", "120"]).arg(ebb()).arg("size");
    timeout
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The report of `ebb size` on a job in this memory.
fn report(job: &Job, memory: &str, dir: &Path) -> Value {
    let file = dir.join("report");
    let words = ["size", "--json", "--memory", memory, "--output"].map(Into::into);
    let wrapper = [ebb().as_os_str().to_owned()].into_iter().chain(words);
    let wrapper = wrapper.chain([file.clone().into(), "--".into()]);
    let run = job.clone().behind(wrapper).run(None).unwrap();
    assert!(run.ok(), "{}: {}", run.ending(), run.stderr);
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The time that a job takes in so much memory.
fn real(job: &Job, bytes: u64) -> f64 {
    let words = [
        "run".into(),
        "--memory".into(),
        bytes.to_string().into(),
        "--".into(),
    ];
    let wrapper = [ebb().as_os_str().to_owned()].into_iter().chain(words);
    let start = Instant::now();
    let run = job.clone().behind(wrapper).run(None).unwrap();
    assert!(run.ok(), "{}: {}", run.ending(), run.stderr);
    start.elapsed().as_secs_f64()
}

/// Whether a row is right within a quarter, or as it says.
fn holds(row: &Value, real: f64) -> bool {
    let seconds = |name: &str| row[name].as_f64().unwrap();
    let near = (seconds("seconds") / real - 1.0).abs() <= 0.25;
    near || (seconds("at_least")..=seconds("at_most")).contains(&real)
}

/// Three programs, in three budgets each. Other load changes times, so there are three rounds: each budget has to hold
/// in one of them.
#[test]
fn predicted_times_hold() {
    if cannot_page() || common::not_built_for_speed() {
        return;
    }
    let _alone = alone();
    let heap = [
        tools::project()
            .join("bench/python_heap.py")
            .into_os_string(),
        "120000".into(),
    ];
    let Some(python) = tools::python() else {
        return println!("skipped: python3 is not installed");
    };
    let heap = Job::new([python.into_os_string()].into_iter().chain(heap));
    let jobs = [
        ("touch", "80M", Workload::Touch.job(Scale::Small)),
        ("NumPy", "64M", Workload::Numpy.job(Scale::Small)),
        ("heap", "40M", Ok(heap)),
    ];
    for (name, memory, job) in jobs {
        match job {
            Ok(job) => times_hold(name, memory, &job.time_limit(Duration::from_secs(120))),
            Err(error) => println!("skipped in part: {error}"),
        }
    }
}

fn times_hold(name: &str, memory: &str, job: &Job) {
    let dir = tempfile::tempdir().unwrap();
    let mut held = [false; 3];
    let mut rounds = Vec::new();
    while held != [true; 3] {
        assert!(rounds.len() < 9, "{name}: {}", rounds.join("; "));
        let report = report(job, memory, dir.path());
        let rows = report["budgets"].as_array().unwrap();
        assert!(rows.len() >= 4, "{report}");
        for (held, i) in held.iter_mut().zip([1, rows.len() / 2, rows.len() - 1]) {
            let bytes = rows[i]["bytes"].as_u64().unwrap();
            let real = real(job, bytes);
            rounds.push(format!("{} MiB: {real:.2} s, {}", bytes / MIB, rows[i]));
            *held |= holds(&rows[i], real);
        }
    }
    println!("{name}: {}", rounds.join("\n    "));
}

/// It lets the program's output and status through, and its budget follows.
#[test]
fn the_report_says_what_a_program_has_and_touches() {
    if cannot_page() || lacks("python3") {
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (file, plot) = (dir.path().join("report"), dir.path().join("plot.svg"));
    // 240 MiB, of which it goes on using 60.
    let program = "import sys, time\n\
        pages = [bytes([i % 256]) * 100 + bytes(3900) for i in range(60_000)]\n\
        end = time.time() + 1.5\n\
        while time.time() < end: sum(page[0] for page in pages[:15_000])\n\
        print('its own'); sys.exit(7)";
    let out = size(&[
        "--json",
        "--interval",
        "50ms",
        "-o",
        file.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
        "--",
        "python3",
        "-c",
        program,
    ]);
    assert_eq!(
        (out.status.code(), text(&out.stdout).as_str()),
        (Some(7), "its own\n")
    );
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let had = report["had_bytes"].as_u64().unwrap();
    assert!((230 * MIB..290 * MIB).contains(&had), "{report}");
    let budgets = report["budgets"].as_array().unwrap();
    let first = budgets[0]["bytes"].as_u64().unwrap();
    assert!(
        (had / 16 * 7..had / 8 * 5).contains(&first),
        "half of what it has: {report}"
    );
    assert!(
        budgets.last().unwrap()["fits"] == true && budgets[0]["fits"] == false,
        "{report}"
    );
    assert_eq!(report.get("resident_bytes"), None, "it has ended: {report}");
    assert_eq!(report["budget_changed"], false, "by the user: {report}");
    let touched = report["touched"].as_array().unwrap();
    let windows: Vec<_> = touched
        .iter()
        .map(|window| window["seconds"].as_f64().unwrap())
        .collect();
    assert!(windows.starts_with(&[0.05, 0.5]), "{report}");
    // The first window sees the interpreter start, if it gets a processor at all.
    let bytes = |window: &Value| window["bytes"].as_u64().unwrap();
    assert!(bytes(&touched[0]) > 0, "{report}");
    let mut others = touched[1..].iter().map(bytes);
    assert!(others.all(|bytes| bytes > 10 * MIB), "{report}");
    let plot = fs::read_to_string(plot).unwrap();
    assert!(
        plot.starts_with("<svg") && plot.ends_with("</svg>\n") && plot.contains("<polyline"),
        "{plot}"
    );
}

/// As a table, of a program that runs already.
#[test]
fn a_tree_that_runs_is_looked_at() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let tree = Tree::start(BUDGET, &["a"], "fork");
    let said = size(&["--interval", "20ms", &tree.pid]);
    let json = size(&["--interval", "20ms", "--json", &tree.pid]);
    tree.stop(2);
    let report: Value = serde_json::from_slice(&json.stdout).expect("one object");
    let windows = report["touched"].as_array().unwrap();
    assert_eq!(windows.len(), 3, "{report}");
    assert!(report["resident_bytes"].as_u64() > Some(0), "{report}");
    let table = text(&said.stdout);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(
        table.contains("within 1.2 s") && table.contains("as it ran"),
        "{table}"
    );
    assert!(
        table.contains("MEMORY") && table.contains("nothing is paged"),
        "{table}"
    );
}

/// In less memory than is tried first.
#[test]
fn a_program_is_looked_at_in_what_there_is() {
    if cannot_page() {
        return;
    }
    let mut outer = Command::new("timeout");
    outer.args(["-k1", "60"]).arg(ebb());
    outer.args(["run", "--memory", "48M", "--swap", "none"]);
    outer.arg(ebb()).args(["size", "--", "true"]);
    let output = outer.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn bad_input_has_one_message_with_the_next_step() {
    if cannot_page() {
        return;
    }
    for (arguments, told) in [
        (
            &["--interval", "soon", "--", "true"][..],
            "--interval soon: give a time",
        ),
        (
            &["-o", "/no/such/place", "--", "true"][..],
            "give a file that can be written",
        ),
        (&["1"][..], "ebb run"),
        (&["true"][..], "to run a command write `ebb size -- true`"),
        (&[][..], "required"),
        (&["-m", "1G", "4711"][..], "cannot be used with"),
    ] {
        let out = size(arguments);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
}

/// The report comes as the program ends, and its reader waits for nothing that is left behind.
#[test]
fn a_report_into_a_pipe_has_its_end_with_the_program() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let read = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read_to_string(pipe).unwrap())
    };
    let leaves = "sleep 40 >/dev/null 2>&1 & echo $!";
    let run = size(&["-o", pipe.to_str().unwrap(), "--", "sh", "-c", leaves]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let start = Instant::now();
    let report = read.join().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it was waited for"
    );
    assert!(report.starts_with("The programs had"), "{report}");
    let left = text(&run.stdout);
    let kill = Command::new("kill").arg(left.trim()).status();
    assert!(kill.unwrap().success());
}
