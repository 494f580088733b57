//! Where guests' requests come in: one folder for each protocol.

pub mod nbd;
pub mod vhost_user;
