//! Progress: in the smallest budgets a program gets on, or is ended with a word; it never goes round in a few
//! pages for ever.

mod common;

use common::{Managed, Under, c_program, cannot_page, free, lacks};
use ebb_harness::MIB;
use ebb_harness::job::{Job, Outcome};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The smallest budget of these tests: less than a test of `same_in_parts` has.
const SMALL: u64 = 16 * MIB;

fn spans(locked_kib: &str, threads: &str) -> Job {
    let program = c_program("spans");
    let arguments = [locked_kib, threads, "500"].map(OsStr::new);
    Job::new([program.as_os_str()].into_iter().chain(arguments)).time_limit(Duration::from_secs(60))
}

/// It printed what it prints by itself, or was ended as what has to stay is more than there is room for.
fn right_or_out_of_memory(managed: &Managed, alone: &Outcome, what: &str) {
    let run = &managed.run;
    assert!(run.status.is_some(), "{what}: it hung\n{}", run.stderr);
    if run.ok() {
        managed.assert_same(alone, what);
        return;
    }
    let told = run.stderr.contains("out of memory: ");
    assert!(told, "{what}: {}\n{}", run.ending(), run.stderr);
}

/// Each copies eight bytes from across one end of a page to across another: four pages at once, of as few
/// as locked memory leaves.
#[test]
fn an_instruction_that_needs_several_pages_gets_them() {
    if cannot_page() {
        return;
    }
    for (locked, threads) in [("11500", "4"), ("12000", "8"), ("12000", "1")] {
        let job = spans(locked, threads);
        let what = format!("{threads} threads beside {locked} KiB");
        let alone = free(&job, &what);
        assert_eq!(alone.stdout, b"as it should be\n");
        let managed = Under::budget(SMALL)
            .options(&["--swap", "/var/tmp:64M"])
            .run(&job);
        managed.assert_same(&alone, &what);
        // Each page of each copy is missing a few times at most: not over and over (before: a million times).
        let copies = threads.parse::<u64>().unwrap() * 500;
        let faults = managed.counter("fault");
        println!("{what}: {faults} faults for {copies} copies");
        let filled_and_checked = 3 * threads.parse::<u64>().unwrap() * 1024;
        assert!(
            faults < 10 * (4 * copies + filled_and_checked),
            "{what}: {faults} faults"
        );
    }
}

/// More and more memory that stays, up to more than there is.
#[test]
fn where_nothing_is_left_the_end_comes_soon_and_says_why() {
    if cannot_page() {
        return;
    }
    let mut ended = 0;
    for locked in ["14000", "15000", "15500", "18000"] {
        let job = spans(locked, "2");
        let what = format!("beside {locked} KiB");
        let alone = free(&job, &what);
        let managed = Under::budget(SMALL)
            .options(&["--swap", "/var/tmp:64M"])
            .run(&job);
        right_or_out_of_memory(&managed, &alone, &what);
        ended += u32::from(!managed.run.ok());
    }
    assert!(ended > 0, "the last of them has no room at all");
}

/// Four objects of the same, with debugging information, whose strings the linker merges.
fn objects(dir: &Path) {
    let calls: String = (1..=40)
        .map(|k| format!("{{ S<{k}> s; t += s.f(\"x{k}\"); }}\n"))
        .collect();
    let source = format!(
        "#include <array>\n#include <functional>\n#include <map>\n#include <regex>\n#include <string>\n\
         #include <unordered_map>\n#include <vector>\n\
         template<int N> struct S {{\n\
         std::map<std::string, std::vector<std::array<int, N>>> m; std::regex r{{\"a+b\"}};\n\
         int f(std::string s) {{ m[s].push_back({{}}); std::unordered_map<int, std::string> u; u[N] = s;\n\
         std::function<int(int)> g = [&](int x) {{ return x + (int)u.size(); }}; std::smatch k;\n\
         return std::regex_search(s, k, r) ? g(N) : m.size(); }} }};\n\
         int go() {{ int t = 0;\n{calls}return t; }}\n"
    );
    std::fs::write(dir.join("1.cpp"), source).unwrap();
    let compile =
        "g++ -g -O0 -std=c++17 -c 1.cpp && for i in 2 3 4; do cp 1.o $i.o || exit 1; done";
    let compiled = Job::new(["sh", "-c", compile])
        .dir(dir)
        .time_limit(Duration::from_secs(300));
    let run = compiled.run(None).unwrap();
    assert!(run.ok(), "{}", run.stderr);
}

