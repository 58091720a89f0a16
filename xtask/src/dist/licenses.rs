//! The licences of others' work that is linked in: their texts, as each crate's archive has them.
//!
//! A crate that builds a C library carries that library's licence beside its own. A text that several have stands there
//! once, below their names. Not here: Ebbtide's own licences, which lie in the sources.

use super::linked::{Linked, text};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The file that holds them, named as its neighbours are: tools that build wheels look for such names.
pub const THIRD_PARTY: &str = "LICENSE-THIRD-PARTY";

/// Beginnings of the names of files that hold a licence.
const NAMES: [&str; 6] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];

/// C libraries as `links` of a crate names them, and the place of their licences there.
const C_LIBRARIES: [(&str, &str); 3] = [
    ("lz4", "liblz4/lib/LICENSE"),
    ("mimalloc", "c_src/mimalloc/v3/LICENSE"),
    ("zstd", "zstd/LICENSE"),
];

const HEAD: &str = "\
Licences of what is linked into ebb and its library, beside Ebbtide's own, which LICENSE-MIT and LICENSE-APACHE hold.
Rust's standard library is linked in too: copyright of its contributors, under MIT or Apache-2.0 as many crates below.
";

/// The content of that file.
///
/// # Errors
/// A crate has no text of its licence, or that of a C library is elsewhere.
pub fn third_party(linked: &Linked) -> Result<String> {
    let mut owners = BTreeMap::<String, Vec<String>>::new();
    // Our own packages come from no registry.
    for package in linked.packages().filter(|one| one["source"].is_string()) {
        let crate_name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let folder = Path::new(text(&package["manifest_path"])).parent();
        let folder = folder.context("a manifest lies in a folder")?;
        for file in files(folder, &package["links"]).with_context(|| crate_name.clone())? {
            let path = folder.join(&file);
            let content = fs::read(&path).with_context(|| path.display().to_string())?;
            let content = String::from_utf8_lossy(&content).replace("\r\n", "\n");
            let owner = format!("{crate_name}: {}", file.display());
            owners
                .entry(content.trim_matches('\n').to_owned())
                .or_default()
                .push(owner);
        }
    }
    let mut texts: Vec<_> = owners.into_iter().map(|(text, of)| (of, text)).collect();
    texts.iter_mut().for_each(|(of, _)| of.sort());
    texts.sort();
    let line = "=".repeat(80);
    let parts = texts.into_iter().map(|(of, text)| {
        let of = of.join("\n");
        format!("\n{line}\n{of}\n{line}\n\n{text}\n")
    });
    Ok([HEAD.to_owned()].into_iter().chain(parts).collect())
}

/// Files of a crate's folder that hold its licence, and that of the C library that it builds.
fn files(folder: &Path, links: &serde_json::Value) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let upper = name.to_string_lossy().to_uppercase();
        let is_one = NAMES.iter().any(|start| upper.starts_with(start));
        if is_one && folder.join(&name).is_file() {
            found.push(PathBuf::from(name));
        }
    }
    if found.is_empty() {
        bail!("its archive has no text of its licence: leave it out, or have one put in");
    }
    if let Some(library) = links.as_str() {
        let place = C_LIBRARIES.iter().find(|(name, _)| *name == library);
        let (_, file) = place.with_context(|| {
            format!("it links {library}: name the place of its licence in C_LIBRARIES")
        })?;
        found.push(file.into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A crate's archive with these files.
    fn package(all: &Path, name: &str, links: Option<&str>, files: &[(&str, &str)]) -> Value {
        let folder = all.join(name);
        for (file, content) in files {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        json!({
            "name": name, "version": "1.0.0", "source": "a registry", "links": links,
            "manifest_path": folder.join("Cargo.toml"),
        })
    }

    fn told(packages: &[Value]) -> Result<String> {
        let lines = packages
            .iter()
            .map(|one| format!("{} v1.0.0\n", text(&one["name"])));
        let tree: String = lines.collect();
        third_party(&Linked::new(&tree, json!({"packages": packages})))
    }

    #[test]
    fn each_text_stands_there_once_below_its_crates() {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path();
        let mut ours = package(all, "ours", None, &[("LICENSE", "our own")]);
        ours["source"] = Value::Null;
        let packages = [
            package(
                all,
                "b",
                None,
                &[("LICENSE-MIT", "one text\r\n"), ("lib.rs", "code")],
            ),
            package(
                all,
                "a",
                None,
                &[("license.md", "one text\n"), ("COPYING", "another\n")],
            ),
            package(
                all,
                "c",
                Some("zstd"),
                &[
                    ("LICENSE", "the crate's"),
                    ("zstd/LICENSE", "For Zstandard software"),
                ],
            ),
            ours,
        ];
        let told = told(&packages).unwrap();
        assert_eq!(told.matches("one text").count(), 1, "{told}");
        assert!(
            told.contains("\na 1.0.0: license.md\nb 1.0.0: LICENSE-MIT\n"),
            "{told}"
        );
        for part in [
            "another",
            "c 1.0.0: LICENSE\n",
            "the crate's",
            "c 1.0.0: zstd/LICENSE\n",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert!(told.ends_with("\nFor Zstandard software\n"), "{told}");
        assert!(
            !told.contains("our own") && !told.contains("code"),
            "{told}"
        );
    }

    #[test]
    fn the_c_libraries_of_this_project_are_in_it() {
        let told = third_party(&Linked::here().unwrap()).unwrap();
        for words in [
            "For Zstandard software",
            "LZ4 Library",
            "Microsoft Corporation, Daan Leijen",
        ] {
            assert!(told.contains(words), "{words}");
        }
        // Nothing of zstd's tools, or of lz4's, is linked in.
        assert!(!told.contains("GNU GENERAL PUBLIC LICENSE"));
    }

    #[test]
    fn a_licence_that_is_missing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path();
        let bare = package(all, "bare", None, &[("lib.rs", "code")]);
        let other = package(all, "other", Some("other"), &[("LICENSE", "its own")]);
        let moved = package(all, "moved", Some("lz4"), &[("LICENSE", "its own")]);
        for (package, says) in [
            (bare, "bare 1.0.0"),
            (other, "it links other"),
            (moved, "liblz4/lib/LICENSE"),
        ] {
            let error = format!("{:#}", told(&[package]).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
