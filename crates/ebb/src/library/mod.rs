//! The preload library: where it lies, and how it is named to the loaders of the tree.
//!
//! | first of | in |
//! |---|---|
//! | beside `ebb`, `../lib/ebb` | place |
//! | the user's cache, from the file there if its name is one that a loader cannot take | `cache` |
//! | the user's cache, from the copy inside `ebb` | `embedded`, `cache` |
//!
//! glibc's loader takes `:` and `$` in LD_PRELOAD as signs, and cannot quote blanks. musl's takes a library that it
//! finds for one of its own. So the name is one that glibc alone resolves (`ebb_sys::loader`).

mod cache;
mod embedded;

use crate::program::{Kind, LIBRARY as FILE};
use anyhow::{Context, Result, bail};
use ebb_sys::elf::UnmanagedReason;
use ebb_sys::loader;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of the library that belongs to this very command.
///
/// # Errors
/// Names the places looked at, and the next step.
pub fn path() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(FILE), dir.join("../lib/ebb").join(FILE)];
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        let named = || format!("cannot read {}", found.display());
        let found = found.canonicalize().with_context(named)?;
        if !has_signs(&found) {
            return Ok(found);
        }
        let content = File::open(&found).and_then(read).with_context(named)?;
        return cache::place(FILE, &hash(&content), &|| Ok(content.clone()));
    }
    match embedded::embedded() {
        Some(copy) => cache::place(FILE, copy.hash, &|| copy.content()),
        None => bail!(
            "{FILE} is missing: it belongs beside ebb, as {} or {}, and this ebb was built without a copy inside; \
             build it with `cargo build --release` or install ebb again",
            places[0].display(),
            places[1].display()
        ),
    }
}

/// Whether a path has characters that the loader takes as signs.
fn has_signs(path: &Path) -> bool {
    path.as_os_str()
        .as_bytes()
        .iter()
        .any(|b| matches!(b, b':' | b'$'))
}

fn read(mut file: File) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// The hash by which a content is named.
fn hash(content: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(content))
}

/// The library, as it is named to the loaders of the tree.
pub struct Library {
    /// Word of LD_PRELOAD.
    name: OsString,
    /// Word of LD_LIBRARY_PATH, if the library is found there.
    directory: Option<OsString>,
    /// Flag: glibc's loader alone finds it by these words.
    for_glibc: bool,
}

impl Library {
    /// The library of this very command.
    ///
    /// # Errors
    /// It is missing, or there is no place for it.
    pub fn find() -> Result<Self> {
        Ok(Self::at(&path()?))
    }

    fn at(library: &Path) -> Self {
        let named = |path: &Path| match loader::for_glibc(path) {
            Some(name) => (name, true),
            None => (path.into(), false),
        };
        if library
            .as_os_str()
            .as_bytes()
            .iter()
            .any(u8::is_ascii_whitespace)
        {
            // LD_PRELOAD cannot quote blanks either, LD_LIBRARY_PATH need not.
            let (directory, for_glibc) = named(library.parent().unwrap_or(Path::new("/")));
            Self {
                name: FILE.into(),
                directory: Some(directory),
                for_glibc,
            }
        } else {
            let (name, for_glibc) = named(library);
            Self {
                name,
                directory: None,
                for_glibc,
            }
        }
    }

    /// Whether a program of this kind must not get it.
    pub fn withheld_from(&self, kind: &Kind) -> bool {
        matches!(kind, Kind::Unmanaged(reason) if reason.withholds(self.for_glibc))
    }

    /// Whether programs that one of this kind starts do not get it either: it is withheld, or the loader takes it out of
    /// the environment.
    pub fn is_lost_behind(&self, kind: &Kind) -> bool {
        self.withheld_from(kind) || *kind == Kind::Unmanaged(UnmanagedReason::Privileged)
    }

    /// Puts it in front of libraries that are preloaded already.
    pub fn put_into(&self, command: &mut Command) {
        let old = |variable| std::env::var_os(variable).unwrap_or_default();
        if let Some(directory) = &self.directory {
            let value = prepended(directory, old("LD_LIBRARY_PATH"));
            command.env("LD_LIBRARY_PATH", value);
        }
        // One copy alone: two would each manage a part of the process.
        let others = without_ours(&old("LD_PRELOAD"));
        command.env("LD_PRELOAD", prepended(&self.name, others));
    }
}

fn prepended(value: &OsStr, old: OsString) -> OsString {
    let mut text = value.to_os_string();
    if !old.is_empty() {
        text.push(":");
        text.push(old);
    }
    text
}

/// A list of libraries without any copy of this one.
fn without_ours(list: &OsStr) -> OsString {
    // As the loader divides it.
    let entries = list.as_bytes().split(|byte| b": ".contains(byte));
    let is_ours =
        |entry: &&[u8]| Path::new(OsStr::from_bytes(entry)).file_name() == Some(FILE.as_ref());
    let others: Vec<&[u8]> = entries
        .filter(|entry| !entry.is_empty() && !is_ours(entry))
        .collect();
    OsString::from_vec(others.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::without_ours;
    use std::ffi::OsStr;

    #[test]
    fn a_list_keeps_all_but_copies_of_the_library() {
        let list =
            "/opt/a/libebb_preload.so:libjemalloc.so.2 /b/libebb_preload.so::libebb_preload.so";
        assert_eq!(without_ours(OsStr::new(list)), "libjemalloc.so.2");
        assert_eq!(without_ours(OsStr::new("")), "");
        assert_eq!(without_ours(OsStr::new("a.so b.so")), "a.so:b.so");
    }
}
