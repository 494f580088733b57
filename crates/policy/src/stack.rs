//! The host's path of a request between a front end and the device, without
//! I/O: the same code for the simulator and the daemon.

pub mod limit;
