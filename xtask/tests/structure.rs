//! The rules of CONTRIBUTING.md that a program can check. There are no circles of files or folders. Functions fit a
//! screen, and documents have their size and short sentences. Each dependency has its reason, and so has each static.
//! No call of ours is a point of cancellation. Each planted defect can be planted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a function.
const SCREEN: usize = 70;
/// Words of a sentence in README.md and ARCHITECTURE.md.
const WORDS: usize = 30;
/// Bytes of a document.
const SIZES: [(&str, usize); 3] = [
    ("README.md", 8 << 10),
    ("ARCHITECTURE.md", 16 << 10),
    ("SPECIFICATION.md", 25 << 10),
];
const DESIGN_SIZE: usize = 5 << 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The sources of each member of the workspace.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut all: Vec<_> = crates.map(|entry| entry.unwrap().path()).collect();
    all.push(root().join("xtask"));
    all.sort();
    all
}

/// All Rust files under a folder.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

type Module = Vec<String>;

/// The module that a file is; none for tests and loom models.
fn module_of(file: &Path, src: &Path) -> Option<Module> {
    let inside = file.strip_prefix(src).unwrap().with_extension("");
    let mut parts: Module = inside
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    let test = |part: &String| {
        matches!(
            part.as_str(),
            "tests" | "test" | "model" | "models" | "loom"
        ) || part.ends_with("_loom")
    };
    if parts.iter().any(test) {
        return None;
    }
    if matches!(parts.last().unwrap().as_str(), "lib" | "main" | "mod") {
        parts.pop();
    }
    Some(parts)
}

/// A file without comments, and without what follows its tests.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of a use tree, `a::{b, c::{d, e}}`, that begins at `text`.
fn expand(text: &str, prefix: &[String], found: &mut Vec<Module>) -> usize {
    let (mut path, mut word, mut at) = (prefix.to_vec(), String::new(), 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            word.push(byte as char);
            at += 1;
        } else if text[at..].starts_with("::") {
            path.push(std::mem::take(&mut word));
            at += 2;
            if bytes.get(at) == Some(&b'{') {
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'}') {
                    at += match bytes[at] {
                        b',' | b' ' | b'\n' => 1,
                        _ => expand(&text[at..], &path, found).max(1),
                    };
                }
                return at + 1;
            }
        } else {
            break;
        }
    }
    path.push(word);
    found.push(path);
    at
}

/// Paths within the crate that a module names.
fn paths(code: &str, module: &Module, is_folder: bool) -> Vec<Module> {
    let mut found = Vec::new();
    let parent = &module[..module.len().saturating_sub(1)];
    let this = if is_folder { module } else { parent };
    for (root, prefix) in [
        ("crate::", &[][..]),
        ("super::", if is_folder { parent } else { this }),
    ] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':') {
                let rest = &code[at + root.len() - 2..];
                let mut some = Vec::new();
                expand(rest, &[], &mut some);
                // The empty word before `::`.
                found.extend(some.into_iter().map(|path| [prefix, &path[1..]].concat()));
            }
        }
    }
    found
}

/// Which modules of a crate each of its modules uses.
fn uses(folder: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let src = folder.join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut named = BTreeMap::new();
    for file in files {
        let Some(module) = module_of(&file, &src) else {
            continue;
        };
        let is_folder = file.ends_with("mod.rs") || module.is_empty();
        let code = code(&fs::read_to_string(&file).unwrap());
        named.insert(module.clone(), paths(&code, &module, is_folder));
    }
    let file_of = |path: &Module| {
        let mut path = path.clone();
        while !path.is_empty() && !named.contains_key(&path) {
            path.pop();
        }
        path
    };
    let edges = named.iter().map(|(module, paths)| {
        let used = paths.iter().map(file_of);
        // A parent that declares its children is no use, nor is a name that it hands on.
        let other = |used: &Module| !used.is_empty() && !module.starts_with(used);
        (module.clone(), used.filter(other).collect())
    });
    edges.collect()
}

