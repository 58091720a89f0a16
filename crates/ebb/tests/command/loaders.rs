//! Programs of other C libraries: their loaders cannot load the library, and follow LD_PRELOAD all the same.
//! They run unmanaged, and what they start is managed again where its loader is glibc's.

use super::common::{cannot_page, ebb, lacks};
use super::{end_of, run, stderr};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Prints what it got for LD_PRELOAD, uses 4 MiB, and becomes the program that it is given.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
  const char *preload = getenv("LD_PRELOAD");
  char *memory = malloc(4 << 20);
  memset(memory, 1, 4 << 20);
  printf("another %s\n", preload ? preload : "(none)");
  fflush(stdout);
  if (argc > 1 && argv[1][0] != '/') execvp(argv[1], argv + 1);
  return 3;
}
"#;

/// Prints whether it is managed, and how much memory it could take.
const PYTHON: [&str; 3] = [
    "python3",
    "-c",
    "print('managed', 'libebb_preload.so' in open('/proc/self/maps').read(), sum(bytes(8 << 20)))",
];
const MANAGED: &str = "managed True 0";

fn musl_program(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, SOURCE).unwrap();
    let mut cc = Command::new("musl-gcc");
    cc.args(["-O1", "-o"]).args([&program, &file]).args(options);
    assert!(cc.status().unwrap().success(), "musl-gcc builds {name}");
    program
}

fn script_of(dir: &Path, program: &Path) -> PathBuf {
    let script = dir.join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_musl_program_runs_and_what_it_starts_is_managed() {
    if cannot_page() || lacks("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = musl_program(dir.path(), "musl", &[]);
    let script = script_of(dir.path(), &program);
    let [program, script] = [&program, &script].map(|path| path.to_str().unwrap());
    let told = "uses another C library (/lib/ld-musl-";
    // As the command, and behind a `#!` line.
    for path in [program, script] {
        let output = run(&[path]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(lines(&output)[0].starts_with("another"), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(told) && said.lines().count() == 1, "{said}");
    }
    // Below a managed program, at an exec and a spawn of any kind; and above one.
    let python = "import os, subprocess, sys\nm = sys.argv[1]\nfor run in (lambda: subprocess.run([m]), \
                  lambda: subprocess.run([m], env={}), lambda: subprocess.run([m], preexec_fn=os.getpid), \
                  lambda: os.waitpid(os.posix_spawn(m, [m], {}), 0)[1] >> 8, lambda: os.system(m) >> 8): print(getattr(x := run(), 'returncode', x), flush=True)";
    let output = run(&["python3", "-c", python, program]);
    let all = lines(&output);
    let ran = all.iter().filter(|line| line.starts_with("another"));
    assert_eq!(ran.count(), 5, "{all:?} {}", stderr(&output));
    let statuses = all.iter().filter(|line| *line == "3");
    assert_eq!(
        statuses.count(),
        5,
        "each ends with its own status: {all:?}"
    );
    for front in [
        &[program][..],
        &[program, "env", "-i", "PATH=/usr/bin:/bin"],
        &["sh", "-c", "\"$0\" \"$@\"", program],
        &["env", "-i", "PATH=/usr/bin:/bin", program],
    ] {
        let output = run(&[front, &PYTHON].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let last = lines(&output).pop();
        assert_eq!(last.as_deref(), Some(MANAGED), "{front:?}");
    }
}

#[test]
fn a_musl_program_runs_where_the_librarys_directory_has_a_blank() {
    if cannot_page() || lacks("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = musl_program(dir.path(), "musl", &[]);
    let bin = dir.path().join("with blank");
    fs::create_dir(&bin).unwrap();
    for file in ["ebb", "libebb_preload.so"] {
        fs::copy(ebb().with_file_name(file), bin.join(file)).unwrap();
    }
    // The second exec puts back what is lost: the name for glibc, not what its loader made of it.
    let mut child = Command::new(bin.join("ebb"))
        .args(["run", "env", "-i", "PATH=/usr/bin:/bin"])
        .arg(&program)
        .args(PYTHON)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(60));
    let output = child.wait_with_output().unwrap();
    let last = lines(&output).pop();
    assert_eq!(last.as_deref(), Some(MANAGED), "{}", stderr(&output));
}

#[test]
fn requiring_managed_programs_starts_none_of_another_libc() {
    if cannot_page() || lacks("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = musl_program(dir.path(), "musl", &[]);
    let script = script_of(dir.path(), &program);
    for path in [&program, &script].map(|path| path.to_str().unwrap()) {
        let output = run(&["--require-managed", path]);
        let (status, said) = (output.status.code(), stderr(&output));
        assert_eq!((status, output.stdout.len()), (Some(125), 0), "{said}");
        assert!(said.contains("another C library"), "{said}");
        let output = run(&["--require-managed", "sh", "-c", "\"$0\"; echo $?", path]);
        assert_eq!(lines(&output), ["126"], "{}", stderr(&output));
        assert!(
            stderr(&output).contains("is not started"),
            "{}",
            stderr(&output)
        );
    }
}

/// Nobody knows what an unknown loader does with a library that it cannot load or find. Here it is musl's by
/// another name, which shows the variable that it got.
#[test]
fn an_unknown_loader_is_given_no_library() {
    if cannot_page() || lacks("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let musl = fs::read_dir("/lib")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.to_string_lossy().starts_with("/lib/ld-musl-");
    let loader = dir.path().join("ld-unknown.so.1");
    fs::copy(musl.into_iter().find(name).expect("musl's loader"), &loader).unwrap();
    let link = format!("-Wl,--dynamic-linker={}", loader.display());
    let program = musl_program(dir.path(), "unknown", &[&link]);
    let program = program.to_str().unwrap();
    let shell = ["sh", "-c", "\"$0\""];
    for front in [&[][..], &shell, &["env", "-i"]] {
        let output = run(&[front, &[program]].concat());
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert_eq!(lines(&output), ["another (none)"], "{front:?}");
    }
    // The program's own libraries stay.
    for own in ["", "libm.so.6", "libm.so.6:libdl.so.2"] {
        let output = run(&["env", &format!("LD_PRELOAD={own}"), program]);
        assert_eq!(lines(&output), [format!("another {own}")]);
    }
    let output = run(&[program]);
    let said = stderr(&output);
    assert!(
        said.contains("so does that of programs it starts"),
        "{said}"
    );
}

/// The system says that the file is not there, which is.
#[test]
fn a_loader_that_is_not_there_is_named() {
    if cannot_page() {
        return;
    }
    let mut bytes = fs::read("/bin/true").unwrap();
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let mut windows = bytes.windows(loader.len());
    let at = windows.position(|window| window == loader);
    let at = at.expect("a program for glibc's loader on x86-64");
    bytes[at + 4] = b'5';
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&[program.to_str().unwrap()]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(127), "{said}");
    assert!(
        said.contains("its loader /lib54/ld-linux-x86-64.so.2 is not there"),
        "{said}"
    );
}