/// It merges strings all over what it holds, most of which is out.
#[test]
fn a_linker_in_the_smallest_budget() {
    if cannot_page() || lacks("g++") || lacks("ld.lld") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    objects(dir.path());
    let link = "ld.lld --threads=1 -z muldefs -o x 1.o 2.o 3.o 4.o -e 0 --unresolved-symbols=ignore-all && cksum <x";
    let job = Job::new(["sh", "-c", link]).dir(dir.path());
    let alone = free(&job, "the linker");
    for kib in [16 << 10, 20 << 10] {
        let what = format!("the linker in {kib} KiB");
        let managed = Under::budget(kib << 10)
            .options(&["--swap", "none"])
            .run(&job);
        println!(
            "{what}: {}, {}",
            managed.run.ending(),
            managed.stats["faults"]
        );
        right_or_out_of_memory(&managed, &alone, &what);
        assert!(
            kib < 20 << 10 || managed.run.ok(),
            "{what}\n{}",
            managed.run.stderr
        );
    }
}

/// Perl's data lie all over its memory, and do not fit by far.
#[test]
fn perl_in_a_third() {
    if cannot_page() || lacks("perl") {
        return;
    }
    let script = "my @a = map { { id => $_, name => \"n$_\", l => [1..5] } } 1..60000; my $t = 0;\
                  for my $r (1..3) { for (@a) { $t += $_->{id} * scalar(@{$_->{l}}); $_->{name} .= 'x' } }\
                  print \"$t\\n\";";
    let job = Job::new(["perl", "-e", script]);
    common::same_in_parts(&job, "perl", &[3], &[]);
}

/// A group of the kernel's freezer, which freezes processes as sleep and hibernation do.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let dir = Path::new("/sys/fs/cgroup/freezer").join(format!("ebbtide-{}", process::id()));
        std::fs::create_dir(&dir).ok()?;
        Some(Self(dir))
    }

    /// Asks for a state; how long it took, if it came.
    fn set(&self, state: &str) -> Option<Duration> {
        let file = self.0.join("freezer.state");
        let start = Instant::now();
        std::fs::write(&file, state).unwrap();
        while start.elapsed() < Duration::from_secs(10) {
            if std::fs::read_to_string(&file).unwrap().trim() == state {
                return Some(start.elapsed());
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // A frozen process cannot even be killed.
        self.set("THAWED");
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The kernel gives a sleep up after 20 s, if there is a thread that does not freeze. One that waits for a page is
/// served by a thread that may be frozen already.
#[test]
fn a_tree_freezes_as_for_sleep_and_goes_on() {
    if cannot_page() || lacks("python3") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let Some(group) = Freezer::new() else {
        return println!("skipped: no freezer of cgroups of version 1");
    };
    let program = "import os, random, sys\n\
        data = [os.urandom(4096) for _ in range(20000)]\n\
        first = [page[0] for page in data]\n\
        print('filled', flush=True)\n\
        while not os.path.exists(sys.argv[1]):\n \
            right = all(data[i][0] == first[i] for i in random.sample(range(20000), 2000))\n \
            if not right: sys.exit('another content')\n\
        print('right')";
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let over = dir.path().join("over");
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.0.display());
    let mut run = Command::new("timeout")
        .args(["-k1", "120", "sh", "-c", &join, "sh"])
        .arg(common::ebb())
        .args(["run", "-m", "48M", "--swap"])
        .arg(dir.path())
        .args(["--", "python3", "-c", program])
        .arg(&over)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "filled");
    let mut longest = Duration::ZERO;
    for turn in 0..20 {
        let took = group.set("FROZEN");
        let took = took.unwrap_or_else(|| panic!("turn {turn}: a thread does not freeze"));
        longest = longest.max(took);
        thread::sleep(Duration::from_millis(20));
        group.set("THAWED").expect("it goes on");
        // Another moment of a fault each time.
        thread::sleep(Duration::from_millis(50) + Duration::from_micros(turn * 137));
    }
    println!("frozen within {longest:?}");
    std::fs::write(&over, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "right");
    assert!(run.wait().unwrap().success());
}