/// Nodes that are on circles, or between two.
fn circles(mut edges: BTreeMap<Module, BTreeSet<Module>>) -> Vec<Module> {
    loop {
        let used: BTreeSet<Module> = edges.values().flatten().cloned().collect();
        let left: BTreeSet<Module> = edges.keys().cloned().collect();
        let before = edges.len();
        edges.retain(|node, to| {
            to.retain(|other| left.contains(other) && other != node);
            !to.is_empty() && used.contains(node)
        });
        if edges.len() == before {
            return edges.into_keys().collect();
        }
    }
}

#[test]
fn circles_are_found_and_ways_to_them_are_not() {
    let name = |name: &str| vec![name.to_owned()];
    let edge = |from: &str, to: &[&str]| (name(from), to.iter().map(|to| name(to)).collect());
    let graph = BTreeMap::from([
        edge("a", &["b"]),
        edge("b", &["c", "d"]),
        edge("c", &["b"]),
        edge("d", &[]),
    ]);
    assert_eq!(circles(graph), [name("b"), name("c")]);
    let mut found = Vec::new();
    expand("::a::{b, c::{d, e}, f}", &[], &mut found);
    let found: Vec<_> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["::a::b", "::a::c::d", "::a::c::e", "::a::f"]);
}

#[test]
fn files_and_folders_use_each_other_in_no_circle() {
    for folder in sources() {
        let files = uses(&folder);
        assert!(!files.is_empty(), "{}", folder.display());
        let mut folders: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        let top = |module: &Module| module.iter().take(1).cloned().collect::<Module>();
        for (module, to) in &files {
            folders
                .entry(top(module))
                .or_default()
                .extend(to.iter().map(top).filter(|to| *to != top(module)));
        }
        let name = folder.display();
        assert_eq!(circles(files), Vec::<Module>::new(), "files of {name}");
        assert_eq!(circles(folders), Vec::<Module>::new(), "folders of {name}");
    }
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ');
    let word = words.find(|word| {
        !(word.starts_with("pub")
            || matches!(*word, "const" | "async" | "unsafe" | "extern" | "\"C\""))
    })?;
    let name = words.next().filter(|_| word == "fn")?;
    name.split(['(', '<']).next()
}

#[test]
fn functions_fit_a_screen() {
    let mut files = Vec::new();
    sources()
        .iter()
        .for_each(|folder| rust_files(folder, &mut files));
    files.retain(|file| !file.iter().any(|part| part == "target"));
    let (mut seen, mut long) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = function(line) else { continue };
            let indent = &line[..line.len() - line.trim_start().len()];
            // A declaration ends with a semicolon at the same depth; a short function on its line.
            let ends = |line: &str| {
                let rest = line.strip_prefix(indent).unwrap_or(" ");
                let declared = !rest.starts_with(' ') && rest.ends_with([';', '}']);
                rest == "}" || declared
            };
            let Some(length) = lines[at..].iter().position(|line| ends(line)) else {
                continue;
            };
            seen += 1;
            if length + 1 > SCREEN {
                long.push(format!(
                    "{}:{}: {name}: {}",
                    file.display(),
                    at + 1,
                    length + 1
                ));
            }
        }
    }
    assert!(seen > 3000, "{seen}");
    assert!(long.is_empty(), "longer than {SCREEN} lines: {long:#?}");
}

/// Crates that run inside programs: what is static there is a program's too.
const IN_PROGRAMS: [&str; 6] = ["sys", "engine", "stores", "tree", "pager", "preload"];

/// The name and the type of the static that a line begins.
fn static_item(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let item = line.split_once("static ").filter(|(before, _)| {
        before.is_empty() || before.starts_with("pub") && before.ends_with(' ')
    });
    let (name, rest) = item?.1.trim_start_matches("mut ").split_once(": ")?;
    let name_like = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let ends = |c: char| !c.is_alphanumeric();
    name.chars().all(name_like).then_some(())?;
    Some((name, rest.split(ends).next()?))
}

