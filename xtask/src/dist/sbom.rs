//! The SBOM: one CycloneDX document for `ebb` and its library.
//!
//! It names the crates that are linked in (`linked.rs`); Cargo.lock has the sums of what comes from a registry.

use super::linked::{COMMAND, Linked, list, text};
use super::{VERSION, last_commit};
use anyhow::{Context, Result};
use ebb_harness::tools;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

pub fn sbom(all: &Path, linked: &Linked) -> Result<()> {
    let lock = fs::read_to_string(tools::project().join("Cargo.lock"))?;
    let mut document = document(linked, &toml::from_str(&lock)?)?;
    if let Ok(date) = last_commit("%cd") {
        document["metadata"]["timestamp"] = date.into();
    }
    let file = all.join(format!("ebb-{VERSION}.cdx.json"));
    Ok(fs::write(file, format!("{document:#}\n"))?)
}

/// The document, without its date.
fn document(linked: &Linked, lock: &toml::Table) -> Result<Value> {
    let sums = sums(lock);
    let packages: HashMap<&str, &Value> = linked
        .packages()
        .map(|package| (text(&package["id"]), package))
        .collect();
    // By reference, so in one order.
    let (mut components, mut dependencies) = (BTreeMap::new(), Vec::new());
    for node in linked.nodes() {
        let Some(package) = packages.get(text(&node["id"])) else {
            continue;
        };
        let on = list(&node["deps"])
            .filter(|on| list(&on["dep_kinds"]).any(|kind| kind["kind"].is_null()))
            .filter_map(|on| Some(reference(packages.get(text(&on["pkg"]))?)));
        let on: Vec<String> = on.collect();
        let known = reference(package);
        dependencies.push(json!({"ref": known, "dependsOn": on}));
        components.insert(known, component(package, &sums));
    }
    let about = packages.values().find(|package| package["name"] == COMMAND);
    let about = reference(about.context("cargo metadata knows no ebb")?);
    let mut about = components.remove(&about).context("no component")?;
    about["type"] = "application".into();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

fn component(package: &Value, sums: &HashMap<(&str, &str), &str>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": name,
        "version": version,
    });
    // A package URL names a registry's package: none of ours is one.
    if package["source"].is_string() {
        component["purl"] = reference(package).into();
    }
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

/// The package URL of what comes from a registry. In one a plus sign would be a blank.
fn reference(package: &Value) -> String {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    match package["source"].is_string() {
        true => format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")),
        false => format!("{name}@{version}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_that_is_linked_is_in_it_once() {
        let package = |(name, source): (&str, Option<&str>)| {
            json!({
                "id": name, "name": name, "version": "1.0.0+c", "source": source,
                "license": "MIT/Apache-2.0",
            })
        };
        let (ours, theirs) = (None, Some("a registry"));
        let packages = [
            ("ebb", ours),
            ("ebb-preload", ours),
            ("both", theirs),
            ("built", theirs),
            ("deep", theirs),
        ]
        .map(package);
        let on = |name, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "ebb", "deps": [on("both", None), on("built", Some("build"))]},
                {"id": "ebb-preload", "deps": [on("both", None)]},
                {"id": "both", "deps": [on("deep", None), on("built", None)]},
                {"id": "deep", "deps": []},
                {"id": "built", "deps": []},
            ]},
        });
        let tree = "ebb v1.0.0+c (/ebb)\nboth v1.0.0+c\ndeep v1.0.0+c\n\nebb-preload v1.0.0+c (/preload)\n\
                    both v1.0.0+c (*)\n";
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0+c\"\nchecksum = \"ab\"\n";
        let lock = toml::from_str(lock).unwrap();
        let made = document(&Linked::new(tree, metadata), &lock).unwrap();
        assert_eq!(made["metadata"]["component"]["name"], "ebb");
        let all = |key: &'static str| list(&made["components"]).map(move |c| c[key].clone());
        let names: Vec<Value> = all("name").collect();
        assert_eq!(names, ["ebb-preload", "both", "deep"]);
        let urls: Vec<Value> = all("purl").collect();
        let url = |name| json!(format!("pkg:cargo/{name}@1.0.0%2Bc"));
        assert_eq!(urls, [Value::Null, url("both"), url("deep")]);
        let deep = &made["components"][2];
        assert_eq!(deep["hashes"][0]["content"], "ab");
        assert_eq!(deep["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(made["dependencies"][2]["dependsOn"], json!([url("deep")]));
    }
}
