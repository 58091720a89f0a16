//! Runs simulations: see the library.

#[cfg(not(debug_assertions))]
fn main() {
    eprintln!("ebb-sim needs a build with debug assertions: cargo xtask simulate");
    std::process::exit(2);
}

#[cfg(debug_assertions)]
fn main() -> std::process::ExitCode {
    debug::main()
}

#[cfg(debug_assertions)]
mod debug {
    use clap::Parser;
    use ebb_sim::campaign::{Narrowed, Report, narrow, run_once};
    use ebb_sim::host::Processor;
    use ebb_sim::plan::Plan;
    use ebb_sim::world::Shared;
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    /// Simulate pager and engine: programs, devices and the system, as a seed decides
    #[derive(Parser)]
    struct Options {
        /// Run this seed alone, twice, and compare
        #[arg(long)]
        seed: Option<u64>,
        /// The first of many seeds
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Run so many seconds of a processor
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Random subsets of what may go wrong and of what programs do
        #[arg(long)]
        swarm: bool,
        /// Print every event of the seed
        #[arg(long, requires = "seed")]
        trace: bool,
        /// Do not narrow a failure down
        #[arg(long)]
        quick: bool,
        /// Decisions of chance that may be out of the ordinary, as a failure prints them
        #[arg(long, value_names = ["FROM", "TO"], num_args = 2)]
        window: Option<Vec<u64>>,
        /// Operations of the program, as a failure prints them
        #[arg(long)]
        operations: Option<u64>,
    }

    pub fn main() -> ExitCode {
        let options = Options::parse();
        let shared: &'static Shared = Box::leak(Box::new(Shared::new()));
        match options.seed {
            Some(seed) => one(shared, &options, seed),
            None => many(shared, &options),
        }
    }

    fn whole(plan: &Plan, options: &Options) -> Narrowed {
        let window = options
            .window
            .as_ref()
            .map_or((0, u64::MAX), |w| (w[0], w[1]));
        Narrowed {
            window,
            operations: options.operations.unwrap_or(plan.operations),
        }
    }

    /// Runs a seed twice; both are to be the same.
    fn one(shared: &'static Shared, options: &Options, seed: u64) -> ExitCode {
        let plan = Plan::of(seed, options.swarm);
        eprintln!("{plan:?}");
        let narrowed = whole(&plan, options);
        let trace = options.trace.then_some(1);
        let first = run_once(shared, &plan, &narrowed, trace);
        let second = run_once(shared, &plan, &narrowed, None);
        if first.hash != second.hash {
            println!("two runs of seed {seed} differ: that is a defect of the simulator");
            return ExitCode::FAILURE;
        }
        match &first.failure {
            None => {
                println!(
                    "seed {seed}: good, {} faults, {} steps, {:.4} s of a processor, trace {:016x}",
                    first.faults, first.steps, first.seconds, first.hash
                );
                ExitCode::SUCCESS
            }
            Some(_) => {
                failed(shared, options, &plan, &first);
                ExitCode::FAILURE
            }
        }
    }

    fn failed(shared: &'static Shared, options: &Options, plan: &Plan, report: &Report) {
        let why = report.failure.as_deref().unwrap_or_default();
        println!("seed {} fails: {why}", plan.seed);
        if options.quick {
            println!("{}", report.events);
            return;
        }
        let (best, last) = narrow(shared, plan, report);
        println!(
            "narrowed down to {} operations, and chance in {}..{}: {}\n{}",
            best.operations,
            best.window.0,
            best.window.1,
            last.failure.as_deref().unwrap_or_default(),
            last.events
        );
        let swarm = if options.swarm { " --swarm" } else { "" };
        println!(
            "again: cargo xtask simulate --seed {}{swarm} --operations {} --window {} {}",
            plan.seed, best.operations, best.window.0, best.window.1
        );
    }

    fn many(shared: &'static Shared, options: &Options) -> ExitCode {
        let mut processor = Processor::here();
        let (mut faults, mut runs, mut steps, mut seconds) = (0, 0u64, 0, 0.0);
        let mut seed = options.from;
        while seconds < options.seconds as f64 {
            let plan = Plan::of(seed, options.swarm);
            let start = Instant::now();
            let report = run_once(shared, &plan, &whole(&plan, options), None);
            let time = Duration::from_secs_f64(report.seconds);
            processor.leave_if_shared(time, start.elapsed());
            (faults, runs, steps) = (faults + report.faults, runs + 1, steps + report.steps);
            seconds += report.seconds;
            if report.failure.is_some() {
                println!("{runs} runs, {seconds:.0} s of a processor");
                failed(shared, options, &plan, &report);
                return ExitCode::FAILURE;
            }
            seed += 1;
        }
        println!(
            "{runs} runs are good: {faults} faults and {steps} steps in {seconds:.1} s of a processor, {:.0} faults a second",
            faults as f64 / seconds
        );
        ExitCode::SUCCESS
    }
}
