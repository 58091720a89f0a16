//! The one definition of the command line: parser, help and examples.

use clap::{Args, Parser, Subcommand, ValueEnum};
use ebb_engine::slots::DeviceChoice;
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ebb run --memory 2G -- python3 train.py      2 GiB for the script and all it starts
  ebb run -- make -j8                          what this cgroup or machine has free
  ebb run --memory 50% --swap none -- sort big.txt
                                               half the memory, compressed in RAM only
  ebb run --memory 1G --swap /mnt/nvme:20G,prio=10 --swap /data:100G -- ./solver
                                               two swap files, the first one preferred
  ebb swap on /mnt/nvme:20G 4711               one more swap file for a program that runs
  ebb limit 4711 --memory 1G                   another budget for a program that runs
  ebb doctor                                   does it work on this machine?

Exit status of `ebb run`: that of COMMAND; 125 if ebb failed, 126 if COMMAND cannot be
executed, 127 if it was not found, 128+N if signal N ended it. ebb ends by the same signal,
except that SIGKILL gives status 137.

Defaults of --memory, --swap and --pool: the variables EBB_MEMORY, EBB_SWAP (SPECs with \";\"
between them) and EBB_POOL, then ~/.config/ebb.toml:
  memory = \"2G\"
  swap = [\"/mnt/nvme:20G\", \"/data:100G\"]
  pool = \"lz4+zstd\"";

const COMPLETIONS: &str = "\
Where shells look for completions:
  ebb generate bash > ~/.local/share/bash-completion/completions/ebb
  ebb generate zsh  > DIRECTORY/_ebb           a directory of $fpath
  ebb generate fish > ~/.config/fish/completions/ebb.fish
  ebb generate man ~/.local/share/man/man1";

const SIZES: &str = "\
Examples:
  ebb size -- python3 train.py       runs it in half of what it has, and prints a table at its end
  ebb size -m 1G -- ./solver         runs it in 1 GiB: the table begins there, or where all fits
  ebb size 4711                      a program that runs under `ebb run`, as far as it has come

A row is a budget for `ebb run --memory`, and the time that the program would take with it. The
first row was measured. The others follow from pages that came back, how much memory would have
kept them, and how long threads waited for them; FROM and TO bound them. They hold for this
machine, and for a program that does the same again, and less well where the budget changed.";

/// Runs programs in less memory than they need.
///
/// Cold pages ebb out of RAM into a compressed pool and from there to a swap file, and come
/// back when they are touched. No kernel patch, no kernel swap, no change to the program.
#[derive(Parser)]
#[command(name = "ebb", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Run a program, and all it starts, within a memory budget
    #[command(after_help = EXAMPLES)]
    Run(RunArgs),
    /// Add, remove or list swap devices of a program that runs
    Swap(SwapArgs),
    /// Show or change the limits of a program that runs
    Limit(LimitArgs),
    /// Watch the programs that run under `ebb run`
    #[command(after_help = crate::words_of_top::WORDS)]
    Top(TopArgs),
    /// Show what a program that runs uses, its faults, and how long it waited for them
    Stats(StatsArgs),
    /// Say how much memory a program needs, and how long it would take with less
    #[command(after_help = SIZES)]
    Size(SizeArgs),
    /// Print one of the engine's experiments as a table (the program `ebb-lab`)
    #[command(disable_help_flag = true)]
    Lab(LabArgs),
    /// Say what this machine allows, and the fix for what it does not
    Doctor(DoctorArgs),
    /// Write man pages, or the completions of a shell
    #[command(after_help = COMPLETIONS)]
    Generate(GenerateArgs),
    /// Started by `ebb run`, with a socket as its standard input
    #[command(hide = true)]
    Guard,
    /// Started by `ebb size`, to learn what a wait costs
    #[command(hide = true)]
    TouchPages,
    /// Started by `ebb run --wrap`, with a pipe as its standard input
    #[command(hide = true)]
    EndGroup,
}

