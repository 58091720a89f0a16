//! The cursor of a rotating device.

use crate::types::ClusterIndex;

/// A rotating device's cluster to allocate from next, and where in it to look first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::slots) struct Cursor {
    pub cluster: ClusterIndex,
    pub next: u16,
}