#[test]
fn statics_are_recognized() {
    let found = |line| static_item(line);
    assert_eq!(
        found("static TURN: Lock = Lock::new();"),
        Some(("TURN", "Lock"))
    );
    assert_eq!(
        found("    pub(crate) static A_1: [u8; 3] ="),
        Some(("A_1", ""))
    );
    assert_eq!(found("static mut X: Next<F> ="), Some(("X", "Next")));
    assert_eq!(found("let text: &'static str = a;"), None);
    assert_eq!(found("    member: &'static Member,"), None);
}

/// Each static, or the type of several, is named with its reason in the head of the crate (`lib.rs`), or in `statics.rs`.
#[test]
fn statics_are_named_in_one_place_with_their_reason() {
    let mut seen = 0;
    for name in IN_PROGRAMS {
        let src = root().join("crates").join(name).join("src");
        let head = fs::read_to_string(src.join("lib.rs")).unwrap();
        let own = fs::read_to_string(src.join("statics.rs")).unwrap_or_default();
        let table = head
            .lines()
            .filter(|line| line.starts_with("//! | `") || line.starts_with("//! | each `"));
        let named: Vec<&str> = table.flat_map(|line| line.split('|').nth(1)).collect();
        let is_named = |word: &str| {
            let ends = |c: char| !c.is_alphanumeric() && c != '_';
            !word.is_empty()
                && named
                    .iter()
                    .any(|names| names.split(ends).any(|name| name == word))
        };
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        for file in files.iter().filter(|file| module_of(file, &src).is_some()) {
            let code = code(&fs::read_to_string(file).unwrap());
            for (name, kind) in code.lines().filter_map(static_item) {
                seen += 1;
                let is_own = file.ends_with("statics.rs") && own.starts_with("//! The one static");
                assert!(
                    is_own || is_named(name) || is_named(kind),
                    "{}: {name} is static, and lib.rs does not say why",
                    file.display()
                );
            }
        }
    }
    assert!(seen > 30, "{seen}");
}

/// Crates whose code threads of the program run.
const ON_ITS_THREADS: [&str; 4] = ["sys", "engine", "pager", "preload"];

/// Files of them that no thread of the program comes to, and who does.
const NOT_ON_ITS_THREADS: [(&str, &str); 6] = [
    ("sys/src/process/daemon.rs", "the command"),
    ("sys/src/process/descriptors.rs", "the command"),
    ("sys/src/io/signalfd.rs", "the command"),
    ("sys/src/probe.rs", "the command"),
    ("sys/src/memory/userfaultfd.rs", "the helper"),
    ("pager/src/reclaim/recorder.rs", "experiments"),
];

/// What is, or calls, a point of cancellation of libc's: a thread of the program that is to be cancelled would end there,
/// in `malloc` or with the turn to fork. `ebb_sys` has the same without libc (`kernel/file.rs`, `clock::sleep`, `raw`).
const CANCELLATION_POINTS: [&str; 24] = [
    "thread::sleep(",
    "fs::File",
    "std::fs::read",
    "print!(",
    "println!(",
    "std::io::std",
    "libc::close(",
    "libc::fcntl(",
    "libc::nanosleep(",
    "libc::open(",
    "libc::openat(",
    "libc::pause(",
    "libc::poll(",
    "libc::pread(",
    "libc::pwrite(",
    "libc::read(",
    "libc::recv(",
    "libc::send(",
    "libc::sleep(",
    "libc::usleep(",
    "libc::wait",
    "libc::write(",
    "libc::clock_nanosleep(",
    "libc::getrandom(",
];

