//! Placeholder of the layer; see design.
