//! The lines of the README, and the files of `examples/`, as far as they can be tried without a registry, a cluster,
//! systemd or a runner.
//!
//! Command lines of `ebb` in them run as they stand there, and what is YAML is read by a parser.

mod common;

use common::{cannot_page, ebb};
use ebb_harness::tools;
use ebb_stores::{Size, SwapSpec, SwapTarget};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Sum that the program of all examples prints.
const SUM: &str = "17999997000000\n";

fn file(name: &str) -> PathBuf {
    tools::project().join("examples").join(name)
}

/// The words behind an instruction or a key, at the start of one line of a file.
fn behind(name: &str, key: &str) -> String {
    let text = fs::read_to_string(file(name)).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
    let found = lines.next().unwrap_or_else(|| panic!("no {key} in {name}"));
    assert_eq!(lines.next(), None, "{key} in {name}");
    found.trim().to_owned()
}

/// The content of a YAML file; none where there is no parser.
fn yaml(name: &str) -> Option<Value> {
    const READ: &str = "import json, sys, yaml
print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let Some(python) = tools::python_with("yaml") else {
        println!("skipped: PyYAML is not installed");
        return None;
    };
    let mut command = Command::new(python);
    let output = command.args(["-c", READ]).arg(file(name)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn words(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    let words = list.iter().map(|word| word.as_str().unwrap().to_owned());
    words.collect()
}

/// Runs a command line of an example, with the command under test in place of the installed one.
#[track_caller]
fn assert_runs(line: &[String]) {
    assert!(["ebb", "/usr/bin/ebb"].contains(&&*line[0]), "{line:?}");
    let output = Command::new("timeout")
        .args(["-k1", "100"])
        .arg(ebb())
        .args(&line[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line:?}: {said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, SUM, "{line:?}: {said}");
}

/// The output of a script, in a shell that finds the command under test as `ebb`.
#[track_caller]
fn in_a_shell(script: &str) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let own = ebb().parent().unwrap().display();
    let output = Command::new("timeout")
        .args(["-k1", "100", "sh", "-c", script])
        .env("PATH", format!("{own}:{path}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A newcomer types these lines first. Other trees may run meanwhile: `ebb top` is told which.
#[test]
fn the_readmes_first_line_and_see_it_work() {
    if cannot_page() {
        return;
    }
    let readme = fs::read_to_string(tools::project().join("README.md")).unwrap();
    let mut lines = readme.lines();
    let mut next = || {
        lines.find_map(|line| {
            line.strip_prefix("$ ")
                .filter(|l| l.starts_with("ebb run "))
        })
    };
    let (first, stays) = (next().unwrap().to_owned(), next().unwrap().to_owned());
    let (_, printed) = readme.split_once(&format!("$ {first}\n")).unwrap();
    let printed = printed.lines().next().unwrap();
    assert_eq!(in_a_shell(&first), format!("{printed}\n"));
    let screen = in_a_shell(&format!(
        "{stays} pid=$!
        until ebb top $pid --once | grep 'it pages'; do sleep 0.1; done 2> /dev/null
        ebb top $pid --once; kill $pid; wait $pid || :"
    ));
    assert!(
        screen.contains("of 100M") && screen.contains("python3"),
        "{screen}"
    );
}

#[test]
fn commands_of_the_image_and_of_what_runs_it() {
    if cannot_page() {
        return;
    }
    let list = |key| words(&serde_json::from_str(&behind("container/Dockerfile", key)).unwrap());
    let front = list("ENTRYPOINT ");
    assert_runs(&[&front[..], &list("CMD ")].concat());
    let Some(compose) = yaml("container/compose.yaml") else {
        return;
    };
    let job = &compose["services"]["job"];
    assert_runs(&[&front[..], &words(&job["command"])].concat());
    assert_eq!(words(&job["devices"]), ["/dev/userfaultfd"]);
    // A kernel that loses pages beside its own swap may not swap the job.
    let memory = job["mem_limit"].as_str().unwrap();
    assert_eq!(job["memswap_limit"], memory, "{job}");
    let recipe = fs::read_to_string(file("container/Dockerfile")).unwrap();
    let run = recipe.lines().find(|line| line.contains("docker run"));
    assert!(run.unwrap().contains("--memory 512m --memory-swap 512m "));
    let pod = yaml("kubernetes/pod.yaml").unwrap();
    let job = &pod["spec"]["containers"][0];
    assert_runs(&[&front[..], &words(&job["args"])].concat());
}

#[test]
fn the_command_of_the_unit() {
    if cannot_page() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return println!("skipped: python3 is not installed");
    }
    // Words are quoted there as for a shell.
    let line = behind("systemd/ebb-job.service", "ExecStart=");
    let split = Command::new("sh")
        .args(["-c", &format!("printf '%s\\n' {line}")])
        .output()
        .unwrap();
    let words = String::from_utf8(split.stdout).unwrap();
    let words: Vec<String> = words.lines().map(str::to_owned).collect();
    assert_runs(&words);
}

/// The pod asks for what the device plugin offers, and that offers the device.
#[test]
fn the_pod_and_the_device_plugin_agree() {
    let Some(plugin) = yaml("kubernetes/device-plugin.yaml") else {
        return;
    };
    let pod = yaml("kubernetes/pod.yaml").unwrap();
    let args = words(&plugin["spec"]["template"]["spec"]["containers"][0]["args"]);
    let domain = args.iter().find_map(|word| word.strip_prefix("--domain="));
    let device = args.last().unwrap();
    let name = device.lines().find_map(|line| line.strip_prefix("name: "));
    assert!(device.contains("- path: /dev/userfaultfd"), "{device}");
    let wanted = format!("{}/{}", domain.unwrap(), name.unwrap());
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits[&wanted], 1, "{wanted}: {limits}");
}

/// The kubelet does not see a file without a name, so the SPEC bounds it, within what the volume is allowed.
#[test]
fn the_swap_file_of_the_pod_has_a_size() {
    let Some(pod) = yaml("kubernetes/pod.yaml") else {
        return;
    };
    let job = &pod["spec"]["containers"][0];
    let variables = job["env"].as_array().unwrap();
    let swap = variables.iter().find(|one| one["name"] == "EBB_SWAP");
    let spec: SwapSpec = swap.unwrap()["value"].as_str().unwrap().parse().unwrap();
    let SwapSpec::At(SwapTarget {
        size: Some(Size::Bytes(bytes)),
        path: Some(path),
        ..
    }) = spec
    else {
        panic!("{spec}");
    };
    assert_eq!(job["volumeMounts"][0]["mountPath"], path.to_str().unwrap());
    let limit = &pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"];
    let limit = limit.as_str().unwrap().strip_suffix("Gi").unwrap();
    assert!(bytes <= limit.parse::<u64>().unwrap() << 30, "{limit}");
}

/// A shell can read each step's script, and what is asked of `ebb` there it does.
#[test]
fn the_scripts_of_the_action() {
    if cannot_page() {
        return;
    }
    let Some(action) = yaml("github-actions/action.yml") else {
        return;
    };
    let steps = action["runs"]["steps"].as_array().unwrap();
    let scripts = steps.iter().map(|step| step["run"].as_str().unwrap());
    let mut asked = 0;
    for script in scripts {
        let read = Command::new("bash").args(["-n", "-c", script]).output();
        let said = String::from_utf8(read.unwrap().stderr).unwrap();
        assert_eq!(said, "", "{script}");
        let calls = script.lines().filter_map(|line| line.split_once("/ebb\" "));
        for (_, words) in calls {
            let mut ebb = Command::new(ebb());
            let output = ebb.args(words.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{words}: {output:?}");
            asked += 1;
        }
    }
    assert!(asked > 0, "{action}");
    // What the runner has and `ebb doctor` refuses is changed before that is asked.
    let first = steps[0]["run"].as_str().unwrap();
    for change in ["vm.unprivileged_userfaultfd=1", "swapoff -a"] {
        assert!(first.contains(change), "{change}: {first}");
    }
}
