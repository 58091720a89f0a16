//! Real programs under the library give what they give without it.
//!
//! Each test runs a command twice, plain and with `LD_PRELOAD`, and compares standard output
//! and exit status. A command that is not installed is a skip that says so. Every run has a
//! time limit, after which its process group is killed and the test fails.

use ebb_engine::random::Random;
use ebb_harness::tested;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const TIME_LIMIT: Duration = Duration::from_secs(90);
const CONTROL: &str = "smoke-test";

/// The library of the build under test, which is that of the tests themselves unless another is named. It is built
/// once a run: cargo does not, as no test can link with it.
fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().unwrap();
        // target/PROFILE/deps/test
        let command = tested::command(&test.ancestors().nth(2).unwrap().join("ebb"));
        tested::build_library(&command);
        command.with_file_name("libebb_preload.so")
    };
    LIBRARY.get_or_init(build).clone()
}

#[derive(Debug, PartialEq)]
struct Outcome {
    stdout: String,
    stderr: String,
    status: String,
}

struct Program {
    name: OsString,
    args: Vec<OsString>,
    folder: tempfile::TempDir,
    input: Option<PathBuf>,
}

impl Program {
    fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().into(),
            args: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            input: None,
        }
    }

    fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    fn file(self, name: &str, text: &str) -> Self {
        fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn input(mut self, text: &str) -> Self {
        let path = self.folder.path().join("input");
        fs::write(&path, text).unwrap();
        self.input = Some(path);
        self
    }

    fn run(&self, preload: Option<&Path>) -> Outcome {
        let (out, err) = (
            self.folder.path().join("stdout"),
            self.folder.path().join("stderr"),
        );
        let mut command = Command::new(&self.name);
        // A variable of the build, which programs would print.
        command.env_remove("EBB_EMBED");
        command
            .args(&self.args)
            .current_dir(self.folder.path())
            .env("LC_ALL", "C")
            .stdin(match &self.input {
                Some(path) => Stdio::from(File::open(path).unwrap()),
                None => Stdio::null(),
            })
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .process_group(0);
        if let Some(library) = preload {
            command
                .env("LD_PRELOAD", library)
                .env("EBB_CONTROL", CONTROL);
        }
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > TIME_LIMIT {
                let group = format!("-{}", child.id());
                let _ = Command::new("kill").args(["-9", "--", &group]).status();
                let _ = child.wait();
                panic!(
                    "{:?} ran past {TIME_LIMIT:?}; stderr: {}",
                    self.name,
                    fs::read_to_string(&err).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        Outcome {
            stdout: text(out),
            stderr: text(err),
            status: format!("{:?} {:?}", status.code(), status.signal()),
        }
    }

    /// Runs it both ways and compares; answers what it printed, for more to be asked.
    fn same(&self) -> Outcome {
        let plain = self.run(None);
        let under = self.run(Some(&library()));
        assert_eq!(plain.status, under.status, "stderr: {}", under.stderr);
        assert_eq!(plain.stdout, under.stdout);
        assert!(!under.stdout.is_empty(), "the program said nothing");
        under
    }
}

/// Whether a command is there; if not, says what is skipped.
fn installed(name: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
    if !found {
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// A program of tests/programs, built; `None` where there is no compiler.
fn built(source: &str) -> Option<Program> {
    let compiler = if source.ends_with(".cpp") {
        "g++"
    } else {
        "gcc"
    };
    if !installed(compiler) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let status = Command::new(compiler)
        .args(["-O1", "-g", "-w", "-fno-builtin", "-pthread", "-o"])
        .args([&binary, &source])
        .args(["-lutil", "-ldl"])
        .status()
        .unwrap();
    assert!(status.success(), "{} does not compile", source.display());
    let mut program = Program::new(&binary);
    program.folder = folder;
    Some(program)
}

#[test]
fn no_memory_call_of_ours_leaves_the_library() {
    if !installed("nm") {
        return;
    }
    let symbols = |what: &str| {
        let nm = Command::new("nm")
            .args(["-D", what])
            .arg(library())
            .output()
            .unwrap();
        String::from_utf8(nm.stdout).unwrap()
    };
    let name = |line: &str| {
        let symbol = line.split_whitespace().last().unwrap_or_default();
        symbol.split('@').next().unwrap_or_default().to_string()
    };
    let exported: Vec<_> = symbols("--defined-only").lines().map(name).collect();
    let borrowed: Vec<_> = symbols("--undefined-only").lines().map(name).collect();
    for call in [
        "malloc", "free", "calloc", "realloc", "mmap", "munmap", "mremap", "madvise", "mprotect",
    ] {
        assert!(exported.iter().any(|have| have == call), "{call} is lost");
        assert!(!borrowed.iter().any(|have| have == call), "{call} escapes");
    }
}

/// The calls of the library are its own, also where the program defines functions of these names.
#[test]
fn no_call_of_ours_reaches_a_malloc_of_the_program() {
    if !installed("readelf") {
        return;
    }
    let readelf = Command::new("readelf")
        .arg("-rW")
        .arg(library())
        .output()
        .unwrap();
    let relocations = String::from_utf8(readelf.stdout).unwrap();
    assert!(relocations.contains("__errno_location"), "{relocations}");
    for call in [
        "malloc", "free", "calloc", "realloc", "mmap", "madvise", "dlsym",
    ] {
        let found = relocations.lines().find(|line| {
            let mut words = line.split_whitespace();
            words.any(|word| word.split('@').next() == Some(call))
        });
        assert_eq!(found, None, "{call} may be the program's");
    }
}

#[test]
fn malloc_answers_as_glibc_does() {
    if let Some(program) = built("malloc_answers.c") {
        program.same();
    }
}

/// Such a program defines what glibc's manual asks for, and no more.
#[test]
fn a_program_with_its_own_malloc_keeps_it_for_reallocarray() {
    if let Some(program) = built("own_malloc.c") {
        program.same();
    }
}

/// Wrappers of the allocator's functions, each of which changes what it passes on: none may be passed through twice.
#[test]
fn a_program_may_wrap_the_malloc_family() {
    if let Some(program) = built("wrapped_malloc.c") {
        program.same();
    }
}

/// Freed memory goes back soon, growing moves and does not copy, and a program starts small.
#[test]
fn freed_memory_does_not_stay() {
    if let Some(program) = built("freed_memory.c") {
        let said = program.run(Some(&library())).stdout;
        assert!(
            !said.is_empty() && said.lines().all(|line| line.ends_with(": ok")),
            "{said}"
        );
    }
}

/// The time that a process pays to start, at its best: below half a millisecond.
#[test]
fn starting_costs_little() {
    let start = |preload: Option<&Path>| {
        let mut command = Command::new("/bin/true");
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let start = Instant::now();
        assert!(command.status().unwrap().success());
        start.elapsed()
    };
    let library = library();
    let (mut plain, mut under) = (Duration::MAX, Duration::MAX);
    for _ in 0..100 {
        plain = plain.min(start(None));
        under = under.min(start(Some(&library)));
    }
    let cost = under.saturating_sub(plain);
    eprintln!("plain {plain:?}, under the library {under:?}");
    // A busy machine makes both slower.
    let bound = Duration::from_micros(500).max(plain);
    assert!(
        cost < bound,
        "starting costs {cost:?}, and {plain:?} without"
    );
}

#[test]
fn memory_calls_answer_as_the_kernel_does() {
    if let Some(program) = built("memory_calls.c") {
        program.same();
    }
}

#[test]
fn threads_start_and_end_in_every_way() {
    if let Some(program) = built("threads.cpp") {
        program.same();
    }
}

#[test]
fn a_process_ends_with_its_last_thread() {
    if let Some(program) = built("main_leaves.c") {
        program.same();
    }
}

/// What a thread was at that the child does not have. Only ours can fail so: these are not compared with a plain run.
fn forks_beside(source: &str, expected: &str) {
    if let Some(program) = built(source) {
        let under = program.run(Some(&library()));
        assert_eq!(under.stdout, expected, "{}", under.stderr);
    }
}

/// The child gives back what it frees.
#[test]
fn forks_beside_a_thread_that_gives_freed_memory_back() {
    forks_beside("purging_forks.c", "0 children keep freed memory\n");
}

/// The child does not wait for the thread that was taking over the page.
#[test]
fn forks_beside_a_thread_that_takes_over_a_page() {
    forks_beside("claiming_forks.c", "0 wrong\n");
}

#[test]
fn forks_in_the_middle_of_everything() {
    if let Some(program) = built("fork_storm.cpp") {
        // Not compared with a plain run: glibc's own malloc hangs in it.
        let under = program.run(Some(&library()));
        assert_eq!(under.stdout, "failed 0\n", "{}", under.stderr);
    }
}

/// Also where the handler interrupted malloc, which holds locks of its own.
#[test]
fn forks_in_signal_handlers() {
    if let Some(program) = built("handlers_fork.c") {
        program.same();
    }
}

#[test]
fn an_exec_keeps_ebbtide_whatever_the_environment() {
    let Some(program) = built("exec_environment.c") else {
        return;
    };
    let itself = program.name.clone();
    let under = program.arg(itself).run(Some(&library()));
    let library = library();
    let preload = library.display();
    let ours = format!("EBB_CONTROL={CONTROL} LD_PRELOAD={preload}");
    let last = format!("EBB_CONTROL={CONTROL} LAST=1 LD_PRELOAD={preload}");
    let mine = format!("{ours} MINE=1 PATH=/bin +0");
    // Of glibc 2.39.
    let by_pidfd = |name: &str, environment: &str| {
        let absent = format!("{name}: not in libc");
        match under.stdout.lines().any(|line| line == absent) {
            true => absent,
            false => format!("{name}: {environment}"),
        }
    };
    let expected = [
        format!("execve: {mine}"),
        format!("execve-empty: {ours} +0"),
        format!("execve-null: {ours} +0"),
        format!("execve-other: A=1 EBB_CONTROL=inner LD_PRELOAD={preload}:libc.so.6 +0"),
        format!("execve-many: {last} +3000"),
        format!("execle: {mine}"),
        format!("execle-many-args: {last} +3000"),
        format!("execvpe: {mine}"),
        format!("fexecve: {mine}"),
        format!("execveat: {mine}"),
        format!("posix_spawn: {mine}"),
        format!("posix_spawnp-many: {last} +3000"),
        by_pidfd("pidfd_spawn", &mine),
        by_pidfd("pidfd_spawnp", &format!("{last} +3000")),
        "errors: 2 -1".to_string(),
        format!("execv: {mine}"),
        format!("execvp: {mine}"),
        format!("execl: {mine}"),
        format!("execlp: {mine}"),
        format!("execv-cleared: {ours} +0"),
    ];
    assert_eq!(under.status, "Some(0) None", "{}", under.stderr);
    let said: Vec<_> = under.stdout.lines().collect();
    assert_eq!(said, expected);
}

/// Of variables named `EBB_*` an exec keeps those alone that the library reads.
#[test]
fn an_exec_drops_what_is_the_users_own() {
    let said = |drops: &[&str]| {
        let mut program = Program::new("env").arg("EBB_CHECK=end");
        for variable in [
            "EBB_MEMORY=1G",
            "EBB_SWAP=none",
            "EBB_POOL=zstd",
            "EBB_OWN=1",
        ] {
            program = program.arg(variable);
        }
        // That one starts with all of them.
        let program = drops.iter().fold(program.arg("env"), Program::arg);
        let under = program.arg("env").run(Some(&library()));
        assert_eq!(under.status, "Some(0) None", "{}", under.stderr);
        let mut ours: Vec<String> = under.stdout.lines().map(str::to_owned).collect();
        ours.retain(|line| line.starts_with("EBB_"));
        ours.sort_unstable();
        ours
    };
    let control = &format!("EBB_CONTROL={CONTROL}");
    assert_eq!(said(&["-i"]), ["EBB_CHECK=end", control]);
    assert_eq!(
        said(&["-u", "EBB_MEMORY", "-u", "EBB_CHECK", "-u", "EBB_OWN"]),
        ["EBB_CHECK=end", control, "EBB_POOL=zstd", "EBB_SWAP=none"]
    );
}

#[test]
fn python_threads_processes_and_sqlite() {
    if installed("python3") {
        let script = include_str!("programs/mix.py");
        Program::new("python3")
            .file("mix.py", script)
            .arg("mix.py")
            .same();
    }
}

#[test]
fn bash_pipelines_and_substitutions() {
    let script = r#"
        total=0
        for i in $(seq 1 200); do x=$(echo "$i" | tr 0-9 a-j); total=$((total + ${#x})); done
        echo "$total"; (exit 4); echo $?
        printf '%s\n' {1..2000} | sort -n -r | md5sum | cut -c1-8
        wait; env -i /bin/echo cleared; exec cat <<< done
    "#;
    Program::new("bash").arg("-c").arg(script).same();
}

#[test]
fn perl_forks_and_strings() {
    if installed("perl") {
        let script = r#"
            $| = 1; my %h; $h{$_ % 1000} .= "x" x ($_ % 37) for 1..200000;
            my $n = 0; $n += length for values %h; print "$n\n";
            for my $i (1..20) { my $p = fork; if (!$p) { my @a = (1) x 100000; exit(@a == 100000 ? 3 : 4) }
              waitpid $p, 0; print $? >> 8, " " }
            print `echo sub`; exec "echo", "end";
        "#;
        Program::new("perl").arg("-e").arg(script).same();
    }
}

#[test]
fn sort_of_many_lines_by_threads() {
    let mut lines = String::new();
    let mut random = Random::new(1);
    for _ in 0..200_000 {
        lines.push_str(&format!("{:x}\n", random.next() >> 20));
    }
    let sort = Program::new("sort").input(&lines).arg("--parallel=4");
    sort.arg("-S").arg("20M").same();
}

#[test]
fn compiler_and_make() {
    if !installed("g++") || !installed("make") {
        return;
    }
    let source = "#include <algorithm>\n#include <iostream>\n#include <map>\n#include <sstream>\n\
        int f_N(int x) { std::map<int, std::string> m; m[x] = \"y\"; \
        std::ostringstream o; o << m[x]; return o.str().size(); }\n";
    let mut program = Program::new("make").arg("-s").arg("-j2").arg("all");
    let mut objects = String::new();
    for unit in 0..4 {
        let name = format!("u{unit}.cpp");
        program = program.file(&name, &source.replace('N', &unit.to_string()));
        objects.push_str(&format!("u{unit}.o "));
    }
    let rules = format!(
        "all: {objects}\n\tg++ -shared -o all.so $^ && nm all.so | grep -c f_ ; rm -f *.o all.so\n\
         %.o: %.cpp\n\tg++ -O1 -fPIC -c -o $@ $<\n"
    );
    program.file("Makefile", &rules).same();
}

#[test]
fn node_with_workers() {
    if installed("node") {
        let script = r#"
            const { Worker, isMainThread, parentPort } = require('worker_threads');
            const { execFileSync } = require('child_process');
            if (isMainThread) {
              let left = 3, sum = 0;
              for (let i = 0; i < 3; i++) new Worker(__filename).on('message', m => {
                sum += m; if (--left === 0) {
                  const b = Buffer.alloc(50 << 20, 7);
                  console.log(sum, b[12345], String(execFileSync('echo', ['child'], {env: {}}))); } });
            } else {
              const m = new Map(); for (let i = 0; i < 200000; i++) m.set(i, 'v' + i);
              parentPort.postMessage(m.size);
            }
        "#;
        Program::new("node")
            .file("work.js", script)
            .arg("work.js")
            .same();
    }
}

#[test]
fn java_with_threads() {
    if installed("java") && installed("javac") {
        let source = r#"
            import java.util.*; import java.util.concurrent.*;
            class Work { public static void main(String[] a) throws Exception {
              var pool = Executors.newFixedThreadPool(4); var parts = new ArrayList<Future<Long>>();
              for (int t = 0; t < 4; t++) { final int seed = t; parts.add(pool.submit(() -> {
                var r = new Random(seed); var m = new HashMap<Integer, byte[]>(); long s = 0;
                for (int i = 0; i < 200000; i++) { var b = new byte[r.nextInt(600)]; s += b.length;
                  m.put(r.nextInt(5000), b); } return s + m.size(); })); }
              long s = 0; for (var p : parts) s += p.get(); pool.shutdown();
              var p = new ProcessBuilder("echo", "child").start();
              System.out.println(s + new String(p.getInputStream().readAllBytes())); } }
        "#;
        Program::new("java")
            .file("Work.java", source)
            .arg("Work.java")
            .same();
    }
}

/// redis brings jemalloc, which makes its own maps, and forks to save.
#[test]
fn redis_with_a_background_save() {
    if !installed("redis-server") || !installed("redis-cli") {
        return;
    }
    let script = r#"
        dir=$(mktemp -d); sock=$dir/s
        redis-server --port 0 --unixsocket $sock --dir $dir --save '' > $dir/log 2>&1 &
        server=$!
        for i in $(seq 1 300); do redis-cli -s $sock ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done
        redis-cli -s $sock eval "for i=1,50000 do redis.call('set', 'k'..i, string.rep('v', i % 500)) end return redis.call('dbsize')" 0
        redis-cli -s $sock bgsave
        for i in $(seq 1 300); do
          redis-cli -s $sock info persistence | grep -q rdb_bgsave_in_progress:0 && break; sleep 0.05; done
        redis-cli -s $sock info persistence | grep -o 'rdb_last_bgsave_status:[a-z]*'
        redis-cli -s $sock strlen k49999
        redis-cli -s $sock shutdown nosave; wait $server; echo "exit $?"; rm -r $dir
    "#;
    Program::new("bash").arg("-c").arg(script).same();
}

/// `cargo test --release -p ebb-preload -- --ignored --nocapture speed` prints the table.
#[test]
#[ignore = "a benchmark"]
fn speed_of_malloc_beside_glibc() {
    if let Some(program) = built("malloc_speed.cpp") {
        let (plain, under) = (program.run(None), program.run(Some(&library())));
        println!("{:<24} {:>8} {:>8}  ns", "", "glibc", "ours");
        for (plain, under) in plain.stdout.lines().zip(under.stdout.lines()) {
            println!("{plain} {}", &under[24..]);
        }
    }
}
