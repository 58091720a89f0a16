//! Something of the system's that is made when it is first wanted, and not asked for again once it was refused.

/// See the module.
pub enum OnDemand<T> {
    Untried,
    Ready(T),
    Refused,
}

impl<T> OnDemand<T> {
    /// It, if there is one or can be.
    pub fn get(&mut self, make: impl FnOnce() -> Option<T>) -> Option<&mut T> {
        if let Self::Untried = self {
            *self = make().map_or(Self::Refused, Self::Ready);
        }
        self.made()
    }

    /// It, if there is one.
    pub fn made(&mut self) -> Option<&mut T> {
        match self {
            Self::Ready(made) => Some(made),
            _ => None,
        }
    }

    /// Takes it out, if there is one; it may be tried again.
    pub fn take(&mut self) -> Option<T> {
        match std::mem::replace(self, Self::Untried) {
            Self::Ready(made) => Some(made),
            _ => None,
        }
    }
}
