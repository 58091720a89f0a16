//! Placeholder of the layer; see design.
pub mod codec;