#[test]
fn no_call_of_ours_is_a_point_of_cancellation() {
    let crates = root().join("crates");
    let mut excused = BTreeSet::new();
    for name in ON_ITS_THREADS {
        let src = crates.join(name).join("src");
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        for file in files.iter().filter(|file| module_of(file, &src).is_some()) {
            let code = code(&fs::read_to_string(file).unwrap());
            let found = CANCELLATION_POINTS
                .iter()
                .find(|call| code.contains(**call));
            let Some(call) = found else { continue };
            let path = file.strip_prefix(&crates).unwrap().to_str().unwrap();
            let known = NOT_ON_ITS_THREADS.iter().find(|(known, _)| *known == path);
            assert!(known.is_some(), "{path}: {call}");
            excused.insert(path.to_owned());
        }
    }
    assert_eq!(excused.len(), NOT_ON_ITS_THREADS.len(), "{excused:?}");
}

#[test]
fn planted_defects_have_their_place() {
    let list = fs::read_to_string(root().join("xtask/mutants.toml")).unwrap();
    let list: toml::Table = list.parse().unwrap();
    let all = list["mutant"].as_array().unwrap();
    assert!(all.len() > 30, "{}", all.len());
    for mutant in all {
        let text = |key: &str| mutant[key].as_str().unwrap();
        let file = fs::read_to_string(root().join(text("file"))).unwrap();
        let times = file.matches(text("find")).count();
        assert_eq!(times, 1, "{}: in {}", text("name"), text("file"));
    }
}

/// The sentences of a document's paragraphs, without code, tables and headings.
fn sentences(text: &str) -> Vec<String> {
    let (mut paragraphs, mut fenced) = (vec![String::new()], false);
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let new = line.trim().is_empty() || line.starts_with(['|', '#', '`', '-', '*']);
        let new = new || line.trim_start().starts_with(|c: char| c.is_ascii_digit());
        if fenced || new {
            paragraphs.push(String::new());
        }
        if !fenced && !line.starts_with(['|', '#', '`']) {
            *paragraphs.last_mut().unwrap() += line;
            *paragraphs.last_mut().unwrap() += " ";
        }
    }
    let split = |paragraph: &String| {
        let ends = paragraph.replace(": ", ". ").replace("; ", ". ");
        ends.split(". ").map(str::to_owned).collect::<Vec<_>>()
    };
    paragraphs.iter().flat_map(split).collect()
}

#[test]
fn documents_are_short_and_so_are_their_sentences() {
    let read = |name: &Path| fs::read_to_string(root().join(name)).unwrap();
    for (name, most) in SIZES {
        let bytes = read(Path::new(name)).len();
        assert!(bytes <= most, "{name} has {bytes} bytes of {most}");
    }
    for entry in fs::read_dir(root().join("docs/design")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = read(&path).len();
        assert!(bytes <= DESIGN_SIZE, "{} has {bytes}", path.display());
    }
    for name in ["README.md", "ARCHITECTURE.md"] {
        for sentence in sentences(&read(Path::new(name))) {
            let words = sentence.split_whitespace().count();
            assert!(words <= WORDS, "{name}: {words} words: {sentence}");
        }
    }
}

#[test]
fn architecture_says_what_each_dependency_is_for() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = document.split_once("## Dependencies").unwrap();
    let all = manifest["workspace"]["dependencies"].as_table().unwrap();
    let foreign = all.iter().filter(|(_, from)| from.get("path").is_none());
    let wanted: BTreeSet<&str> = foreign.map(|(name, _)| name.as_str()).collect();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let said: BTreeSet<&str> = names
        .flat_map(|names| names.split('`').skip(1).step_by(2))
        .collect();
    assert!(wanted.is_subset(&said), "{:?}", wanted.difference(&said));
    // Of a package of its own, or of one alone.
    let others = ["fuzz/Cargo.toml", "crates/preload/Cargo.toml"];
    let others = others.map(|file| fs::read_to_string(root().join(file)).unwrap());
    for name in said.difference(&wanted) {
        let line = format!("\n{name} = ");
        assert!(others.iter().any(|other| other.contains(&line)), "{name}");
    }
}
