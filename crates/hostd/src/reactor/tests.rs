//! The real reactor on rings that tests play: in a simulated host (`swarm`), beside the simulator
//! (`parity`), and with messages and completions in each order (`mailbox`, `taking`).

mod mailbox;
pub(super) mod parity;
mod swarm;
pub(super) mod taking;
