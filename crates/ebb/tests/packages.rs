//! The packages of `cargo xtask dist`, each installed and used: the tarball, the wheel with the Python package's
//! own tests, and the .deb and the wheel on a clean root of Debian, as an ordinary user. Beside them
//! `cargo install`, which builds everything a second time and is not run by default.

mod common;

use common::cannot_page;
use ebb_harness::{cgroup, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The directory of the packages, made once.
fn dist() -> &'static Path {
    static DIST: OnceLock<PathBuf> = OnceLock::new();
    DIST.get_or_init(|| {
        let mut xtask = Command::new("cargo");
        xtask.args(["run", "--quiet", "--bin", "xtask", "--", "dist"]);
        let output = xtask.current_dir(tools::project()).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        let sums = Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(tools::project().join("target/dist"))
            .output()
            .unwrap();
        assert!(sums.status.success(), "{}", shown(&sums));
        tools::project().join("target/dist")
    })
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    format!("{}\n{out}\n{err}", output.status)
}

fn package(end: &str) -> PathBuf {
    let all = fs::read_dir(dist()).unwrap();
    let mut all = all.map(|entry| entry.unwrap().path());
    let ends = |path: &PathBuf| path.to_string_lossy().ends_with(end);
    all.find(ends).unwrap_or_else(|| panic!("no {end}"))
}

/// Runs it with a time limit; returns what it wrote.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", shown(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Words of the licences of what is linked in: C libraries, and crates.
const LICENSES: [&str; 5] = [
    "For Zstandard software",
    "LZ4 Library",
    "Microsoft Corporation, Daan Leijen",
    "Apache License",
    "The Rust Project Developers",
];

fn assert_licenses(text: &str) {
    for words in LICENSES {
        assert!(
            text.contains(words),
            "{words} is missing in {} bytes",
            text.len()
        );
    }
}

#[test]
fn the_tarball_and_the_sbom() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "-xzf"])
        .arg(package(".tar.gz"));
    run(tar.arg("-C").arg(dir.path()));
    let ebb = dir.path().join("bin/ebb");
    let size = fs::metadata(&ebb).unwrap().len();
    assert!(size < 4 << 20, "{size} bytes");
    let maps = run(Command::new(&ebb).args(["run", "cat", "/proc/self/maps"]));
    let library = dir.path().join("lib/ebb/libebb_preload.so");
    assert!(maps.contains(library.to_str().unwrap()), "{maps}");
    for file in [
        "share/man/man1/ebb-run.1",
        "share/bash-completion/completions/ebb",
        "share/zsh/site-functions/_ebb",
        "share/fish/vendor_completions.d/ebb.fish",
    ] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
    let licenses = dir.path().join("share/doc/ebbtide/LICENSE-THIRD-PARTY");
    assert_licenses(&fs::read_to_string(licenses).unwrap());
    // The library inside: its own, and whole.
    fs::remove_file(library).unwrap();
    let mut alone = Command::new(&ebb);
    alone.args(["run", "cat", "/proc/self/maps"]);
    alone.env("XDG_CACHE_HOME", dir.path().join("cache"));
    assert!(run(&mut alone).contains("cache/ebb/"));
    let sbom: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(package(".cdx.json")).unwrap()).unwrap();
    assert_eq!(sbom["metadata"]["component"]["name"], "ebb");
    let components = sbom["components"].as_array().unwrap();
    // Of the command, of the library, and of both.
    for name in ["clap", "libmimalloc-sys", "zstd-safe", "ebb-preload"] {
        let found = components.iter().filter(|c| c["name"] == name).count();
        assert_eq!(found, 1, "{name}");
    }
    // Of builds, and of features that nobody turned on.
    for name in ["syn", "clap_derive", "time", "tempfile"] {
        assert!(!components.iter().any(|c| c["name"] == name), "{name}");
    }
}

