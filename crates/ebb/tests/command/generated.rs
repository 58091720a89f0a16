//! `ebb generate` writes man pages and completions, from the one definition of the options. Each shell loads its own and
//! answers from it.

use super::common::{ebb, lacks};
use super::stderr;
use std::fs;
use std::path::Path;
use std::process::Command;

fn generate(args: &[&str]) -> String {
    let output = Command::new(ebb())
        .arg("generate")
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The output of a script that a shell runs with these words.
fn said(shell: &str, options: &[&str], script: &str, words: &[&Path]) -> String {
    let mut command = Command::new("timeout");
    command.args(["-k1", "60", shell]).args(options);
    let output = command.args(["-c", script]).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", stderr(&output));
    text
}

#[test]
fn man_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("man1");
    generate(&["man", path.to_str().unwrap()]);
    let page = fs::read_to_string(path.join("ebb-run.1")).unwrap();
    assert!(page.contains(".TH ebb-run 1"), "{page}");
    for option in ["memory", "swap", "pool", "stats"] {
        assert!(
            page.contains(&format!("\\-\\-{option}")),
            "{option}: {page}"
        );
    }
    assert!(path.join("ebb.1").exists() && !path.join("ebb-guard.1").exists());
}

#[test]
fn bash_completes_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ebb");
    fs::write(&file, generate(&["bash"])).unwrap();
    let script = "source $0 && COMP_WORDS=(ebb run --mem) COMP_CWORD=2 && _ebb ebb --mem run && echo ${COMPREPLY[0]}";
    assert_eq!(said("bash", &[], script, &[&file]), "--memory\n");
}

#[test]
fn fish_completes_verbs_options_and_values() {
    if lacks("fish") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ebb.fish");
    fs::write(&file, generate(&["fish"])).unwrap();
    let asks = ["ebb ru", "ebb run --mem", "ebb run --device-choice per"];
    let asks = asks.map(|line| format!("complete -C '{line}'"));
    let script = format!("source $argv[1]; {}", asks.join("; "));
    let all = said("fish", &["--no-config"], &script, &[&file]);
    let offered: Vec<&str> = all
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    assert_eq!(offered, ["run", "--memory", "per-node"], "{all}");
}

/// Presses the key of completion in a zsh of its own, where `ebb` prints what it is given; so each line is a whole
/// one of the user's.
const PRESSES: &str = r#"zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "fpath=($0 \$fpath); autoload -Uz compinit; compinit -u -D; ebb() print -r '<'\$@'>'; print rea''dy"
zpty -r z out '*ready*'
for line in "ebb ru" "ebb run --mem" "ebb run --device-choice per"; do
  zpty -w z $line$'\t'
  zpty -r z out '*<*>*'
  print -r - ${${out##*<}%%>*}
done
zpty -d z"#;

#[test]
fn zsh_completes_verbs_options_and_values() {
    if lacks("zsh") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("_ebb"), generate(&["zsh"])).unwrap();
    let all = said("zsh", &["-f"], PRESSES, &[dir.path()]);
    let lines = "run\nrun --memory\nrun --device-choice per-node\n";
    assert_eq!(all, lines);
}
