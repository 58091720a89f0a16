//! `ebb top` on recorded figures.

use super::sample::{Rates, Sample, read, record};
use super::state::{Order, State, Step};
use super::trees::{Choice, List, Tree, choices, command_line};
use super::*;
use ebb_tree::{CellShown, DeviceShown, FaultsShown, MemberShown, PoolShown, StatsShown};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
use std::collections::BTreeMap;

fn member(pid: u32, name: &str, used: u64, faults: u64, waited: u64) -> MemberShown {
    MemberShown {
        pid,
        name: name.into(),
        used_bytes: used << 20,
        pool_bytes: 3 << 20,
        faults: BTreeMap::from([("pool".into(), faults), ("zero".into(), 7)]),
        waited_ns: waited,
        some_ns: waited / 5 * 4,
        full_ns: waited / 5,
    }
}

/// A tree after so many seconds.
pub fn at(seconds: u64) -> Sample {
    let pool = FaultsShown {
        count: 100 * seconds,
        sum_ns: 500_000_000 * seconds,
        p50_ns: 4_000,
        p99_ns: 90_000,
        p999_ns: 1_500_000,
        max_ns: 20_000_000,
        counts: std::array::from_fn(|at| match at {
            2 => 98 * seconds,
            6 => seconds,
            14 => seconds,
            _ => 0,
        }),
    };
    let ns = |ms: u64| ms * 1_000_000 * seconds;
    let stats = StatsShown {
        version: "0".into(),
        budget_bytes: 256 << 20,
        used_bytes: 192 << 20,
        peak_bytes: 250 << 20,
        pool_bytes: 64 << 20,
        staging_bytes: 16 << 20,
        unmanaged_bytes: 32 << 20,
        past_budget_bytes: None,
        peak_had_bytes: 400 << 20,
        peak_pool_bytes: 80 << 20,
        paged: true,
        processes: 2,
        ran_ns: 0,
        some_ns: ns(400),
        full_ns: ns(100),
        counters: BTreeMap::from([("pswpout".into(), 256 * seconds)]),
        fault_latency: BTreeMap::from([("pool".into(), pool)]),
        devices: Vec::new(),
        maps: Vec::new(),
        more: Vec::new(),
        pool: PoolShown {
            data_bytes: 192 << 20,
            compressed_bytes: 60 << 20,
            total_bytes: 64 << 20,
        },
        members: vec![
            member(11, "idle", 90, 5, 0),
            member(12, "busy", 40, 100 * seconds, 500_000_000 * seconds),
        ],
    };
    Sample {
        seconds: seconds as f64,
        pid: 10,
        stats,
    }
}

fn state() -> State {
    state_in(false)
}

fn state_in(colour: bool) -> State {
    let mut state = State::new(colour);
    (0..5).for_each(|seconds| state.take(at(seconds)));
    state
}

/// A list of two trees, of which one does not answer.
fn list_in(colour: bool) -> List {
    let tree = |pid: u32, figures| Tree {
        pid,
        command: format!("ebb run job{pid}"),
        figures,
        paged: true,
    };
    let answers = tree(7, Some((30 << 20, 40 << 20, 2)));
    List::new(vec![answers, tree(9, None)], colour)
}

#[test]
fn a_tree_that_does_not_answer_is_told_of_as_long_as_that_lasts() {
    let mut state = State::new(false);
    state.silent = true;
    let first = picture(&state, 100, 30).unwrap();
    assert!(first.contains("is it stopped? q quits"), "{first}");
    state.take(at(1));
    let later = picture(&state, 100, 30).unwrap();
    assert!(later.contains("NO ANSWER: stopped?"), "{later}");
    state.silent = false;
    let again = picture(&state, 100, 30).unwrap();
    assert!(!again.contains("NO ANSWER"), "{again}");
}

#[test]
fn what_is_printed_names_no_keys_and_ends_with_its_last_process() {
    let mut state = state();
    assert!(picture(&state, 100, 40).unwrap().contains("q quit"));
    state.printed = true;
    let printed = picture(&state, 100, 40).unwrap();
    let last = printed.lines().last().unwrap();
    assert!(last.contains("      11"), "{printed}");
    assert!(!printed.contains("q quit"), "{printed}");
}