/// Options of `ebb run`.
#[derive(Args)]
pub struct RunArgs {
    /// Memory for the whole process tree: 512M, 2G, 1.5G, or 50% of what is there
    ///
    /// It covers everything in RAM: the programs' resident memory, the compressed pool and
    /// ebb's own bookkeeping. Default: what the memory cgroup allows and does not use yet, or
    /// the machine's available memory where there is no limit, less a margin; under another `ebb run`
    /// no more than that has left.
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,

    /// Where cold pages go: PATH[:SIZE][,prio=N][,node=N][,discard=on|off][,rotational=on|off][,overwrite=yes], or "none"
    ///
    /// May be given several times. PATH is a directory (a private file is made there and
    /// vanishes at the end), an existing file, or a block device. These must carry a swap header or
    /// be empty, and get a header then; overwrite=yes says that what they hold may go. The higher prio
    /// is used first, equal ones in turn. "none" keeps everything in RAM, compressed. Default: one
    /// private file in $TMPDIR or /var/tmp, taking space only as it is needed. Pages are
    /// encrypted with a key that exists only in memory.
    #[arg(long, short = 's', value_name = "SPEC")]
    pub swap: Vec<String>,

    /// Which of several swap devices is tried first
    ///
    /// A prio in SPEC goes before it.
    #[arg(long, value_name = "POLICY", default_value = "per-node")]
    pub device_choice: DeviceOrder,

    /// Compression of the pool in RAM: lz4, zstd, lz4+zstd, none
    ///
    /// lz4 is fast, zstd holds more. lz4+zstd compresses with lz4 at first, and idle pages again
    /// with zstd in the background. Two words may follow zstd: +dict (a dictionary trained on the
    /// program's own pages), and :LEVEL, -7 (fastest) to 19 (densest), 1 by default. Examples:
    /// zstd:3, lz4+zstd+dict:-1. Default: lz4.
    #[arg(long, value_name = "CODEC")]
    pub pool: Option<String>,

    #[command(flatten)]
    pub limits: PoolLimits,

    /// Write counters and fault latencies to FILE as JSON when the program ends, and again when processes that it has
    /// left behind end
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Answer scrapers of Prometheus here while the program runs: 127.0.0.1:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,

    /// Say at the end what the program had, where it was kept, and how long it waited: one to three lines
    ///
    /// on if it is left out, standard error is a terminal, and something was paged.
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub summary: Option<Switch>,

    /// Run COMMAND with the shell when a program of the tree is ended for memory
    ///
    /// EBB_PID names `ebb run` to it, and EBB_MESSAGE is what was said on standard error. The program that
    /// was ended is gone then. ebb itself waits for COMMAND before it ends, for up to 10 s: so long
    /// `ebb stats $EBB_PID` answers.
    #[arg(long, value_name = "COMMAND")]
    pub on_exhausted: Option<OsString>,

    /// Refuse programs whose memory cannot be managed (static, setuid)
    ///
    /// Such a COMMAND is not started, with exit status 125. Down the tree an exec of one fails with
    /// EACCES, and a line says so. Without the option they run with a warning, their own memory
    /// untouched.
    #[arg(long)]
    pub require_managed: bool,

    /// For a COMMAND that another program starts, signals and ends: a Jupyter kernel, a worker
    ///
    /// COMMAND gets a process group of its own. A signal comes to it, and to its group, exactly once, whether
    /// it was sent to ebb or to ebb's group. Without the option a signal to the group comes twice, once from
    /// the sender and once from ebb. If ebb is killed, COMMAND and its group are killed; if the program that
    /// started ebb ends, they get SIGTERM, and SIGKILL 5 s later. JPY_PARENT_PID names ebb to COMMAND, if it
    /// names ebb's own parent. Not for programs that read a terminal: they are no longer in its foreground.
    #[arg(long)]
    pub wrap: bool,

    /// Page from the first instant instead of when the budget is near
    ///
    /// Slower; shows what paging does to a program that would fit.
    #[arg(long, hide_short_help = true)]
    pub eager: bool,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// A command with all options left out, and without a word at its end.
    pub fn of(command: Vec<OsString>) -> Self {
        Self {
            memory: None,
            swap: Vec::new(),
            device_choice: DeviceOrder::PerNode,
            pool: None,
            limits: PoolLimits {
                max: None,
                accept: None,
                writeback: None,
            },
            stats: None,
            metrics: None,
            summary: Some(Switch::Off),
            on_exhausted: None,
            require_managed: false,
            wrap: false,
            eager: false,
            command,
        }
    }
}

