//! Invariants that hold whatever the members do.

use crate::support::{Tree, descendants, kill, mib};
use crate::{Scenario, admission, helped, rights};
use ebb_engine::random::Random;
use ebb_sys::userfaultfd::Userfaultfd;
use ebb_tree::{MAX_DEVICES, Mode, Reply, Request, Way};
use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const S: fn(u64) -> Duration = Duration::from_secs;

pub const ALL: &[Scenario] = &[
    ("a_member_joins_charges_and_leaves", 20, joins_and_leaves),
    ("a_killed_member_leaves_nothing", 20, killed),
    ("no_pool_is_shown_larger_than_its_process", 20, old_report),
    ("exec_takes_everything_back_from_a_living_pid", 20, exec),
    ("who_may_not_join_is_told_why", 20, refused),
    ("out_of_descriptors_is_a_refusal", 20, no_descriptors),
    (
        "a_device_that_hangs_holds_nobody_but_who_asked_for_it",
        40,
        crate::opening::hangs,
    ),
    (
        "a_device_that_was_asked_for_is_taken_back",
        30,
        crate::opening::taken_back,
    ),
    (
        "processes_that_cannot_be_looked_at_are_there",
        20,
        crate::life::unseen,
    ),
    (
        "processes_that_end_while_they_are_looked_for_leave_children",
        20,
        crate::life::relay,
    ),
    (
        "unmanaged_memory_lowers_the_limit_and_starts_paging",
        30,
        unmanaged,
    ),
    ("a_fast_filler_is_seen_in_time", 30, fast_filler),
    (
        "room_wakes_waiters_and_requests_find_the_coldest",
        30,
        waiters,
    ),
    (
        "too_much_charged_is_asked_back_in_proportion",
        30,
        proportion,
    ),
    ("credit_follows_what_is_really_shared", 30, credit),
    ("credit_ends_with_the_last_relative", 30, last_relative),
    ("what_forked_processes_share_counts_once", 30, overlap),
    ("an_orphan_keeps_its_inheritance", 30, orphan),
    ("a_reservation_without_a_child_is_given_up", 30, childless),
    (
        "a_child_that_died_before_anyone_named_it_leaves_nothing",
        30,
        nameless,
    ),
    ("slots_of_failed_forks_come_back", 60, in_vain),
    ("an_orphan_that_execs_is_no_reader", 30, orphan_execs),
    ("a_child_out_of_reach_is_known_by_its_parent", 30, || {
        unreached("parent lives")
    }),
    ("and_when_that_has_ended", 30, || unreached("parent ends")),
    ("members_outlive_the_supervisor", 30, outlive),
    ("members_reap_the_dead_of_one_namespace", 20, reap),
    (
        "nobody_is_taken_for_dead_by_a_number_of_another_namespace",
        20,
        apart,
    ),
    ("no_member_holds_the_supervisor_up", 30, held_up),
    ("run_returns_the_status_and_reaps_orphans", 30, run),
    ("a_failing_device_is_told_of_once_a_stage", 30, failing),
    (
        "a_device_is_left_only_if_there_is_room_for_everybody",
        30,
        leaving,
    ),
    ("a_device_too_many_is_left_as_it_was", 30, device_too_many),
    ("one_process_too_many_is_told_of_once", 60, crowded),
    (
        "a_helper_is_its_program_and_counts_once",
        30,
        helped::is_its_program,
    ),
    (
        "a_helper_whose_program_ends_early_is_no_program",
        30,
        helped::is_no_program_that_cannot_be_managed,
    ),
    (
        "a_helper_ends_with_its_program",
        30,
        helped::ends_with_its_program,
    ),
    (
        "a_helper_that_dies_takes_its_program_along",
        30,
        helped::takes_its_program_along,
    ),
    (
        "after_a_goodbye_a_program_lives_on",
        30,
        helped::says_goodbye,
    ),
    (
        "exec_ends_the_helper_before_anything_is_released",
        30,
        helped::notices_exec,
    ),
    (
        "a_forked_child_has_a_helper_of_its_own",
        30,
        helped::serves_a_child,
    ),
    (
        "a_helper_shows_that_it_shares_the_memory",
        30,
        helped::does_not_lie,
    ),
    (
        "only_descendants_join_and_others_may_ask",
        60,
        admission::only_descendants_join,
    ),
    (
        "another_users_connections_take_no_place",
        60,
        admission::others_take_no_place,
    ),
    (
        "who_took_the_name_is_not_believed",
        30,
        admission::squatters_are_not_believed,
    ),
    (
        "rights_of_a_program_give_nothing_to_who_connected_before",
        60,
        rights::give_nothing_to_who_connected,
    ),
    ("a_supervisor_that_is_late_is_waited_for", 60, late),
    ("storm_of_forks_and_kills", 120, storm),
];

