//! No device is full while another thread has room of it out of reach: see `in_flight`.

use super::*;

#[test]
fn loom_the_only_cluster_is_waited_for_while_a_worker_discards_it() {
    for pages in [1, 512] {
        model(move || {
            let devices = devices(512, true);
            let all = allocate(&devices, A, 512, 0).unwrap();
            devices.free_now(A, EntryId(0), all).unwrap();
            let other = devices.clone();
            let thread = thread::spawn(move || other.work(B, 1));
            let got = allocate(&devices, A, pages, 1000);
            thread.join().unwrap();
            devices.check();
            assert!(got.is_some(), "the cluster was empty all the time");
        });
    }
}

#[test]
fn loom_two_allocations_discard_the_only_cluster() {
    model(|| {
        let devices = devices(512, true);
        let all = allocate(&devices, A, 512, 0).unwrap();
        devices.free_now(A, EntryId(0), all).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || allocate(&other, B, 1, 1));
        let mine = allocate(&devices, A, 1, 2);
        let theirs = thread.join().unwrap();
        devices.check();
        assert!(mine.is_some() && theirs.is_some() && mine != theirs);
    });
}

#[test]
fn loom_two_threads_begin_the_only_cluster() {
    model(|| {
        let devices = devices(512, false);
        let other = devices.clone();
        let thread = thread::spawn(move || allocate(&other, B, 1, 1));
        let mine = allocate(&devices, A, 1, 2);
        let theirs = thread.join().unwrap();
        devices.check();
        assert!(mine.is_some() && theirs.is_some() && mine != theirs);
    });
}

#[test]
fn loom_two_threads_borrow_the_only_cluster() {
    model(|| {
        let devices = no_devices();
        add_lent(&devices, 512, &[0]);
        let other = devices.clone();
        let thread = thread::spawn(move || allocate(&other, B, 1, 1));
        let mine = allocate(&devices, A, 1, 2);
        let theirs = thread.join().unwrap();
        devices.check();
        assert!(mine.is_some() && theirs.is_some() && mine != theirs);
    });
}

#[test]
fn loom_a_cluster_on_its_way_back_to_the_lender_is_waited_for() {
    model(|| {
        let devices = no_devices();
        add_lent(&devices, 3 * 512, &[0, 1, 2]);
        let all: Vec<_> = (0..3)
            .map(|i| allocate(&devices, A, 512, i * 512).unwrap())
            .collect();
        for (i, &e) in (0..).zip(&all) {
            devices.free_now(A, EntryId(i * 512), e).unwrap();
        }
        let other = devices.clone();
        // It keeps two and gives one back.
        let thread = thread::spawn(move || other.work(B, 1));
        for i in 0..3 {
            let got = allocate(&devices, A, 512, i * 512);
            assert!(got.is_some(), "three clusters were free, {i} are taken");
        }
        thread.join().unwrap();
        devices.check();
    });
}

#[test]
fn loom_what_a_folio_holds_that_will_not_fit_is_waited_for() {
    model_within(1, || {
        let devices = no_devices();
        let id = add_small(&devices, 6, 0);
        for i in 0..6 {
            allocate(&devices, A, 1, i).unwrap();
        }
        for at in [1, 3, 5] {
            let one = Extent {
                device: id,
                ..slot(at, 1)
            };
            devices.free_now(A, EntryId(at), one).unwrap();
        }
        let other = devices.clone();
        let thread = thread::spawn(move || allocate_runs(&other, B, 4, 100));
        let mine = allocate_runs(&devices, A, 2, 200);
        let theirs = thread.join().unwrap();
        devices.check();
        assert!(
            theirs.is_none(),
            "three slots are not enough for four pages"
        );
        assert!(mine.is_some(), "three slots were free all the time");
        assert_eq!(in_use(&devices), 3 + 2);
    });
}

/// Room in flight does not arrive while the allocation waits: a device hangs. A free of another thread
/// is heard of, whenever it comes.
#[test]
fn loom_a_free_is_heard_of_while_something_else_is_waited_for() {
    for now in [false, true] {
        model(move || {
            let devices = devices(512, false);
            allocate(&devices, A, 512, 0).unwrap();
            let hangs = devices.in_flight.begin();
            let other = devices.clone();
            let thread = thread::spawn(move || allocate(&other, B, 1, 1000));
            let freed = if now {
                devices.free_now(A, EntryId(7), slot(7, 1))
            } else {
                devices.free(A, EntryId(7), slot(7, 1))
            };
            freed.unwrap();
            assert_eq!(thread.join().unwrap(), Some(slot(7, 1)));
            drop(hangs);
            devices.check();
        });
    }
}
