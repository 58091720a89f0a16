//! Methods of a store that a store over it passes on.

/// The parts of [`Store`](ebb_engine::env::Store) that a store with a field `inner` does not change.
macro_rules! pass_through {
    () => {
        fn expect(&self, slots: &[std::ops::Range<u64>]) {
            self.inner.expect(slots);
        }

        fn wants_discard(&self) -> bool {
            self.inner.wants_discard()
        }

        fn rotational(&self) -> bool {
            self.inner.rotational()
        }

        fn node(&self) -> Option<ebb_engine::Node> {
            self.inner.node()
        }
    };
}
pub(crate) use pass_through;