fn tell(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

/// As a job that is stopped for a while.
fn late() {
    let mut tree = Tree::new(mib(512), 10);
    let mut member = tree.start(&["charge", "100"]);
    // Longer than a member waits at a time.
    std::thread::sleep(S(5));
    assert!(member.try_wait().unwrap().is_none(), "it gave up");
    tree.expect("charged");
    member.kill().unwrap();
    member.wait().unwrap();
    tree.expect_empty();
}

fn failing() {
    let mut tree = Tree::new(mib(512), 10);
    let mut member = tree.start(&["erring"]);
    tree.expect("counts the errors");
    tell(&mut member);
    tree.expect("empties this one");
    let shown = tree.sup.devices().remove(0);
    assert_eq!((shown.write_errors, shown.given_up_by), (16, 1));
    tell(&mut member);
    tree.expect_empty();
    // Errors that a process met before it ended still count, and no warning comes twice.
    let shown = tree.sup.devices().remove(0);
    assert_eq!((shown.write_errors, shown.given_up_by), (16, 0));
    tree.run_for(Duration::from_millis(200));
    assert_eq!(tree.notices.lock().unwrap().len(), 2);
}

fn leaving() {
    let mut tree = Tree::new(mib(512), 10);
    let mut members = [(); 2].map(|()| tree.start(&["leaver", "600"]));
    let used = |tree: &Tree| tree.sup.devices()[0].used_bytes >> 12;
    assert!(tree.until(S(10), |tree| used(tree) == 1200));
    let done = |reply| matches!(reply, Reply::Done(_));
    assert!(done(tree.ask(Request::On("3".into()))));
    // Two clusters for each of them, and there are three.
    let reply = tree.ask(Request::Off("1".into()));
    let Reply::Failed(why) = reply else {
        panic!("{reply:?}")
    };
    assert!(why.contains("lack room for 512 pages (2 MiB)"), "{why}");
    assert!(!why.contains("elsewhere"), "{why}");
    tree.run_for(Duration::from_millis(200));
    let told = tree.notices.lock().unwrap().clone();
    assert_eq!(told, Vec::<String>::new(), "nobody was to leave");
    assert_eq!(tree.sup.devices()[0].state, "on");
    // For one of them there is room.
    members[0].kill().unwrap();
    members[0].wait().unwrap();
    assert!(tree.until(S(10), |tree| used(tree) == 600));
    assert!(done(tree.ask(Request::Off("1".into()))));
    tree.expect("leaves");
    assert_eq!(tree.sup.devices().len(), 1);
    members[1].kill().unwrap();
    members[1].wait().unwrap();
}

/// It holds data that the user gave up, but for a tree that uses it.
fn device_too_many() {
    let mut tree = Tree::new(mib(512), 10);
    for _ in 1..MAX_DEVICES {
        assert!(matches!(tree.ask(Request::On("3".into())), Reply::Done(_)));
    }
    let path = std::env::temp_dir().join(format!("ebb-too-many-{}", std::process::id()));
    let mut data = b"precious".to_vec();
    data.resize(8 << 20, 0);
    std::fs::write(&path, &data).unwrap();
    let spec = format!("{},overwrite=yes", path.display());
    let reply = tree.ask(Request::On(spec.clone()));
    let held = std::fs::read(&path).unwrap();
    assert!(matches!(tree.ask(Request::Off("2".into())), Reply::Done(_)));
    let later = tree.ask(Request::On(spec));
    let used = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let Reply::Failed(why) = reply else {
        panic!("{reply:?}")
    };
    assert!(why.contains("at most 8 can be in use"), "{why}");
    assert!(held == data, "a device that was refused was written to");
    assert!(matches!(later, Reply::Done(_)), "{later:?}");
    assert!(used.starts_with(&[0; 8]), "a device in use is marked");
}

fn crowded() {
    const MANY: usize = 512;
    let mut tree = Tree::new(mib(4096), 3);
    let mut crowd = tree.start(&["crowd", &(MANY - 1).to_string()]);
    let all_in = tree.until(S(40), |tree| {
        let notices = tree.notices.lock().unwrap();
        notices.iter().filter(|n| n.ends_with("joined")).count() == MANY
    });
    assert!(all_in, "{} of {MANY} joined", tree.sup.members());
    // They are refused, and could run all the same.
    for _ in 0..2 {
        let mut late = tree.start(&["too-many"]);
        let mut status = None;
        tree.until(S(10), |_| {
            status = late.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()));
    }
    let told = |tree: &Tree, what: &str| {
        let notices = tree.notices.lock().unwrap();
        notices.iter().filter(|n| n.contains(what)).count()
    };
    tree.run_for(Duration::from_millis(100));
    assert_eq!(told(&tree, "runs unmanaged"), 1);
    tell(&mut crowd);
    tree.expect("there is a place again");
    let mut late = tree.start(&["watcher"]);
    let joined = tree.until(S(10), |tree| tree.sup.members() == MANY);
    assert!(joined, "the place is taken");
    late.kill().unwrap();
    late.wait().unwrap();
    tree.until(S(10), |tree| tree.sup.members() < MANY);
    tell(&mut crowd);
    tree.expect("and for a child");
    assert_eq!(told(&tree, "as many as can be"), 1, "said once");
    crowd.kill().unwrap();
    crowd.wait().unwrap();
}

fn old_report() {
    let mut tree = Tree::new(mib(64), 10);
    let mut member = tree.start(&["old-report"]);
    tree.expect("reported");
    let stats = tree.sup.stats();
    let (used, pool) = (stats.members[0].used_bytes, stats.members[0].pool_bytes);
    assert!(used > 0 && pool <= used, "{stats:?}");
    assert_eq!(stats.pool.total_bytes, pool);
    assert!(stats.pool.compressed_bytes <= pool, "{stats:?}");
    tell(&mut member);
    member.wait().unwrap();
    tree.expect_empty();
}

fn joins_and_leaves() {
    let mut tree = Tree::new(mib(512), 10);
    let mut member = tree.start(&["charge", "1000"]);
    tree.expect("charged");
    tree.sup.check().unwrap();
    let used = tree.sup.totals().used_pages;
    // Its charge and our own memory, which is small.
    assert!((1000..1000 + mib(16)).contains(&used), "{used}");
    tell(&mut member);
    assert!(member.wait().unwrap().success());
    tree.expect_empty();
    let totals = tree.sup.totals();
    assert_eq!(
        totals.counters.fault.get(),
        1000,
        "counters outlive their process"
    );
    let (way, pool) = totals.latency[2];
    assert_eq!((way, pool.count, pool.max), (Way::Pool, 1000, 1_000_000));
    assert!((500_000..=532_000).contains(&pool.p50), "{pool:?}");
    assert!(totals.peak_pages >= 1000);
    assert_eq!(totals.mode, Mode::Watching);
    assert_eq!(totals.processes, 1);
    let name = tree.notices.lock().unwrap()[0].clone();
    assert!(
        name.starts_with("processes") && name.contains("]: charged"),
        "{name}"
    );
}

fn killed() {
    let mut tree = Tree::new(mib(512), 3);
    for _ in 0..20 {
        tree.notices.lock().unwrap().clear();
        let mut member = tree.start(&["charge", "1000"]);
        tree.expect("charged");
        member.kill().unwrap();
        member.wait().unwrap();
        tree.expect_empty();
    }
    let mut member = tree.start(&["after"]);
    tree.expect("got 3");
    member.kill().unwrap();
    member.wait().unwrap();
    tree.expect_empty();
}

fn exec() {
    let mut tree = Tree::new(mib(512), 3);
    let mut member = tree.start(&["exec"]);
    tree.expect("about to exec");
    assert_eq!(tree.sup.members(), 1);
    tell(&mut member);
    tree.expect_empty();
    assert!(member.try_wait().unwrap().is_none(), "sleep lives on");
    let mut other = tree.start(&["after"]);
    tree.expect("got 3");
    member.kill().unwrap();
    other.kill().unwrap();
    member.wait().unwrap();
    other.wait().unwrap();
    tree.expect_empty();
}

fn refused() {
    let mut tree = Tree::new(mib(512), 3);
    let mut member = tree.start(&["refused"]);
    let mut status = None;
    tree.until(S(10), |_| {
        status = member.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    tree.expect_empty();

    let mut member = tree.start(&["twice"]);
    tree.expect("still here");
    assert_eq!(tree.sup.members(), 1);
    tell(&mut member);
    member.wait().unwrap();
    tree.expect_empty();
}

fn no_descriptors() {
    let mut tree = Tree::new(mib(512), 3);
    let mut first = tree.start(&["watcher"]);
    tree.until(S(5), |tree| tree.sup.members() == 1);
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Room for the pipes of the processes we start below, and not for members.
    let mut taken: Vec<std::fs::File> = Vec::new();
    let mut member = tree.start(&["charge", "10"]);
    limit.current = Some(64);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let mut status = None;
    let ended = tree.until(S(10), |_| {
        status = member.try_wait().unwrap();
        status.is_some()
    });
    assert!(ended && !status.unwrap().success(), "its join was refused");
    // And those that come later are welcome again.
    drop(taken);
    let mut member = tree.start(&["charge", "10"]);
    tree.expect("charged");
    for child in [&mut member, &mut first] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tree.expect_empty();
}

fn unmanaged() {
    let mut tree = Tree::new(mib(256), 3);
    let mut watcher = tree.start(&["watcher"]);
    let mut filler = tree.start(&["fill", "150"]);
    tree.until(S(5), |tree| tree.sup.members() == 1);
    let before = tree.sup.totals().used_pages;
    assert!(before < mib(30), "{before}");
    tell(&mut filler);
    tree.settles_at(150..180);
    assert_eq!(tree.sup.totals().mode, Mode::Watching);

    // 150 + 80 MiB is over 256 - 32.
    let mut second = tree.start(&["fill", "80"]);
    tell(&mut second);
    tree.expect("paging");
    tree.run_for(Duration::from_millis(100));
    let mut limit = String::new();
    BufReader::new(watcher.stdout.as_mut().unwrap())
        .read_line(&mut limit)
        .unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    assert!(limit < mib(40), "{limit}");
    assert!(tree.sup.totals().peak_pages >= mib(230));
    for child in [&mut filler, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tree.run_for(Duration::from_millis(200));
    assert!(
        tree.sup.totals().used_pages < mib(30),
        "the limit rises again"
    );
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    tree.expect_empty();
}

/// How far over the threshold memory gets before the mode is set, with nobody warned.
fn fast_filler() {
    let mut tree = Tree::new(mib(600), 3);
    let mut watcher = tree.start(&["watcher"]);
    let mut filler = tree.start(&["fill", "560"]);
    tree.until(S(5), |tree| tree.sup.members() == 1);
    tree.run_for(Duration::from_millis(200));
    tell(&mut filler);
    assert!(tree.until(S(10), |tree| tree.sup.totals().mode == Mode::Paging));
    let over = tree.sup.totals().peak_pages as i64 - mib(600 - 72) as i64;
    println!("  noticed {} KiB after the start threshold", over * 4);
    assert!(over < mib(32) as i64, "{over} pages over the threshold");
    for child in [&mut filler, &mut watcher] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tree.expect_empty();
}

fn waiters() {
    let mut tree = Tree::new(mib(64), 3);
    let mut greedy = tree.start(&["greedy"]);
    tree.expect("full");
    tree.sup.check().unwrap();
    let mut giver = tree.start(&["giver", "640", "25"]);
    tree.expect("waits");
    tell(&mut greedy);
    tree.expect("has 640");
    tell(&mut greedy);
    tree.expect("gave 640 of 640");
    tree.expect("got it back");
    tree.sup.check().unwrap();
    for child in [&mut greedy, &mut giver] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tree.expect_empty();
}

fn proportion() {
    // Two members with equal charges, one three times as cold; then memory from outside
    // takes 24 MiB of their room.
    let mut tree = Tree::new(mib(128), 3);
    let mut cold = tree.start(&["giver", "10240", "75"]);
    tree.expect("has 10240");
    let mut warm = tree.start(&["giver", "10241", "25"]);
    tree.expect("has 10241");
    let mut filler = tree.start(&["fill", "64"]);
    tell(&mut filler);
    tree.until(S(10), |tree| {
        tree.notices
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("gave "))
    });
    let fits = |tree: &mut Tree| tree.sup.totals().used_pages <= mib(128);
    assert!(
        tree.until(S(10), fits),
        "{} used",
        tree.sup.totals().used_pages
    );
    tree.run_for(Duration::from_millis(100));
    let given = |of: &str| -> u64 {
        let notices = tree.notices.lock().unwrap();
        notices
            .iter()
            .filter(|line| line.ends_with(of))
            .filter_map(|line| {
                line.split("gave ")
                    .nth(1)?
                    .split(' ')
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .sum()
    };
    let (from_cold, from_warm) = (given("of 10240"), given("of 10241"));
    assert!(
        from_warm > 0 && from_cold > 2 * from_warm && from_cold < 4 * from_warm,
        "{from_cold} from the cold one, {from_warm} from the warm one"
    );
    for child in [&mut cold, &mut warm, &mut filler] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tree.expect_empty();
}

fn credit() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["sharer", "64"]);
    tree.expect("child is in");
    // Charged twice, used once.
    tree.settles_at(64..80);
    // Within the next second the child writes 32 MiB.
    tell(&mut parent);
    tree.expect("half written");
    tree.settles_at(96..112);
    // It drops 16 MiB, which the parent keeps, and they are taken off once.
    tell(&mut parent);
    tree.expect("a quarter is gone");
    tree.expect("a quarter was shared");
    tree.settles_at(96..112);
    // The parent dies: the child has its 48 MiB alone.
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(tree.until(S(5), |tree| tree.sup.members() == 1));
    tree.settles_at(48..64);
    tree.sup.check().unwrap();
    tree.kill_all();
    tree.expect_empty();
}

fn last_relative() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["dropper", "64"]);
    tree.expect("child is in");
    // It has been measured: half of what they share is credited to each.
    tree.settles_at(64..80);
    tell(&mut parent);
    assert!(tree.until(S(5), |tree| tree.sup.members() == 1));
    // The parent has its 64 MiB alone, whatever the child had charged at its end.
    tree.settles_at(64..80);
    tree.sup.check().unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    tree.expect_empty();
}

fn overlap() {
    // Five processes with the same 100 MiB: 100 MiB.
    let mut tree = Tree::new(mib(256), 3);
    let mut pool = tree.start(&["pool", "100", "4", "30"]);
    let line = |pool: &mut Child| {
        let mut line = String::new();
        BufReader::new(pool.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        line
    };
    // It says so once it has.
    tree.run_for(Duration::from_millis(50));
    assert_eq!(line(&mut pool), "forked\n");
    tree.settles_at(90..125);
    assert_eq!(tree.sup.totals().mode, Mode::Watching);
    // Each child writes 30 MiB of it: 220 MiB, which stays within; the fifth write does not.
    tell(&mut pool);
    tree.settles_at(215..245);
    pool.kill().unwrap();
    pool.wait().unwrap();
    tree.kill_all();
    tree.expect_empty();
}

fn orphan() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["fork-and-die", "rejoin"]);
    tree.until(S(5), |_| parent.try_wait().unwrap().is_some());
    tree.run_for(Duration::from_millis(200));
    // The parent is gone, the child has not been heard of: its cluster is not given away.
    let mut other = tree.start(&["after"]);
    tree.expect("got 2");
    tree.expect("orphan is in");
    tell(&mut parent);
    tree.expect("orphan read it");
    tree.sup.check().unwrap();
    tell(&mut other);
    tree.expect("got one more");
    tree.kill_all();
    tree.expect_empty();
    other.wait().unwrap();
}

