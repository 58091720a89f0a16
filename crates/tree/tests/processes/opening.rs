//! Devices that are opened while the tree runs.

use crate::support::{HANGS, SLOW, Tree, mib};
use ebb_tree::{Ask, MAX_DEVICES, Reply, Request};
use std::thread;
use std::time::{Duration, Instant};

pub fn hangs() {
    let mut tree = Tree::new(mib(512), 10);
    let start = Instant::now();
    let mut ask = Ask::send(std::process::id(), &Request::On("hangs".into())).unwrap();
    let asking = thread::spawn(move || {
        let mut progress = 0;
        loop {
            match ask.reply().unwrap() {
                Reply::Progress(_) => progress += 1,
                last => return (last, progress),
            }
        }
    });
    tree.run_for(Duration::from_millis(100));
    let is_done = |reply| matches!(reply, Reply::Done(_));
    assert!(is_done(tree.ask(Request::Show)));
    assert!(is_done(tree.ask(Request::On("3".into()))));
    assert!(start.elapsed() < HANGS / 2, "the supervisor hung");
    // Who asked is told.
    assert!(tree.until(HANGS, |_| asking.is_finished()));
    let (reply, progress) = asking.join().unwrap();
    assert!(
        matches!(&reply, Reply::Failed(why) if why.contains("nobody answers for it")),
        "{reply:?}"
    );
    assert!(start.elapsed() < HANGS && progress > 2, "{progress}");
    // Its row is kept for as long as it hangs, and what is opened after all is no device.
    for _ in 3..MAX_DEVICES {
        assert!(is_done(tree.ask(Request::On("3".into()))));
    }
    let full = tree.ask(Request::On("3".into()));
    assert!(start.elapsed() < HANGS && !is_done(full));
    tree.until(HANGS, |_| start.elapsed() > HANGS + Duration::from_secs(1));
    assert_eq!(tree.sup.devices().len(), MAX_DEVICES - 1);
    assert!(is_done(tree.ask(Request::On("3".into()))));
}

/// A command that is interrupted takes the device back.
pub fn taken_back() {
    let mut tree = Tree::new(mib(512), 10);
    let devices = tree.sup.devices().len();
    let ask = Ask::send(std::process::id(), &Request::On("slow".into())).unwrap();
    tree.run_for(SLOW / 4);
    drop(ask);
    tree.run_for(2 * SLOW);
    assert_eq!(tree.sup.devices().len(), devices);
    let reply = tree.ask(Request::On("slow".into()));
    assert!(matches!(reply, Reply::Done(_)), "{reply:?}");
}
