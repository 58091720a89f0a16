//! Puts a copy of the preload library into `ebb`, where `EBB_EMBED` asks for it:
//!
//! | `EBB_EMBED` | copy inside `ebb` | set by |
//! |---|---|---|
//! | not set, or empty | none: the library lies beside `ebb` | builds while one works on Ebbtide |
//! | a path | that file | `cargo xtask dist`, which has built it |
//! | `build` | the library as released, built here | `.cargo/config.toml` of this package, for `cargo install` |
//!
//! The build here is cargo's own. Its target directory is below `OUT_DIR`, as the build around it holds the lock of the
//! other one.
//!
//! Not here: where the copy goes when `ebb` runs (`src/library/cache.rs`).

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Packages that the library is built from.
const SOURCES: [&str; 6] = ["sys", "engine", "stores", "tree", "pager", "preload"];

/// The slowest level: a third smaller than the fastest, for a second of a build.
const LEVEL: u8 = 9;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(embedded)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=EBB_EMBED");
    let library = match env::var("EBB_EMBED").unwrap_or_default().as_str() {
        "" => return,
        "build" => build(),
        path => PathBuf::from(path),
    };
    println!("cargo:rerun-if-changed={}", library.display());
    let content =
        fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let packed = miniz_oxide::deflate::compress_to_vec(&content, LEVEL);
    fs::write(out.join("library.deflate"), packed).expect("OUT_DIR can be written");
    println!("cargo:rustc-cfg=embedded");
    println!("cargo:rustc-env=EBB_LIBRARY_BYTES={}", content.len());
    let hash = xxhash_rust::xxh3::xxh3_128(&content);
    println!("cargo:rustc-env=EBB_LIBRARY_HASH={hash:032x}");
}

/// Builds the library; returns its path.
fn build() -> PathBuf {
    let var = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let crates = var("CARGO_MANIFEST_DIR");
    let crates = crates.parent().expect("the folder of all packages");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", crates.join(source).display());
    }
    let lock = crates.join("../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    let target = env::var("TARGET").expect("cargo sets it");
    let directory = var("OUT_DIR").join("library");
    let mut cargo = Command::new(var("CARGO"));
    cargo
        .args(["build", "--release", "--quiet", "--package", "ebb-preload"])
        .arg("--manifest-path")
        .arg(crates.join("../Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        .args(["--target", &target])
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    // As the build around it, which says so by no variable but its lock: what is there is what it uses.
    if lock.is_file() {
        cargo.arg("--locked");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the preload library does not build");
    directory.join(target).join("release/libebb_preload.so")
}