fn childless() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["fork-and-die", "childless"]);
    tree.expect("reserved");
    tree.run_for(Duration::from_millis(200));
    assert_eq!(
        tree.sup.members(),
        2,
        "held while the parent may still fork"
    );
    tell(&mut parent);
    parent.wait().unwrap();
    tree.expect_empty();
}

fn nameless() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["fork-and-die", "nameless"]);
    tree.expect("forked");
    assert!(
        tree.until(S(5), |tree| tree.sup.members() == 1),
        "the dead child's slot is kept"
    );
    tree.sup.check().unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    tree.expect_empty();
}

fn in_vain() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["in-vain", "1200"]);
    let all = tree.until(S(40), |tree| {
        let notices = tree.notices.lock().unwrap();
        notices.iter().any(|line| line.ends_with("all in vain"))
    });
    assert!(all, "{} places are taken", tree.sup.members());
    tree.expect("and one was not");
    let settled = tree.until(S(5), |tree| tree.sup.members() == 2);
    assert!(settled, "{} places are taken", tree.sup.members());
    tree.sup.check().unwrap();
    tell(&mut parent);
    parent.wait().unwrap();
    tree.kill_all();
    tree.expect_empty();
}

fn orphan_execs() {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["fork-and-die", "exec"]);
    tree.until(S(5), |_| parent.try_wait().unwrap().is_some());
    tree.run_for(Duration::from_millis(200));
    assert_eq!(tree.sup.members(), 1);
    tree.expect_empty();
    assert_eq!(
        descendants(std::process::id()).len(),
        1,
        "it lives, as another program"
    );
    tree.kill_all();
}

