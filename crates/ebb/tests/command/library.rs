//! Where the library comes from: beside `ebb`, or from the copy inside, through the user's cache.

use super::common::{cannot_page, ebb, not_built_for_speed};
use super::stderr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The library that a program under this `ebb` has loaded, with the cache and temporary files below `dir`.
fn loaded(ebb: &Path, dir: &Path) -> (Option<String>, Output) {
    let output = Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb)
        .args(["run", "--", "cat", "/proc/self/maps"])
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("TMPDIR", dir)
        .output()
        .unwrap();
    let maps = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = maps.lines().find(|line| line.contains("libebb_preload.so"));
    let path = line.and_then(|line| Some(line[line.find('/')?..].to_owned()));
    (path, output)
}

/// `ebb` without its library beside it, in a directory of this name.
fn alone(dir: &Path, name: &str) -> std::path::PathBuf {
    let place = dir.join(name);
    fs::create_dir_all(&place).unwrap();
    fs::copy(ebb(), place.join("ebb")).unwrap();
    place.join("ebb")
}

#[test]
fn a_library_whose_path_a_loader_cannot_take_is_loaded_from_the_cache() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["with:colon", "with $sign and blank"] {
        let ebb = alone(dir.path(), name);
        let library = "libebb_preload.so";
        fs::copy(
            super::ebb().with_file_name(library),
            ebb.with_file_name(library),
        )
        .unwrap();
        let (path, output) = loaded(&ebb, dir.path());
        let path = path.unwrap_or_else(|| panic!("{name}: {}", stderr(&output)));
        let cache = dir.path().join("cache/ebb");
        assert!(path.starts_with(cache.to_str().unwrap()), "{name}: {path}");
        assert!(output.stderr.is_empty(), "{name}: {}", stderr(&output));
    }
}

#[test]
fn ebb_alone_is_enough() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ebb = alone(dir.path(), "alone");
    let (path, output) = loaded(&ebb, dir.path());
    if !cfg!(embedded) {
        assert_eq!(output.status.code(), Some(125));
        let text = stderr(&output);
        assert!(text.contains("libebb_preload.so is missing"), "{text}");
        return println!("skipped in part: pending: this ebb was built without EBB_EMBED");
    }
    let cache = dir.path().join("cache/ebb");
    let path = path.unwrap_or_else(|| panic!("{}", stderr(&output)));
    assert!(path.starts_with(cache.to_str().unwrap()), "{path}");
    // A cache that others can write to is passed over for the directory of temporary files.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    let (path, output) = loaded(&ebb, dir.path());
    let path = path.unwrap_or_else(|| panic!("{}", stderr(&output)));
    let user = rustix::process::geteuid().as_raw();
    let temporary = dir.path().join(format!("ebb-{user}"));
    assert!(path.starts_with(temporary.to_str().unwrap()), "{path}");
}

/// Programs of root's tree become other users, who cannot reach what is in root's home.
#[test]
fn programs_that_root_starts_as_another_user_load_the_library() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    if !cfg!(embedded) {
        return println!("skipped: pending: this ebb was built without EBB_EMBED");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let ebb = alone(dir.path(), "alone");
    // A cache of its own for the test; and root's umask changes nothing.
    let script = "mount -t tmpfs -o mode=755 none /var/cache && umask 077 && exec \"$0\" run --require-managed -- \
                  setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'id -u; cat /proc/self/maps'";
    let output = Command::new("timeout")
        .args(["-k1", "60", "unshare", "--mount", "sh", "-c", script])
        .arg(&ebb)
        .env("HOME", "/root")
        .env_remove("XDG_CACHE_HOME")
        .output()
        .unwrap();
    let maps = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(maps.starts_with("65534\n"), "{maps}");
    assert!(
        maps.contains("/var/cache/ebb/"),
        "{maps}{}",
        stderr(&output)
    );
    assert_eq!(stderr(&output), "");
}

/// The user's mask changes nothing. `ebb doctor` writes the library where the user may not page.
#[test]
fn an_ordinary_users_library_is_for_that_user_alone() {
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    if !cfg!(embedded) {
        return println!("skipped: pending: this ebb was built without EBB_EMBED");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let script = "umask 0; exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" doctor";
    let output = Command::new("timeout")
        .args(["-k1", "60", "sh", "-c", script])
        .arg(alone(dir.path(), "alone"))
        .env("XDG_CACHE_HOME", dir.path().join("cache"))
        .output()
        .unwrap();
    let place = dir.path().join("cache/ebb");
    let inside = fs::read_dir(&place).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let hash = inside.map(|entry| entry.unwrap().path()).next().unwrap();
    let library = hash.join("libebb_preload.so");
    for ours in [&place, &hash, &library] {
        let mode = fs::metadata(ours).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", ours.display());
    }
}

/// File systems from which no program can be loaded, or to which nothing can be written.
#[test]
fn a_cache_that_cannot_be_used_is_refused_with_the_next_step() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    if !cfg!(embedded) {
        return println!("skipped: pending: this ebb was built without EBB_EMBED");
    }
    // Under /tmp it would vanish under the mount.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let ebb = alone(dir.path(), "alone");
    for (option, says) in [
        ("noexec", "mounted noexec"),
        ("ro", "Read-only file system"),
    ] {
        let script =
            format!("mount -t tmpfs -o {option},size=8m none /tmp && exec \"$0\" run true");
        let output = Command::new("timeout")
            .args(["-k1", "60", "unshare", "--mount", "sh", "-c", &script])
            .arg(&ebb)
            .env("XDG_CACHE_HOME", "/tmp/cache")
            .env("TMPDIR", "/tmp")
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(says), "{text}");
        assert!(text.contains("XDG_CACHE_HOME"), "{text}");
    }
}

/// Without symbols: `ebb` with the library inside, as a user downloads it, and both side by side.
#[test]
fn the_command_and_its_library_are_small() {
    const MOST: usize = 4_000_000;
    if not_built_for_speed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stripped = |file: &Path| {
        let to = dir.path().join(file.file_name().unwrap());
        let mut strip = Command::new("strip");
        let status = strip.arg("-o").arg(&to).arg(file).status().unwrap();
        assert!(status.success(), "{}", file.display());
        fs::read(to).unwrap()
    };
    let library = stripped(&ebb().with_file_name("libebb_preload.so"));
    let packed = match cfg!(embedded) {
        true => miniz_oxide::deflate::compress_to_vec(&library, 9).len(),
        false => 0,
    };
    let all = stripped(ebb()).len();
    let both = all - packed + library.len();
    println!("ebb with the library inside {all}, and both side by side {both}");
    // One file has to be under 4 MB; two beside each other may take 4 MiB.
    assert!(all < MOST && both < 4 << 20, "{all}, {both}");
}
