//! The SBOM: one CycloneDX document for `ebb` and its library, which no dependency connects.
//!
//! Cargo tells which crates they are built from; Cargo.lock has the sums of those that come from a registry. Crates
//! that only run while they are built (build scripts' own) are not in it, nor are those of tests.

use super::{VERSION, run};
use anyhow::{Context, Result};
use ebb_harness::tools;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The package that the document is about, and the library inside it.
const ROOTS: [&str; 2] = ["ebb", "ebb-preload"];

pub fn sbom(all: &Path) -> Result<()> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version=1", "--locked"]);
    cargo.args(["--filter-platform", &target]);
    let metadata = run(cargo.current_dir(tools::project()))?;
    let lock = fs::read_to_string(tools::project().join("Cargo.lock"))?;
    let mut document = document(&serde_json::from_str(&metadata)?, &toml::from_str(&lock)?)?;
    // Dated by the last commit, so that the same sources give the same document.
    let mut git = Command::new("git");
    git.args(["log", "-1", "--date=format-local:%FT%TZ", "--format=%cd"]);
    git.env("TZ", "UTC").current_dir(tools::project());
    if let Ok(date) = run(&mut git) {
        document["metadata"]["timestamp"] = date.trim().into();
    }
    let file = all.join(format!("ebb-{VERSION}.cdx.json"));
    Ok(fs::write(file, format!("{document:#}\n"))?)
}

/// The document, without its date.
fn document(metadata: &Value, lock: &toml::Table) -> Result<Value> {
    let sums = sums(lock);
    let packages: HashMap<&str, &Value> = list(&metadata["packages"])
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: HashMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), node))
        .collect();
    let root = |name| {
        let mut ours = list(&metadata["workspace_members"]).map(text);
        ours.find(|id| packages[id]["name"] == name)
            .with_context(|| format!("cargo metadata knows no {name}"))
    };
    // By name and version, each once.
    let (mut components, mut dependencies) = (BTreeMap::new(), BTreeMap::new());
    let mut open = vec![root(ROOTS[0])?, root(ROOTS[1])?];
    while let Some(id) = open.pop() {
        let known = reference(packages[id]);
        if components.contains_key(&known) {
            continue;
        }
        let linked = list(&nodes[id]["deps"]).filter(|dependency| {
            let mut kinds = list(&dependency["dep_kinds"]);
            kinds.any(|kind| kind["kind"].is_null())
        });
        let linked: Vec<&str> = linked.map(|dependency| text(&dependency["pkg"])).collect();
        let on: Vec<String> = linked.iter().map(|id| reference(packages[id])).collect();
        open.extend(linked);
        components.insert(known.clone(), component(packages[id], &sums));
        dependencies.insert(known.clone(), json!({"ref": known, "dependsOn": on}));
    }
    let about = reference(packages[root(ROOTS[0])?]);
    let mut about = components.remove(&about).context("no component")?;
    about["type"] = "application".into();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.into_values().collect::<Vec<_>>(),
    }))
}

fn component(package: &Value, sums: &HashMap<(&str, &str), &str>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": name,
        "version": version,
        "purl": reference(package),
    });
    if let Some(license) = package["license"].as_str() {
        // Crates of before 2018 have a slash for "or".
        let expression = license.replace('/', " OR ");
        component["licenses"] = json!([{"expression": expression}]);
    }
    if let Some(sum) = sums.get(&(name, version)) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

/// The package URL.
fn reference(package: &Value) -> String {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    format!("pkg:cargo/{name}@{version}")
}

/// SHA-256 of each crate's archive, by name and version.
fn sums(lock: &toml::Table) -> HashMap<(&str, &str), &str> {
    let packages = lock.get("package").and_then(toml::Value::as_array);
    packages.into_iter().flatten().filter_map(sum).collect()
}

fn sum(package: &toml::Value) -> Option<((&str, &str), &str)> {
    let get = |key| package.get(key).and_then(toml::Value::as_str);
    Some(((get("name")?, get("version")?), get("checksum")?))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_that_is_linked_is_in_it_once() {
        let package = |name| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let on = |name, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let packages = ["ebb", "ebb-preload", "both", "built", "deep"].map(package);
        let metadata = json!({
            "packages": packages,
            "workspace_members": ["ebb-preload", "ebb"],
            "resolve": {"nodes": [
                {"id": "ebb", "deps": [on("both", None), on("built", Some("build"))]},
                {"id": "ebb-preload", "deps": [on("both", None)]},
                {"id": "both", "deps": [on("deep", None), on("built", Some("dev"))]},
                {"id": "deep", "deps": []},
                {"id": "built", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n";
        let made = document(&metadata, &toml::from_str(lock).unwrap()).unwrap();
        assert_eq!(made["metadata"]["component"]["name"], "ebb");
        let names: Vec<&str> = list(&made["components"])
            .map(|component| text(&component["name"]))
            .collect();
        assert_eq!(names, ["both", "deep", "ebb-preload"]);
        assert_eq!(made["components"][1]["hashes"][0]["content"], "ab");
        let licenses = &made["components"][0]["licenses"];
        assert_eq!(licenses[0]["expression"], "MIT OR Apache-2.0");
        let of_both = &made["dependencies"][0];
        assert_eq!(of_both["dependsOn"], json!(["pkg:cargo/deep@1.0.0"]));
    }
}
