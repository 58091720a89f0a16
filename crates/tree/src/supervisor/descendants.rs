//! The processes of the tree, found by their parents.

use ebb_sys::proc;

/// Every process of the tree but ourselves: our descendants, and those of the `known`, which are no
/// longer ours where this process carries on for another. The guard is none.
pub(super) fn descendants(known: impl Iterator<Item = u32>, guard: Option<u32>) -> Vec<u32> {
    let mut found: Vec<u32> = known.collect();
    // Children of one that ends meanwhile become ours; the next walk finds them.
    let mut parent = std::process::id();
    let mut next = 0;
    loop {
        let _ = proc::children(parent, |pid| {
            if !found.contains(&pid) && Some(pid) != guard {
                found.push(pid);
            }
        });
        match found.get(next) {
            Some(&pid) => parent = pid,
            None => return found,
        }
        next += 1;
    }
}