/// What this draws on a terminal of that size.
fn screen(width: u16, height: u16, draw: impl FnOnce(&mut Frame<'_>)) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(draw).unwrap();
    terminal.backend().clone()
}

#[test]
fn rates_are_changes_for_each_second() {
    let rates = Rates::of_tree(&at(2), &at(4));
    assert_eq!(rates.faults, [0.0, 0.0, 100.0, 0.0]);
    assert_eq!((rates.waiting, rates.written), (0.5, (1 << 20) as f64));
    let busy = Rates::of_member(&at(2), &at(4), 12);
    assert_eq!((busy.faults[2], busy.waiting), (100.0, 0.5));
    assert_eq!(Rates::of_member(&at(2), &at(4), 99), Rates::default());
    assert_eq!(Rates::of_tree(&at(2), &at(2)), Rates::default());
}

#[test]
fn everything_is_readable_at_80_by_24_without_colour() {
    let shown = picture(&state(), 80, 24).unwrap();
    for part in [
        "tree 10, 2 processes, it pages",
        "192M of 256M, 250M at most",
        "# resident 80M  + staging 16M  = pool 64M  - unmanaged 32M",
        "device  none",
        "pool    DATA 192M  COMPR 60M  TOTAL 64M  3.0 times",
        "waiting some 40%, full 10% of the time; 0.50 threads",
        "1us  32us 1ms  32ms 1s",
        "pool    100",
        "20.0 ms",
        "busy",
        "idle",
        "q quit  s sort: faults",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    // Sixteenths of the bar's 70 cells: 5 resident, 1 staging, 4 pool, 2 not managed, 4 free.
    let parts = [("#", 21), ("+", 5), ("=", 17), ("-", 9), (".", 18)];
    let bar: String = parts.map(|(part, cells)| part.repeat(cells)).concat();
    let bar = format!("[{bar}]");
    assert!(shown.contains(&bar), "{shown}");
    assert!(
        shown.find("busy") < shown.find("idle"),
        "most faults first\n{shown}"
    );
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
}

#[test]
fn colours_are_drawn_where_they_are_wanted_alone() {
    let coloured = |backend: TestBackend| {
        let cells = backend.buffer().content.iter();
        let coloured = cells.filter(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
        coloured.count()
    };
    for wanted in [true, false] {
        let mut state = state_in(wanted);
        let tree = coloured(screen(80, 24, |frame| view::draw(frame, &state)));
        state.key(KeyCode::Char('?'));
        let help = coloured(screen(80, 24, |frame| view::draw(frame, &state)));
        let list = coloured(screen(80, 24, |frame| list_in(wanted).draw(frame)));
        let drawn = (tree > 0, list > 0);
        assert_eq!(drawn, (wanted, wanted), "{tree} and {list} cells");
        assert!(wanted || help == 0, "{help} cells of the help");
    }
}

/// The line that begins so.
fn line<'a>(shown: &'a str, begins: &str) -> &'a str {
    let found = shown.lines().find(|line| line.starts_with(begins));
    found.unwrap_or_else(|| panic!("no {begins:?}:\n{shown}"))
}

#[test]
fn the_sparklines_have_one_scale_and_latencies_a_column_for_each_power_of_two() {
    let shown = picture(&state(), 80, 24).unwrap();
    let some: Vec<char> = line(&shown, "some    ").chars().skip(8).collect();
    let full: Vec<char> = line(&shown, "full    ").chars().skip(8).collect();
    // 40% and 10% of eight steps, in each of four seconds.
    assert_eq!((some, full), (vec!['▄'; 4], vec!['▁'; 4]), "{shown}");
    let pool = line(&shown, "pool    100")
        .chars()
        .skip(52)
        .collect::<String>();
    // 392 and 4 faults: 8 and 3 of 8 steps, by logarithms.
    assert_eq!(pool, "  █   ▃       ▃", "{shown}");
}

#[test]
fn a_map_tells_free_partly_used_and_full_clusters_and_the_chosen_process() {
    let cell = |leased: u32, slots: u64, pids: &[u32]| CellShown {
        clusters: 2,
        leased,
        slots,
        pids: pids.to_vec(),
    };
    let mut sample = at(0);
    sample.stats.devices = vec![serde_json::from_value::<DeviceShown>(serde_json::json!({
        "device": 1, "path": "/swap", "size_bytes": 28 << 20, "used_bytes": 7 << 20, "held_bytes": 14 << 20,
        "priority": null, "node": null, "rotational": false, "discard": false, "state": "on",
        "write_errors": 0, "processes": 2, "given_up_by": 0,
    })).unwrap()];
    sample.stats.maps = vec![vec![
        cell(0, 0, &[]),
        cell(1, 0, &[11]),
        cell(1, 5, &[11]),
        cell(2, 1024, &[11]),
        cell(1, 0, &[12]),
        cell(2, 700, &[11, 12]),
        cell(2, 1000, &[12]),
    ]];
    let mut state = State::new(false);
    state.take(sample);
    assert_eq!(state.chosen_pid(), Some(11));
    let shown = picture(&state, 80, 24).unwrap();
    assert_eq!(line(&shown, "map"), "map     [.-+#.+|]", "{shown}");
    state.key(KeyCode::Down);
    let shown = picture(&state, 80, 24).unwrap();
    assert_eq!(line(&shown, "map"), "map     [..:|-+#]", "{shown}");
}

#[test]
fn a_tree_is_chosen_from_the_list() {
    let mut list = list_in(false);
    let drawn = |list: &List| text_of(&screen(80, 24, |frame| list.draw(frame)));
    let shown = drawn(&list);
    for part in [
        "2 trees",
        ">       7 30M of 40M",
        "it pages",
        "job7",
        "it does not answer",
        "Enter",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    assert_eq!(list.key(KeyCode::Enter), Choice::Tree(7));
    list.key(KeyCode::Down);
    list.key(KeyCode::Down);
    assert_eq!(list.key(KeyCode::Enter), Choice::Tree(9));
    // The chosen tree stays chosen while others come and go.
    let tree = |pid: u32| Tree {
        pid,
        command: String::new(),
        figures: None,
        paged: false,
    };
    list.update(vec![tree(5), tree(7), tree(9)]);
    assert_eq!(list.key(KeyCode::Enter), Choice::Tree(9));
    list.update(vec![tree(5)]);
    assert_eq!(list.key(KeyCode::Enter), Choice::Tree(5));
    list.key(KeyCode::Char('?'));
    assert!(drawn(&list).contains("some     share of time"));
    assert_eq!(list.key(KeyCode::Esc), Choice::Open, "it closes the help");
    list.update(Vec::new());
    assert!(drawn(&list).contains("no `ebb run` of yours"));
    assert_eq!(list.key(KeyCode::Enter), Choice::Open);
    assert_eq!(list.key(KeyCode::Char('q')), Choice::Quit);
}

/// Another user chose the command line that root reads.
#[test]
fn a_command_line_is_no_command_to_the_terminal() {
    let long = "é".repeat(70);
    let words = format!("ebb\0run\0\x1b]0;mine\x07\nebb: all is well\r\u{9b}2J\0{long}\0");
    let command = command_line(words.as_bytes());
    let harmless = "ebb run ?]0;mine??ebb: all is well??2J ";
    assert_eq!(command, format!("{harmless}{long}"));
    assert_eq!(command_line(b"\xff\0\0"), "\u{fffd}");
    let tree = |pid, command| Tree {
        pid,
        command,
        figures: None,
        paged: false,
    };
    let message = choices(&[tree(7, command), tree(8, "ebb run true".into())]);
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), 3, "{message}");
    let cut = format!("{harmless}{}...", "é".repeat(60 - harmless.len()));
    assert!(lines[1].ends_with(&format!(" {cut}")), "{message}");
    assert!(lines[2].ends_with(" ebb run true"), "{message}");
}

