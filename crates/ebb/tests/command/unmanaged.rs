//! Programs that cannot be managed, and those that only look so.

use super::common::{cannot_page, ebb, lacks};
use super::{end_of, run, stderr};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn static_program() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 4; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let program = program.to_str().unwrap();
    let output = run(&[program]);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(4), &b"hello\n"[..])
    );
    assert!(
        stderr(&output).contains("statically linked"),
        "{}",
        stderr(&output)
    );
    let refused = run(&["--require-managed", program]);
    assert_eq!(
        (refused.status.code(), refused.stdout.len()),
        (Some(125), 0)
    );
    assert!(
        stderr(&refused).contains("statically linked"),
        "{}",
        stderr(&refused)
    );
}

/// The disk behind standard error is full, or its reader has gone: the warning is lost, and the program runs.
#[test]
fn a_warning_that_cannot_be_written_stops_no_program() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = static_c(dir.path(), "int main(void) { return 4; }\n") else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (read, unread) = io::pipe().unwrap();
    drop(read);
    for (what, takes_nothing) in [("full", OwnedFd::from(full)), ("unread", unread.into())] {
        let mut command = Command::new(ebb());
        command.args(["run", "--"]).arg(&program);
        command.stdin(Stdio::null()).stderr(takes_nothing);
        let mut child = command.spawn().unwrap();
        end_of(&mut child, Duration::from_secs(60));
        assert_eq!(child.wait().unwrap().code(), Some(4), "{what}");
    }
    // A command that cannot be executed has its status all the same.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(ebb());
    command.args(["run", "--", "/no/such/file"]).stderr(full);
    assert_eq!(command.status().unwrap().code(), Some(127));
}

