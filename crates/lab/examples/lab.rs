//! Runs an experiment without the command: `lab NAME [--json] [--plot FILE]`.

use ebb_lab::Report;
use std::path::Path;
use std::process::ExitCode;

type Experiment = (&'static str, &'static str, fn() -> Report);

macro_rules! experiments {
    ($($name:ident)*) => {
        &[$((stringify!($name), ebb_lab::$name::ABOUT, || {
            ebb_lab::$name::run(&ebb_lab::$name::Options::default())
        })),*]
    };
}

const EXPERIMENTS: &[Experiment] = experiments!(mthp fill numa tail scaling vswap shrinker);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map(String::as_str);
    let Some((_, _, run)) = EXPERIMENTS.iter().find(|(name, ..)| Some(*name) == wanted) else {
        eprintln!("usage: lab NAME [--json] [--plot FILE], NAME one of");
        for (name, about, _) in EXPERIMENTS {
            eprintln!("  {name:9} {about}");
        }
        return ExitCode::FAILURE;
    };
    let report = run();
    if arguments.iter().any(|a| a == "--json") {
        print!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    if let Some(at) = arguments.iter().position(|a| a == "--plot") {
        let Some(file) = arguments.get(at + 1) else {
            eprintln!("--plot needs a file");
            return ExitCode::FAILURE;
        };
        if let Err(e) = report.draw(Path::new(file)) {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