/// The README's line for those who have the sources; `ebb` is the only file that it installs.
#[test]
#[ignore = "a second build of everything"]
fn cargo_install_gives_one_file_that_works() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut install = Command::new("cargo");
    install.args(["install", "--quiet", "--path", "crates/ebb", "--root"]);
    install.arg(dir.path()).current_dir(tools::project());
    // Not what other tests run; and nothing says that there is a library already.
    install.env("CARGO_TARGET_DIR", tools::project().join("target/install"));
    run(install.env_remove("EBB_EMBED"));
    let programs = fs::read_dir(dir.path().join("bin")).unwrap();
    let programs: Vec<_> = programs.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(programs, ["ebb"]);
    let mut ebb = Command::new(dir.path().join("bin/ebb"));
    ebb.args(["run", "-m", "120M", "--require-managed", "--summary", "--"]);
    ebb.args(["python3", "-c", PROGRAM]);
    ebb.env("XDG_CACHE_HOME", dir.path().join("cache"));
    let output = ebb.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), SUM);
    let said = shown(&output);
    assert!(
        said.contains("120M at most") && said.contains("in the pool"),
        "{said}"
    );
    assert!(dir.path().join("cache/ebb").is_dir());
}

/// A program that needs some 240 MiB, and what it prints.
const PROGRAM: &str = "print(sum(list(range(6_000_000))))";
const SUM: &str = "17999997000000\n";

/// The wheel in a fresh environment, and the tests of the Python package and of a Jupyter kernel there.
#[test]
fn the_wheel_the_python_package_and_a_jupyter_kernel() {
    if cannot_page() {
        return;
    }
    let Some(python) = tools::python_with("pytest, ipykernel, jupyter_client") else {
        return println!("skipped: pytest, ipykernel and jupyter_client are not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    let venv = dir.path().join("venv");
    run(Command::new(&python).args(["-m", "venv"]).arg(&venv));
    let own = venv.join("bin/python3");
    let mut pip = Command::new(&own);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index"]);
    run(pip.arg(package(".whl")));
    let texts = "import importlib.metadata as m
for file in m.files('ebbtide'):
    if file.name.startswith('LICENSE'): print(file.name, file.read_text())";
    let licenses = run(Command::new(&own).args(["-c", texts]));
    assert_licenses(&licenses);
    assert!(licenses.contains("LICENSE-MIT") && licenses.contains("LICENSE-APACHE"));
    // Kernel and test program come from the environment that has them.
    let site = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let theirs = run(Command::new(&python).args(["-c", site]));
    let ours = run(Command::new(&own).args(["-c", site]));
    fs::write(Path::new(ours.trim()).join("tools.pth"), theirs).unwrap();
    let mut tests = Command::new("timeout");
    tests.args(["-k1", "600"]).arg(&own);
    tests.args(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]);
    tests.arg(tools::project().join("python/tests"));
    tests.current_dir(dir.path()).env("HOME", dir.path());
    tests.env_remove("PYTHONPATH");
    let said = run(&mut tests);
    println!("{said}");
    assert!(said.contains(" passed"), "{said}");
    // One of them kills a kernel with a memory cgroup.
    let lacks_group = cgroup::unavailable().is_some();
    assert_eq!(said.contains("skipped"), lacks_group, "{said}");
}

/// pip takes the wheel for the systems whose glibc is new enough, and for none that has musl.
#[test]
fn the_wheel_is_for_glibc_alone() {
    let dir = tempfile::tempdir().unwrap();
    let venv = dir.path().join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let wheel = package(".whl");
    let download = |platform: &str| {
        let mut pip = Command::new(venv.join("bin/python3"));
        pip.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-index",
            "--no-deps",
        ]);
        pip.args(["--only-binary=:all:", "--platform", platform, "--dest"]);
        pip.arg(dir.path()).arg(&wheel).output().unwrap()
    };
    let name = wheel.file_stem().unwrap().to_string_lossy();
    let (_, platform) = name.rsplit_once('-').unwrap();
    assert!(platform.starts_with("manylinux_2_"), "{platform}");
    let taken = download(platform);
    assert!(taken.status.success(), "{}", shown(&taken));
    let refused = download("musllinux_1_2_x86_64");
    let said = shown(&refused);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("is not a supported wheel on this platform"),
        "{said}"
    );
}

