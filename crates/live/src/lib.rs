//! Real guests on the host daemon, for tests and live experiments.
//!
//! 1. [`GuestImage::prepare`] makes a kernel and an initramfs from Debian's
//!    packages, once a machine.
//! 2. [`Guest::start`] runs QEMU with disks on vhost-user sockets;
//!    [`Guest::wait_ready`] returns when the guest's init takes commands.
//! 3. [`Guest::run`] has the guest run a shell command and returns its output
//!    and status.
//!
//! Guests are emulated (TCG) unless [`Accelerator::Kvm`] is asked for: a KVM
//! that opens may hang all the same. Nothing outlives its owner: dropping a
//! guest or a daemon kills its process, and a test that is killed takes them
//! along (`PR_SET_PDEATHSIG`, which follows the *thread* that started them: it
//! has to live as long as they are needed).

mod daemon;
mod error;
pub mod experiment;
pub mod filesystem;
mod guest;
mod image;
mod process;
mod qmp;
pub mod schedule;
mod shipped;
mod stream;
pub mod turns;
pub mod vcpus;

pub use daemon::Daemon;
pub use error::{LiveError, Result};
pub use guest::{Accelerator, Guest, GuestSpec, Output, VhostDisk};
pub use image::{GuestImage, Kernel};
pub use process::Process;
pub use shipped::Shipped;
