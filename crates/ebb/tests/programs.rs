//! Programs people use, with memory managers of their own: compilers of C++ and Rust, the JVM,
//! Node.js, make, perl, ruby, PHP, sqlite3, Chromium. Each prints the same in half its memory.

mod common;

use common::{Under, cannot_page, free, lacks, same_in_parts};
use ebb_harness::job::Job;
use ebb_harness::workloads::{Scale, Workload};
use ebb_harness::{MIB, tools};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// A workload prints the same in half of its memory.
fn same_in_half(workload: Workload) {
    if cannot_page() {
        return;
    }
    match workload.job(Scale::Small) {
        Ok(job) => drop(same_in_parts(&job, workload.name(), &[2], &[])),
        Err(missing) => println!("skipped: {missing:#}"),
    }
}

#[test]
fn a_cpp_compiler() {
    same_in_half(Workload::Compiler);
}

#[test]
fn make_with_two_jobs() {
    same_in_half(Workload::Make);
}

/// Its jemalloc is found before our malloc, by libc too: when libc starts a thread of ours, say.
#[test]
fn a_program_with_a_malloc_that_libc_uses() {
    if cannot_page() || lacks("rustc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let functions: String = (0..60)
        .map(|i| {
            format!(
                "pub fn f{i}(n: usize) -> Vec<(String, Vec<u64>)> {{\n\
                 let mut m = std::collections::BTreeMap::<String, Vec<u64>>::new();\n\
                 for j in 0..n {{ m.entry(format!(\"{{}}\", j % {})).or_default().push(j as u64); }}\n\
                 let mut v: Vec<_> = m.into_iter().collect();\n\
                 v.sort_by_key(|(k, w)| (w.iter().sum::<u64>(), k.len())); v }}\n",
                i + 3
            )
        })
        .collect();
    fs::write(dir.path().join("a.rs"), functions).unwrap();
    let job = Job::new(["rustc", "--crate-type=lib", "--emit=asm", "-o", "-", "a.rs"])
        .dir(dir.path())
        .time_limit(Duration::from_secs(240));
    same_in_parts(&job, "rustc", &[2], &[]);
}

#[test]
fn java() {
    same_in_half(Workload::Java);
}

#[test]
fn node() {
    same_in_half(Workload::Node);
}

/// A program's own checks, several hundred of them.
#[test]
fn numpys_own_checks() {
    if cannot_page() {
        return;
    }
    let Some(python) = tools::python_with("numpy, pytest, hypothesis") else {
        println!("skipped: NumPy, pytest and hypothesis are not installed");
        return;
    };
    // The report of pytest, without its times.
    let script = "import pytest, sys, io, contextlib, re\n\
                  out = io.StringIO()\n\
                  with contextlib.redirect_stdout(out):\n\
                  \x20   code = pytest.main(['-q', '-p', 'no:cacheprovider', '--disable-warnings', '--pyargs',\n\
                  \x20                       'numpy.lib.tests.test_function_base'])\n\
                  print(re.sub(r' in [0-9.]+s.*', '', out.getvalue()))\n\
                  sys.exit(int(code))\n";
    let job = Job::new([python.as_os_str(), "-c".as_ref(), script.as_ref()])
        .time_limit(Duration::from_secs(240));
    same_in_parts(&job, "NumPy's checks", &[2], &[]);
}

/// CPython's regression tests of what holds memory, beside memory that does not fit: they go on in
/// what is left of the budget.
#[test]
fn cpythons_own_checks() {
    if cannot_page() {
        return;
    }
    let Some(python) = tools::python_with(tools::CPYTHONS_TESTS) else {
        println!("skipped: CPython's tests are not installed");
        return;
    };
    // Which of them passed, but not how long they took, nor in what order they say so.
    let script = "import io, contextlib, os, re, sys, zlib\n\
                  from test.libregrtest.main import main\n\
                  kept = b''.join(os.urandom(2000) + b'x' * 2096 for _ in range(16000))\n\
                  was = zlib.crc32(kept)\n\
                  names = 'dict list set json mmap array memoryview bytes thread sqlite3'.split()\n\
                  sys.argv = ['regrtest', '-q', '--randseed', '1'] + ['test_' + name for name in names]\n\
                  out, code = io.TextIOWrapper(io.BytesIO(), write_through=True), 0\n\
                  try:\n\
                  \x20   with contextlib.redirect_stdout(out): main()\n\
                  except SystemExit as end: code = end.code\n\
                  said = out.buffer.getvalue().decode()\n\
                  print(re.findall('Total test.*|Result.*|.*FAILED.*', said), was == zlib.crc32(kept))\n\
                  if code: print(said)\n\
                  sys.exit(code)\n";
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new([python.as_os_str(), "-c".as_ref(), script.as_ref()])
        .dir(dir.path())
        .time_limit(Duration::from_secs(240));
    same_in_parts(&job, "CPython's checks", &[2], &[]);
}

/// The file its forked child writes is sound, and holds what there was at the fork.
#[test]
fn redis_saves_from_a_forked_child() {
    same_in_half(Workload::RedisSave);
}

/// Memory that may be written and executed is a heap like any other.
#[test]
fn a_heap_of_executable_memory() {
    if cannot_page() {
        return;
    }
    let job = Job::new([common::c_program("executable").as_os_str()]);
    same_in_parts(&job, "executable memory", &[2], &[]);
}

/// Its heap is thousands of mappings of 16 KiB.
#[test]
fn ruby() {
    if cannot_page() || lacks("ruby") {
        return;
    }
    let script = "h = {}; 250_000.times { |i| h[\"k#{i * 7919 % 250_007}\"] = [i, \"v#{i % 977}\"] }; s = 0;\
                  250_000.times { |i| e = h[\"k#{i}\"]; s = (s * 31 + e[0] + e[1].size) % 1_000_003 if e };\
                  puts h.size, s";
    same_in_parts(&Job::new(["ruby", "-e", script]), "ruby", &[2], &[]);
}

/// Its extensions are opened with RTLD_DEEPBIND, past our malloc if that were left to them.
#[test]
fn php() {
    if cannot_page() || lacks("php") {
        return;
    }
    let script = "ini_set('memory_limit', '-1'); $h = [];\
                  for ($i = 0; $i < 150000; $i++) $h['k' . ($i * 7919 % 150001)] = [$i, 'v' . ($i % 977)];\
                  $s = 0; for ($i = 0; $i < 150000; $i++) if (isset($h[\"k$i\"])) {\
                  $e = $h[\"k$i\"]; $s = ($s * 31 + $e[0] + strlen($e[1])) % 1000003; }\
                  echo count($h), ' ', $s;";
    same_in_parts(&Job::new(["php", "-r", script]), "php", &[2], &[]);
}

#[test]
fn perl() {
    if cannot_page() || lacks("perl") {
        return;
    }
    let script = "my %h; $h{$_ * 7919 % 120011} = \"value $_\" for 1..120000; my $s = 0;\
                  for (sort { $a <=> $b } keys %h) { $s = ($s * 31 + length($h{$_}) + $_) % 1000000007 } print \"$s\\n\";";
    same_in_parts(&Job::new(["perl", "-e", script]), "perl", &[2], &[]);
}

/// The output of one sort is in order for another, where neither has room for it.
#[test]
fn sort_checks_what_it_sorted() {
    if cannot_page() {
        return;
    }
    let script = "seq 700000 | awk '{ print ($1 * 7919) % 700001, \"a line of some length\", $1 }' |\
                  LC_ALL=C sort --parallel=2 --buffer-size=400M |\
                  LC_ALL=C sort --check --buffer-size=400M && echo in order";
    let free = same_in_parts(&Job::new(["bash", "-c", script]), "sort --check", &[2], &[]);
    assert_eq!(free.stdout, b"in order\n");
}

/// With its own look at whether its tables and indexes are whole.
/// It ends, too, when its clients are done. It is started by root and is another user before it runs, as it refuses to be
/// root: so is each of its processes, and each pages.
#[test]
fn postgresql_in_40_and_in_16_mib() {
    const SERVES: &str = r#"set -e
export PATH="$1:$PATH" PGDATA="$2/data" PGHOST="$2" PGDATABASE=postgres
initdb -N -A trust >/dev/null
pg_ctl -s -w -t 90 -l "$2/log" -o "-c listen_addresses= -k $2 -c fsync=off" start
pgbench -q -i -s 1 2>/dev/null
pgbench -n -c 4 -t 100 2>/dev/null | grep -E 'actually processed|failed'
psql -At -c 'select count(*), sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts'
pg_ctl -s -w -t 90 -m fast stop
echo stopped"#;
    if cannot_page() {
        return;
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let bin = versions.into_iter().flatten().flatten().next();
    let Some(bin) = bin.map(|version| version.path().join("bin")) else {
        println!("skipped: pgbench is not installed");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let job = || {
        let data = tempfile::tempdir_in(dir.path()).unwrap().keep();
        for path in [dir.path(), &data] {
            fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        let mut words: Vec<OsString> = Vec::new();
        if ebb_harness::is_root() {
            let user = [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
            ];
            words.extend(user.map(OsString::from));
        }
        words.extend(["sh", "-c", SERVES, "sh"].map(OsString::from));
        words.extend([bin.clone().into(), data.into()]);
        Job::new(words).time_limit(Duration::from_secs(150))
    };
    let alone = job().run(None).unwrap();
    assert_eq!(alone.ending(), "finished", "{}", alone.stderr);
    assert!(alone.stdout.ends_with(b"100000|t\nstopped\n"));
    for mib in [40, 16] {
        let managed = Under::budget(mib * MIB).run(&job());
        managed.assert_same(&alone, "PostgreSQL");
        assert!(
            !managed.run.stderr.contains("unmanaged"),
            "{}",
            managed.run.stderr
        );
        if mib == 16 {
            managed.assert_paged_within_budget("PostgreSQL");
        }
    }
}

#[test]
fn sqlite3_on_the_command_line() {
    if cannot_page() || lacks("sqlite3") {
        return;
    }
    let script = "pragma temp_store=memory; create table t(a integer primary key, b text);\
                  with recursive n(i) as (select 1 union all select i + 1 from n where i < 400000)\
                  insert into t select i, printf('row %d of many, with a text of some length', i * 7919 % 400009) from n;\
                  create index x on t(b); select count(*), sum(a), min(b), max(b) from (select * from t order by b desc limit 300000);\
                  pragma integrity_check;";
    same_in_parts(
        &Job::new(["sqlite3", ":memory:", script]),
        "sqlite3",
        &[2],
        &[],
    );
}

/// Many processes with allocators of their own, threads and much shared memory. Its sandbox is left out, as renderers
/// would run unmanaged in it.
#[test]
fn chromium_renders_a_page() {
    if cannot_page() || lacks("chromium") {
        return;
    }
    let page = "data:text/html,<p id=x>no</p><script>let a=[];for(let i=0;i<20000;i++)a.push('item '+i*7);\
                document.getElementById('x').textContent='made '+a.length+', '+a[19999]</script>";
    let script = "export HOME=$(mktemp -d) && chromium --headless --no-sandbox --disable-gpu --user-data-dir=$HOME \
                  --dump-dom \"$0\" 2> $HOME/said; status=$?; rm -rf $HOME; exit $status";
    let job = Job::new(["sh", "-c", script, page]).time_limit(Duration::from_secs(120));
    let alone = free(&job, "chromium");
    let rendered = String::from_utf8_lossy(&alone.stdout);
    assert!(rendered.contains("made 20000, item 139993"), "{rendered}");
    // A dozen processes, each with some MiB that stay.
    let managed = Under::budget((alone.peak / 4 * 3).max(128 * MIB)).run(&job);
    managed.assert_same(&alone, "chromium");
    managed.assert_paged_within_budget("chromium");
}