/// The supervisor first looks when the child pages already, and perhaps has no parent any more.
fn unreached(how: &str) {
    let mut tree = Tree::new(mib(512), 3);
    let mut parent = tree.start(&["unreached", how]);
    tree.expect("may fork");
    tell(&mut parent);
    let mut said = String::new();
    let mut output = BufReader::new(parent.stdout.as_mut().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "pages\n");
    let parents = (how == "parent lives") as usize;
    while parents == 0 && parent.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    tree.run_for(Duration::from_millis(200));
    assert_eq!(tree.sup.members(), parents + 1, "{how}");
    tell(&mut parent);
    let given_up = tree.until(S(5), |tree| tree.sup.members() == parents);
    assert!(given_up, "{how}: {} members", tree.sup.members());
    tree.sup.check().unwrap();
    let left = descendants(std::process::id());
    assert_eq!(left.len(), parents + 1, "it lives, as another program");
    left.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
    parent.wait().unwrap();
    tree.expect_empty();
}

fn outlive() {
    let mut tree = Tree::new(mib(64), 3);
    let mut watcher = tree.start(&["watcher"]);
    let mut filler = tree.start(&["fill", "40"]);
    tell(&mut filler);
    tree.expect("paging");
    filler.kill().unwrap();
    filler.wait().unwrap();
    tree.run_for(Duration::from_millis(200));
    drop(tree);
    tell(&mut watcher);
    let out = watcher.wait_with_output().unwrap();
    assert!(out.status.success());
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("alone"),
        "{out:?}"
    );
}

