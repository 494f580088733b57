//! The vhost-user-blk front end.