/// A program of this source that is linked statically.
pub(super) fn static_c(dir: &Path, source: &str) -> Option<PathBuf> {
    let (file, program) = (dir.join("static.c"), dir.join("static"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-static", "-o"]).args([&program, &file]);
    cc.status().is_ok_and(|s| s.success()).then_some(program)
}

/// Somewhere in the tree, it is told of once; and nobody else is.
#[test]
fn a_static_program_that_another_starts_is_told_of_once() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  int main(void) { char *m = malloc(8 << 20); memset(m, 1, 8 << 20);\n\
                  usleep(400000); printf(\"%d\\n\", m[4711]); return 0; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let python = "python3 -c 'm = bytes(9 << 20); import time; time.sleep(0.2)'";
    let script = format!("{python}; {0}; {0}; exit 3", program.display());
    for (script, told) in [(script.as_str(), 1), (python, 0)] {
        let output = run(&["sh", "-c", script]);
        let said = stderr(&output);
        let lines: Vec<_> = said.lines().filter(|l| l.starts_with("ebb")).collect();
        assert_eq!(lines.len(), told, "{said}");
        assert!(
            lines.iter().all(|l| l.contains("statically linked")),
            "{said}"
        );
        assert!(
            lines.iter().all(|l| l.contains("/static (process ")),
            "{said}"
        );
        let expected = if told == 1 {
            (Some(3), "1\n1\n")
        } else {
            (Some(0), "")
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), &*printed), expected);
    }
}

/// A supervisor of an ordinary user may not look into a program that is not to be dumped, or whose file may not be read.
/// So it cannot tell that a helper shares the program's memory. Its refusal is told of, once. Nothing is said of
/// processes that only end as they join.
#[test]
fn programs_that_hide_their_memory_are_told_of_once() {
    const WITHOUT: &str = "-sys_ptrace,-dac_override,-dac_read_search";
    if cannot_page() || lacks("setpriv") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  #include <sys/prctl.h>\nint main(int argc, char **argv) {\n\
                  if (!strcmp(argv[1], \"hides\")) prctl(PR_SET_DUMPABLE, 0);\n\
                  char *m = malloc(8 << 20); memset(m, 1, 8 << 20);\n\
                  usleep(atoi(argv[2]) * 1000); printf(\"%d\\n\", m[4711]); return 0; }\n";
    let (file, program) = (dir.path().join("kept.c"), dir.path().join("kept"));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .arg("-o")
        .args([&program, &file])
        .status();
    assert!(built.unwrap().success());
    // Nobody but its owner, who is another, may read it.
    let unread = dir.path().join("unread");
    fs::copy(&program, &unread).unwrap();
    fs::set_permissions(&unread, fs::Permissions::from_mode(0o711)).unwrap();
    std::os::unix::fs::chown(&unread, Some(65534), Some(65534)).unwrap();
    let [program, unread] = [&program, &unread].map(|path| path.display());
    let brief = format!("for i in $(seq 40); do {program} shows 0; done");
    for (script, name) in [
        (
            format!("{program} hides 400; {program} hides 400"),
            Some("kept"),
        ),
        (
            format!("{unread} shows 400; {unread} shows 400"),
            Some("unread"),
        ),
        (brief, None),
    ] {
        let mut command = Command::new("timeout");
        command.args(["-k2", "60", "setpriv", "--bounding-set", WITHOUT]);
        command.args(["--inh-caps", WITHOUT]).arg(ebb());
        let output = command.args(["run", "--", "sh", "-c", &script]).output();
        let output = output.unwrap();
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        let told: Vec<_> = said
            .lines()
            .filter(|l| l.contains("hides its memory"))
            .collect();
        assert_eq!(told.len(), usize::from(name.is_some()), "{said}");
        if let Some(name) = name {
            let begins = told[0].starts_with(&format!("ebb: {name} ["));
            assert!(begins && told[0].contains("runs unmanaged"), "{said}");
        }
        assert_eq!(said.lines().count(), told.len(), "{said}");
    }
}

/// Memory that a static program holds leaves nothing of the budget for a managed one. Its end says so, and does not
/// blame the devices, which are nearly empty.
#[test]
fn an_end_for_memory_names_unmanaged_memory_that_fills_the_budget() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  #include <sys/prctl.h>\nint main(void) { prctl(PR_SET_PDEATHSIG, 9);\n\
                  memset(malloc(60 << 20), 1, 60 << 20); return write(1, \"x\", 1) != 1 || sleep(100); }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let script = "import os, subprocess, sys
other = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE)
other.stdout.read(1)
kept = [os.urandom(4096) for _ in range(32 * 256)]";
    let output = run(&[
        "-m",
        "48M",
        "python3",
        "-c",
        script,
        program.to_str().unwrap(),
    ]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(128 + 9), "{text}");
    let line = text.lines().find(|line| line.contains("out of memory"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("ebb: python3["), "{text}");
    let (_, taken) = line
        .split_once("memory that is not managed takes ")
        .expect(line);
    let taken: u64 = taken.split(' ').next().unwrap().parse().unwrap();
    assert!((60..100).contains(&taken), "{line}");
    assert!(
        line.contains("programs whose memory cannot be managed fill it"),
        "{line}"
    );
    assert!(!line.contains("swap devices are full"), "{line}");
}

/// Memory that no call of libc mapped stays in RAM. Where it alone is more than the budget a line says so, once, and names
/// the program.
#[test]
fn memory_beyond_the_budget_that_cannot_be_paged_is_told_of_once() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("maps.c");
    fs::write(&source, MAPS_BY_ITSELF).unwrap();
    for (options, name) in [(&["-static"][..], "static"), (&[], "linked")] {
        let program = dir.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(options).arg("-o").args([&program, &source]);
        if !cc.status().unwrap().success() {
            println!("skipped: a static C library is not installed");
            continue;
        }
        let program = program.to_str().unwrap();
        for (megabytes, lines) in [("70", 1), ("20", 0)] {
            let output = run(&["-m", "48M", "sh", "-c", "$0 $1; true", program, megabytes]);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{text}");
            let told: Vec<_> = text.lines().filter(|l| l.contains("exceeded")).collect();
            assert_eq!(told.len(), lines, "{text}");
            for line in told {
                let (_, of_it) = line.split_once(&format!("({name} [")).expect(line);
                assert!(of_it.contains("] has 7"), "{line}");
                assert!(line.contains("more than the budget of 48M"), "{line}");
            }
        }
    }
}

/// Fills so many MiB of memory that it maps by an instruction of its own, and keeps it for a while.
const MAPS_BY_ITSELF: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *map(unsigned long len) {
  register long flags __asm__("r10") = 0x22, file __asm__("r8") = -1, offset __asm__("r9") = 0;
  long at;
  __asm__ volatile("syscall" : "=a"(at) : "a"(9), "D"(0), "S"(len), "d"(3), "r"(flags), "r"(file), "r"(offset)
                   : "rcx", "r11", "memory");
  return (char *)at;
}
int main(int argc, char **argv) {
  unsigned long len = strtoul(argv[argc - 1], 0, 0) << 20;
  memset(map(len), 1, len);
  return sleep(5);
}
"#;

/// Starts a program in every way that Python has, and prints the results.
const STARTS_IN_EVERY_WAY: &str = "
import ctypes, os, subprocess, sys
here, path, script = sys.argv[1:]
def tries(how, *args):
    try: print(how.__name__, how(*args), flush=True)
    except OSError as e: print(how.__name__, e.strerror, flush=True)
def forked(exec, *args):
    child = os.fork()
    if child == 0:
        try: exec(*args)
        except OSError as e: os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def execv(path): return forked(os.execv, path, ['static'])
def execvp(name): return forked(os.execvp, name, ['static'])
def fexecve(path): return forked(os.execve, os.open(path, os.O_RDONLY), ['static'], {})
def named(path): return forked(os.execve, os.open(path, os.O_PATH), ['static'], {})
def numbered(path):
    libc = ctypes.CDLL(None, use_errno=True)
    strings = lambda *all: (ctypes.c_char_p * (len(all) + 1))(*all, None)
    def call():
        libc.syscall(59, path.encode(), strings(b'static'), strings())
        os._exit(ctypes.get_errno())
    return forked(call)
def spawned(spawn, name): return os.waitstatus_to_exitcode(os.waitpid(spawn(name, ['static'], {}), 0)[1])
def spawn(path): return spawned(os.posix_spawn, path)
def spawnp(name): return spawned(os.posix_spawnp, name)
def run(path): return subprocess.run([path]).returncode
def shell(path): return os.system(path + ' 2>/dev/null') >> 8
def other(): return subprocess.run(['true']).returncode
for how in execv, fexecve, named, numbered, spawn, run, shell: tries(how, path)
tries(execv, script)
# A directory of that name is no program.
os.makedirs(here + '/other/static', exist_ok=True)
os.environ['PATH'] = f'{here}/other:{here}:' + os.environ['PATH']
for how in execvp, spawnp: tries(how, 'static')
tries(other)
";

/// Wherever in the tree it is to be started, in whatever way; who wants to learns it, and goes on.
#[test]
fn requiring_managed_programs_starts_no_other() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source =
        "#include <unistd.h>\nint main(void) { return write(1, \"static\\n\", 7) != 7; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let [here, path, script] = [dir.path(), &program, &script].map(|p| p.to_str().unwrap());
    let argv = ["python3", "-c", STARTS_IN_EVERY_WAY, here, path, script];
    let freely = run(&argv);
    let printed = String::from_utf8_lossy(&freely.stdout).into_owned();
    assert_eq!(
        printed.matches("static\n").count(),
        10,
        "{printed}{}",
        stderr(&freely)
    );
    let bound = run(&[&["--require-managed"][..], &argv].concat());
    let denied = "Permission denied";
    assert_eq!(
        String::from_utf8_lossy(&bound.stdout),
        format!(
            "execv 13\nfexecve 13\nnamed 13\nnumbered 13\nspawn {denied}\nrun {denied}\nshell 126\nexecv 13\nexecvp 13\nspawnp {denied}\nother 0\n"
        ),
        "{}",
        stderr(&bound)
    );
    assert!(bound.status.success());
    let said = stderr(&bound);
    // The shell's own went with its message.
    let told = |l: &&str| l.starts_with("ebb: ") && l.contains("statically linked");
    assert_eq!(said.lines().filter(told).count(), 9, "{said}");
    assert!(
        said.contains(&format!("ebb: {path} is not started")),
        "{said}"
    );
}

/// Under another root directory no loader finds the library: it is not named there, and nothing is complained of.
#[test]
fn programs_that_cannot_reach_the_library_do_not_get_it() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: only root can change the root directory");
    }
    let dir = tempfile::tempdir().unwrap();
    let env = ebb_harness::tools::in_path("env").expect("env");
    let script = "cp \"$0\" \"$1/env\" && for file in $(ldd \"$0\" | grep -o '/[^ ]*'); do cp -L --parents $file \"$1\"; done";
    let mut copies = Command::new("sh");
    copies.args(["-c", script]).arg(env).arg(dir.path());
    assert!(copies.status().unwrap().success());
    let script = format!("chroot {} /env; exit $?", dir.path().display());
    let output = run(&["sh", "-c", &script]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert!(
        printed.contains("PATH=") && !printed.contains("LD_PRELOAD"),
        "{printed}"
    );
    let refused = run(&["--require-managed", "sh", "-c", &script]);
    assert_eq!(refused.status.code(), Some(126));
    assert!(
        stderr(&refused).contains("library cannot be read"),
        "{}",
        stderr(&refused)
    );
}