/// Which of several devices without a priority is tried first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DeviceOrder {
    /// On each memory node its own devices, then the others in the order given
    PerNode,
    /// In the order given, the same on every node
    Activation,
    /// All in turn
    EqualTurns,
}

impl From<DeviceOrder> for DeviceChoice {
    fn from(order: DeviceOrder) -> Self {
        match order {
            DeviceOrder::PerNode => Self::PerNode,
            DeviceOrder::Activation => Self::Activation,
            DeviceOrder::EqualTurns => Self::EqualTurns,
        }
    }
}

/// Limits of the pool, for `ebb run` and `ebb limit`.
#[derive(Args)]
pub struct PoolLimits {
    /// The most memory that compressed pages may hold: 256M, or 30% of the budget, or "none"
    ///
    /// It bounds the pools of all processes together; each may have a mebibyte in any case. Beyond
    /// it the coldest pages go to devices. Without it the pool takes the share that proves best, and
    /// the whole budget if there are no devices.
    #[arg(long = "pool-max", value_name = "SIZE")]
    pub max: Option<String>,

    /// Background writeback starts one percent above this fill of the pool's limit, and stops at
    /// it: 1 to 99
    ///
    /// 90 if it is left out.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub accept: Option<u8>,

    /// Whether pages may go to devices; on if it is left out
    ///
    /// Pages that are on devices already stay there until they are used.
    #[arg(long, value_name = "on|off")]
    pub writeback: Option<Switch>,
}

impl PoolLimits {
    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.max.is_none() && self.accept.is_none() && self.writeback.is_none()
    }
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl From<Switch> for bool {
    fn from(switch: Switch) -> Self {
        switch == Switch::On
    }
}

/// Options of `ebb limit`.
#[derive(Args)]
pub struct LimitArgs {
    /// The `ebb run`, or any process under it
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: u32,

    /// Memory for the whole process tree from now on, as for `ebb run --memory`
    ///
    /// A smaller one is reached by swapping out, as far as there is room to swap to. If that is not
    /// enough it says so and the budget stays; so it does if this command is interrupted.
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,

    #[command(flatten)]
    pub pool: PoolLimits,

    /// Limit process PID alone, and what it starts from now on, instead of the whole tree
    ///
    /// For --pool-max and --writeback; where tree and process have a limit, the tighter one holds.
    #[arg(long)]
    pub only: bool,

    /// A JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,
}

/// Options of `ebb stats`.
#[derive(Args)]
pub struct StatsArgs {
    /// The `ebb run`, or any process under it
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: u32,

    /// A JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,

    /// OpenMetrics on stdout instead of text, for Prometheus
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,

    /// Again after this time, until the program ends: 1s, 500ms, 5m
    #[arg(long, value_name = "TIME")]
    pub watch: Option<String>,
}

/// Options of `ebb size`.
#[derive(Args)]
pub struct SizeArgs {
    /// The `ebb run`, or any process under it
    #[arg(value_name = "PID", value_parser = process_to_size)]
    pub pid: Option<u32>,

    /// Run COMMAND in this, as for `ebb run --memory`; half of what it turns out to have if it is left out
    #[arg(long, short = 'm', value_name = "SIZE", conflicts_with = "pid")]
    pub memory: Option<String>,

    /// As for `ebb run`
    #[arg(long, short = 's', value_name = "SPEC", conflicts_with = "pid")]
    pub swap: Vec<String>,

    /// As for `ebb run`
    #[arg(long, value_name = "CODEC", conflicts_with = "pid")]
    pub pool: Option<String>,

    /// Count touched memory within 1, 10 and 60 times this
    ///
    /// 1s if it is left out.
    #[arg(long, value_name = "TIME")]
    pub interval: Option<String>,

    /// A JSON object instead of text; for a PID it comes at the end, after 60 times the interval
    #[arg(long)]
    pub json: bool,

