//! Files, devices, sockets and signals as descriptors.

pub mod aio;
pub mod aio_context;
pub mod batch_reads;
pub mod blkid;
pub mod block_device;
pub mod interruption;
pub mod kept_fd;
pub mod peer;
pub mod signalfd;