/// A recording of an older version has fewer figures.
#[test]
fn figures_that_a_recording_lacks_are_none() {
    let mut old = serde_json::to_value(at(1)).unwrap();
    for name in ["maps", "pool", "staging_bytes", "unmanaged_bytes"] {
        old["stats"].as_object_mut().unwrap().remove(name).unwrap();
    }
    let latency = old["stats"]["fault_latency"]["pool"].as_object_mut();
    latency.unwrap().remove("counts").unwrap();
    let old: Sample = serde_json::from_value(old).unwrap();
    assert_eq!(old.stats.pool, PoolShown::default());
}

#[test]
fn another_tree_has_no_rates_with_the_one_before() {
    let mut state = state();
    let other = |seconds| Sample {
        pid: 4711,
        ..at(seconds)
    };
    state.take(other(9));
    assert_eq!(state.rates(), Rates::default());
    assert!(state.pressure().0.is_empty());
    state.take(other(10));
    assert_ne!(state.rates(), Rates::default());
}

#[test]
fn keys() {
    let mut state = state();
    assert_eq!(state.key(KeyCode::Char('s')), Step::On);
    assert_eq!(state.order, Order::Memory);
    let shown = picture(&state, 80, 24).unwrap();
    assert!(shown.find("idle") < shown.find("busy"), "{shown}");
    assert!(shown.contains(">      11"), "{shown}");
    state.key(KeyCode::Down);
    state.key(KeyCode::Down);
    assert!(picture(&state, 80, 24).unwrap().contains(">      12"));
    state.key(KeyCode::Char('p'));
    state.take(at(9));
    assert_eq!(state.now().unwrap().seconds, 4.0);
    assert!(picture(&state, 80, 24).unwrap().contains("PAUSED"));
    state.key(KeyCode::Char('?'));
    let shown = picture(&state, 80, 24).unwrap();
    for word in crate::words_of_top::WORDS
        .lines()
        .chain(crate::words_of_top::KEYS.lines())
    {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
    assert_eq!(state.key(KeyCode::Esc), Step::On, "it closes the help");
    assert_eq!(state.key(KeyCode::Char('t')), Step::Trees);
    assert_eq!(state.key(KeyCode::Char('q')), Step::Quit);
}

#[test]
fn a_terminal_that_is_too_small_says_so() {
    let (state, list) = (state(), list_in(false));
    // The first letter is all that fits on the last.
    for (width, height, says) in [
        (30, 24, "make the terminal larger"),
        (80, 10, "make the terminal larger: 78x22"),
        (77, 22, "`ebb"),
        (1, 1, "m\n"),
    ] {
        let tree = picture(&state, width, height).unwrap();
        let list = text_of(&screen(width, height, |frame| list.draw(frame)));
        for shown in [tree, list] {
            assert!(shown.contains(says), "{shown}");
            assert!(
                !shown.contains("job7") && !shown.contains("busy"),
                "{shown}"
            );
        }
    }
    let drawn = text_of(&screen(78, 22, |frame| list.draw(frame)));
    assert!(drawn.contains("job7"), "{drawn}");
    let drawn = picture(&state, 78, 22).unwrap();
    assert!(drawn.contains("busy"), "{drawn}");
}

#[test]
fn recordings_are_read_as_written_and_damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut bytes = Vec::new();
    (0..3).for_each(|seconds| record(&mut bytes, &at(seconds)).unwrap());
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path).unwrap(), [at(0), at(1), at(2)]);
    for (damaged, says) in [
        (bytes[..bytes.len() - 9].to_vec(), "damaged in line 3"),
        ([&bytes[..], b"\xff\xfe\n"].concat(), "damaged in line 4"),
        (
            [&bytes[..], &bytes[..]].concat(),
            "older than the line before",
        ),
        (Vec::new(), "holds nothing"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
    let error = format!("{:#}", read(&dir.path().join("none")).unwrap_err());
    assert!(error.contains("--record"), "{error}");
}