/// Shell functions for a clean root of Debian in `$root`.
const ROOT: &str = r#"
set -e
in_root() { chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C "$@"; }
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero random urandom tty userfaultfd; do
    [ -e /dev/$device ] || continue
    cp -a /dev/$device "$root/dev/"
done
mkdir -p "$root/dev/shm"
"#;

/// A newcomer on a clean root: one line installs it, one command runs a program in half its memory.
#[test]
fn from_nothing_to_half_the_memory_by_deb_and_by_wheel() {
    if cannot_page() || common::lacks("mmdebstrap") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    // Its packages are kept: making a root takes a while.
    let cache = tools::project().join("target/debian");
    let archive = cache.join("root.tar");
    if !archive.exists() {
        fs::create_dir_all(&cache).unwrap();
        let script = "mmdebstrap --variant=apt --include=python3-venv,man-db bookworm $0/part.tar >&2 \
                      && mv $0/part.tar $0/root.tar";
        let made = Command::new("timeout")
            .args(["-k1", "500", "sh", "-c", script])
            .arg(&cache)
            .output()
            .unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            let why = why.trim().lines().last().unwrap_or_default();
            return println!("skipped: no clean root from the Debian archive: {why}");
        }
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    run(Command::new("tar")
        .arg("-C")
        .arg(root)
        .arg("-xf")
        .arg(&archive));
    for end in [".deb", ".whl"] {
        let file = package(end);
        fs::copy(&file, root.join("tmp").join(file.file_name().unwrap())).unwrap();
    }
    // The same, and it stays until it is ended.
    const STAYS: &str =
        "import time; kept = list(range(6_000_000)); print(sum(kept), flush=True); time.sleep(60)";
    let licenses = LICENSES.map(|words| format!("'{words}'")).join(" ");
    let script = format!(
        r#"{ROOT}
in_root useradd -m newcomer
chmod 666 "$root/dev/userfaultfd"
as_user() {{ in_root setpriv --reuid=newcomer --regid=newcomer --init-groups env HOME=/home/newcomer "$@"; }}
sees() {{
    as_user sh -c '
        rm -f ~/said
        "$0" run -m 120M -- python3 -c "$1" > ~/said & run=$!
        until [ -s ~/said ]; do sleep 0.1; done
        cat ~/said
        "$0" top --once > ~/top
        kill $run; wait $run || :
        cat ~/top >&2
        grep -q "1 process, it pages" ~/top && grep -q "of 120M" ~/top' "$1" '{STAYS}'
}}
in_root sh -c 'cd /tmp && apt-get install -y ./ebbtide_*_amd64.deb' >&2
settings="$root/etc/sysctl.d/60-ebbtide.conf"
grep -q '^#vm.unprivileged_userfaultfd = 1$' "$settings"
if grep -v -e '^#' -e '^$' "$settings" >&2; then exit 1; fi
in_root man -w ebb-run >&2
copyright="$root/usr/share/doc/ebbtide/copyright"
for words in {licenses}; do
    grep -q "$words" "$copyright"
done
as_user ebb doctor >&2
as_user ebb run -m 120M -- python3 -c '{PROGRAM}'
sees ebb
in_root dpkg -P ebbtide >&2
for file in "$settings" "$root/usr/bin/ebb" "$root/usr/lib/ebb"; do
    [ ! -e "$file" ]
done
as_user sh -c 'python3 -m venv ~/venv && cd /tmp && ~/venv/bin/pip install --quiet ./ebbtide-*.whl' >&2
as_user /home/newcomer/venv/bin/ebb run -m 120M -- python3 -c '{PROGRAM}'
sees /home/newcomer/venv/bin/ebb
as_user /home/newcomer/venv/bin/python -m ebbtide -m 120M -c '{PROGRAM}'
"#
    );
    let mut unshare = Command::new("timeout");
    unshare.args([
        "-k1",
        "300",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    unshare.args(["sh", "-c", &script]).env("root", root);
    let said = run(&mut unshare);
    assert_eq!(said, SUM.repeat(5));
}