    /// Write the report to FILE; without it to stderr for a COMMAND, whose stdout it is, and to stdout for a PID
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Draw time against budget into FILE too, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        value_name = "COMMAND",
        last = true,
        conflicts_with = "pid",
        required_unless_present = "pid"
    )]
    pub command: Vec<OsString>,
}

/// A process of a tree.
fn process(text: &str) -> Result<u32, String> {
    let none = |_| {
        format!(
            "\"{text}\" is no process number: give that of an `ebb run`, or of any process under it; `ebb top` finds \
             those that run"
        )
    };
    text.parse().map_err(none)
}

/// A threshold of the pool.
fn percent(text: &str) -> Result<u8, String> {
    let none = |_| format!("\"{text}\" is no percentage: give 1 to 99, without a unit");
    text.parse().map_err(none)
}

/// The process that `ebb size` is to look at: many write a command there.
fn process_to_size(text: &str) -> Result<u32, String> {
    let none =
        || format!("\"{text}\" is no process number: to run a command write `ebb size -- {text}`");
    text.parse().map_err(|_| none())
}

/// Options of `ebb top`.
#[derive(Args)]
pub struct TopArgs {
    /// The `ebb run`, or any process under it; if it is left out, the only one of yours, or a list to choose from
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: Option<u32>,

    /// Print it once as text
    #[arg(long)]
    pub once: bool,

    /// Print it once as a JSON object, as it is recorded
    #[arg(long)]
    pub json: bool,

    /// Write what is shown to FILE too
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,

    /// Show what --record has written
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub replay: Option<PathBuf>,
}

/// Options of `ebb swap`.
#[derive(Args)]
pub struct SwapArgs {
    /// The verb.
    #[command(subcommand)]
    pub verb: SwapVerb,
}

/// PID is that of an `ebb run`, or of any process under it.
#[derive(Subcommand)]
pub enum SwapVerb {
    /// Swap to another device too
    On {
        /// PATH[:SIZE][,prio=N][,node=N][,discard=on|off][,rotational=on|off][,overwrite=yes], as for `ebb run --swap`
        #[arg(value_name = "SPEC")]
        spec: String,
        /// The `ebb run`, or any process under it
        #[arg(value_name = "PID", value_parser = process)]
        pid: u32,
    },
    /// Move all pages away from a device, then let go of it
    ///
    /// A private file is gone then. If the other devices have too little room it says how much
    /// is missing, and the device stays in use; so it does if this command is interrupted.
    Off {
        /// The device as it was given, or its number as `ebb swap show` prints it
        #[arg(value_name = "PATH")]
        device: String,
        /// The `ebb run`, or any process under it
        #[arg(value_name = "PID", value_parser = process)]
        pid: u32,
    },
    /// List the devices and what is on them
    Show {
        /// The `ebb run`, or any process under it
        #[arg(value_name = "PID", value_parser = process)]
        pid: u32,
        /// A JSON array on stdout instead of the table
        #[arg(long)]
        json: bool,
    },
}

/// What follows `ebb lab`: the arguments of `ebb-lab`.
#[derive(Args)]
pub struct LabArgs {
    /// An experiment and its options; without them, the list of experiments
    #[arg(value_name = "NAME", num_args = 0.., allow_hyphen_values = true, trailing_var_arg = true)]
    pub words: Vec<OsString>,
}

/// Options of `ebb doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// One JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,
}

/// Options of `ebb generate`.
#[derive(Args)]
pub struct GenerateArgs {
    /// Man pages, or completions of this shell on stdout
    #[arg(value_name = "WHAT")]
    pub what: Generated,
    /// Where man pages go: this directory, or the current one
    #[arg(value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
}

/// Things that can be generated.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// Man pages.
    Man,
    /// Completions for bash.
    Bash,
    /// Completions for zsh.
    Zsh,
    /// Completions for fish.
    Fish,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_after_the_command_belong_to_it() {
        let cli = Cli::try_parse_from(["ebb", "run", "-m", "1G", "ls", "--memory", "x"]).unwrap();
        let Verb::Run(args) = cli.verb else { panic!() };
        assert_eq!(args.memory.as_deref(), Some("1G"));
        assert_eq!(args.command, ["ls", "--memory", "x"]);
    }
}