/// A program started through its loader is no static one: the loader loads the library too.
#[test]
fn a_program_started_through_its_loader_is_managed() {
    if cannot_page() {
        return;
    }
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loader.into_iter().find(|l| Path::new(l).exists()) else {
        println!("skipped: the dynamic loader is not installed");
        return;
    };
    let cat = ebb_harness::tools::in_path("cat").expect("cat");
    let argv = [loader, cat.to_str().unwrap(), "/proc/self/maps"];
    let output = run(&[&["--require-managed"][..], &argv].concat());
    assert_eq!(stderr(&output), "");
    let maps = String::from_utf8_lossy(&output.stdout);
    assert!(maps.contains("libebb_preload.so"), "{maps}");
    // Nor where another starts it.
    let script = format!("{} > /dev/null", argv.join(" "));
    let output = run(&["--require-managed", "sh", "-c", &script]);
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
}

/// As under `sudo`: the loader takes LD_PRELOAD out of the environment of a program with other privileges.
#[test]
fn what_a_setuid_program_starts_is_told_of() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Another user executes a file of it.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (raised, file, fills) = (
        dir.path().join("raised"),
        dir.path().join("fills.c"),
        dir.path().join("fills"),
    );
    let env = ebb_harness::tools::in_path("env").expect("env");
    fs::copy(env, &raised).unwrap();
    if std::os::unix::fs::chown(&raised, Some(65534), None).is_err() {
        println!("skipped: only root can give a program to another user");
        return;
    }
    fs::set_permissions(&raised, fs::Permissions::from_mode(0o4755)).unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  int main(void) { return !memset(malloc(8 << 20), 1, 8 << 20) || usleep(400000); }\n";
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").args([&fills, &file]);
    assert!(cc.status().unwrap().success());
    let script = format!("{} {}; exit 3", raised.display(), fills.display());
    let output = run(&["sh", "-c", &script]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let lines: Vec<_> = said.lines().filter(|l| l.starts_with("ebb")).collect();
    let told = |l: &&str| l.contains("/fills (process ") && l.contains("preload library");
    assert!(lines.len() == 1 && lines.iter().all(told), "{said}");
    // Without the setuid program nothing is said.
    let output = run(&["sh", "-c", &format!("{}; exit 3", fills.display())]);
    assert_eq!(stderr(&output), "");
}

/// The loader ignores LD_PRELOAD for a program that the kernel runs with other privileges.
#[test]
fn a_setuid_program_runs_unmanaged_or_is_refused() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("raised");
    let source = ebb_harness::tools::in_path("echo").expect("echo");
    fs::copy(source, &program).unwrap();
    if std::os::unix::fs::chown(&program, Some(65534), None).is_err() {
        println!("skipped: only root can give a program to another user");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let program = program.to_str().unwrap();
    let output = run(&[program, "hello"]);
    let ran = (output.status.code(), &output.stdout[..]);
    assert_eq!(ran, (Some(0), &b"hello\n"[..]), "{}", stderr(&output));
    let said = stderr(&output);
    let what = "it is setuid, setgid or has file capabilities; it stays in RAM, and so does that of programs it starts";
    assert!(said.contains(what), "{said}");
    let refused = run(&["--require-managed", program, "hello"]);
    let (status, text) = (refused.status.code(), stderr(&refused));
    assert_eq!((status, refused.stdout.len()), (Some(125), 0), "{text}");
    assert!(
        text.contains("setuid") && text.contains("--require-managed"),
        "{text}"
    );
}
