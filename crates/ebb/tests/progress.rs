//! Progress: in the smallest budgets a program gets on, or is ended with a word; it never goes round in a few
//! pages for ever.

mod common;

use common::{Managed, Under, c_program, cannot_page, free, lacks};
use ebb_harness::MIB;
use ebb_harness::job::{Job, Outcome};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

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
            .options(&["--swap", "size=64M"])
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
            .options(&["--swap", "size=64M"])
            .run(&job);
        right_or_out_of_memory(&managed, &alone, &what);
        ended += u32::from(!managed.run.ok());
    }
    assert!(ended > 0, "the last of them has no room at all");
}

/// Objects with debugging information, whose strings the linker merges.
fn objects(dir: &Path) {
    for unit in 1..=4 {
        let calls: String = (1..=40)
            .map(|k| format!("{{ S<{k}> s; t += s.f(\"x{k}\"); }}\n"))
            .collect();
        let source = format!(
            "#include <array>\n#include <functional>\n#include <map>\n#include <regex>\n#include <string>\n\
             #include <unordered_map>\n#include <vector>\n\
             namespace n{unit} {{ template<int N> struct S {{\n\
             std::map<std::string, std::vector<std::array<int, N>>> m; std::regex r{{\"a+b\"}};\n\
             int f(std::string s) {{ m[s].push_back({{}}); std::unordered_map<int, std::string> u; u[N] = s;\n\
             std::function<int(int)> g = [&](int x) {{ return x + (int)u.size(); }}; std::smatch k;\n\
             return std::regex_search(s, k, r) ? g(N) : m.size(); }} }};\n\
             int go() {{ int t = 0;\n{calls}return t; }} }}\n"
        );
        std::fs::write(dir.join(format!("{unit}.cpp")), source).unwrap();
    }
    let compile = "for i in 1 2 3 4; do g++ -g -O0 -std=c++17 -c $i.cpp -o $i.o || exit 1; done";
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
    let link =
        "ld.lld --threads=1 -o x 1.o 2.o 3.o 4.o -e 0 --unresolved-symbols=ignore-all && cksum <x";
    let job = Job::new(["sh", "-c", link]).dir(dir.path());
    let alone = free(&job, "the linker");
    for kib in [16 << 10, 20 << 10, 24 << 10] {
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