/// What is charged after the second child looked for the dead, after it has died itself, and after the first has.
/// The supervisor is gone, or has not come to it yet.
fn reap() {
    let charged = |role: &str| {
        let mut tree = Tree::new(mib(64), 3);
        let mut parent = tree.start(&["reaper", role]);
        tree.expect("has a child");
        let tree = (role == "beside").then_some(tree);
        tell(&mut parent);
        let out = parent.wait_with_output().unwrap();
        drop(tree);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(charged("here"), "300\n200\n100\n");
    assert_eq!(charged("beside"), "300\n300\n300\n");
    let apart = charged("apart");
    if apart == "not allowed\n" {
        println!("  no other PID namespace: not allowed here");
        return;
    }
    assert_eq!(apart, "300\n300\n300\n");
}

/// Processes that never reached the supervisor, in a tree of two PID namespaces. The one that ended keeps its slot
/// while who serves it lives, and the one whose number means nothing here keeps it.
fn apart() {
    let mut tree = Tree::new(mib(64), 3);
    let mut parent = tree.start(&["apart"]);
    let said = |tree: &Tree, what: &str| {
        let notices = tree.notices.lock().unwrap();
        notices.iter().any(|line| line.ends_with(what))
    };
    let ready = |tree: &mut Tree| said(tree, "all are there") || said(tree, "not allowed");
    assert!(
        tree.until(S(10), ready),
        "{:?}",
        tree.notices.lock().unwrap()
    );
    if said(&tree, "not allowed") {
        println!("  no other PID namespace: not allowed here");
    } else {
        tree.run_for(S(1));
        assert_eq!(tree.sup.members(), 4, "all of them");
        tell(&mut parent);
        assert!(tree.until(S(5), |tree| tree.sup.members() == 3));
        tree.run_for(S(1));
        assert_eq!(tree.sup.members(), 3, "and no other");
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
}

/// A member gives a descriptor whose readers wait, and ends while the memory is in use.
fn held_up() {
    if let Err(e) = Userfaultfd::open() {
        return println!("  no userfaultfd here: {e}");
    }
    for when in ["early", "late"] {
        let mut tree = Tree::new(mib(64), 3);
        let mut holder = tree.start(&["holds-up", when]);
        tree.expect("gave it");
        tell(&mut holder);
        // All that is left of the child is its parent's memory.
        let ended = tree.until(S(5), |tree| tree.sup.members() == 0);
        assert!(ended, "{when}");
        tree.run_for(Duration::from_secs(2));
        let begin = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        tree.run_for(Duration::from_secs(1));
        let end = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let spent = Duration::try_from(end - begin).unwrap();
        assert!(spent < Duration::from_millis(500), "{when}: {spent:?}");
        holder.kill().unwrap();
        holder.wait().unwrap();
        tree.expect_empty();
    }
}

fn run() {
    let mut tree = Tree::new(mib(64), 3);
    // The shell leaves an orphan behind, which ends before the shell does.
    #[allow(clippy::zombie_processes)] // The supervisor waits for it.
    let child = std::process::Command::new("sh")
        .args(["-c", "(sleep 0.1 &) ; sleep 0.5; exit 37"])
        .spawn()
        .unwrap();
    let status = tree.sup.run(child.id(), || {}).unwrap();
    assert_eq!(status.exit_status(), Some(37));
    assert!(
        descendants(std::process::id()).is_empty(),
        "a zombie is left"
    );
}

/// Members fork, acquire, release, charge and read what they inherited, while random ones
/// are killed. Now and then everyone is stopped, and the invariants are checked.
fn storm() {
    let seed = std::env::var("EBB_STORM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(ebb_sys::clock::monotonic_ns);
    println!("  EBB_STORM_SEED={seed}");
    let mut random = Random::new(seed);
    let seconds = std::env::var("EBB_STORM_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(8);
    let mut tree = Tree::new(mib(256), 40);
    let end = Instant::now() + S(seconds);
    let (mut kills, mut checks, mut busy) = (0, 0, 0);
    let me = std::process::id();
    while Instant::now() < end {
        if tree.sup.members() < 4 {
            let seed = random.below(1 << 30).to_string();
            drop(tree.start(&["storm", &seed]));
        }
        tree.run_for(Duration::from_millis(random.below(30) as u64));
        let pids = descendants(me);
        if !pids.is_empty() {
            let victim = pids[random.below(pids.len())];
            kill(victim, libc::SIGKILL);
            kills += 1;
        }
        if random.below(10) == 0 {
            // A stopped process may be in the middle of a change, and then nothing can be told.
            descendants(me)
                .iter()
                .for_each(|&pid| kill(pid, libc::SIGSTOP));
            tree.run_for(Duration::from_millis(20));
            match tree.sup.check() {
                Ok(()) => checks += 1,
                Err(why) if why == "changes are under way" => busy += 1,
                Err(why) => panic!("{why}"),
            }
            descendants(me)
                .iter()
                .for_each(|&pid| kill(pid, libc::SIGCONT));
        }
        let _ = tree.sup.collect(rustix::process::getpid());
        let notices = tree.notices.lock().unwrap();
        let violation = notices.iter().find(|line| line.contains("VIOLATION"));
        assert!(violation.is_none(), "{violation:?}");
    }
    println!(
        "  {kills} kills, {} members, {checks} checks, {busy} times in the middle of a change",
        tree.sup.totals().processes
    );
    assert!(checks > 0 && tree.sup.totals().processes > 10);
    while !descendants(me).is_empty() {
        descendants(me)
            .iter()
            .for_each(|&pid| kill(pid, libc::SIGKILL));
        let _ = tree.sup.collect(rustix::process::getpid());
        tree.run_for(Duration::from_millis(5));
    }
    let _ = tree.stamps[0].load(SeqCst);
    tree.expect_empty();
    // All clusters are there again.
    let mut other = tree.start(&["after"]);
    tree.expect("got 40");
    other.kill().unwrap();
    other.wait().unwrap();
}
