//! Transfers that failed together, made again one by one.

use ebb_engine::env::IoError;

/// The state of such transfers. An error that is not of one alone is that of the next ones, too.
pub struct OneByOne(Result<(), IoError>);

impl OneByOne {
    /// Before the first.
    pub fn new() -> Self {
        Self(Ok(()))
    }

    /// Makes the next one, unless an error is its own already; how it went.
    pub fn make(&mut self, transfer: impl FnOnce() -> Result<(), IoError>) -> Result<(), IoError> {
        let made = self.0.and_then(|()| transfer());
        if !made.is_err_and(IoError::is_of_one) {
            self.0 = made;
        }
        made
    }
}
