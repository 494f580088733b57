//! Models of storage devices, pure state machines like the policies: time is
//! an argument, and the same requests give the same completions.
//!
//! - [`linear`]: a constant plus a share of the distance, behind a segment cache;
//! - [`disk`]: a drive with angle-exact mechanics and a cache stated part by part;
//! - [`ssd`]: a solid-state drive with channels, dies, a write buffer and a
//!   page-mapped translation layer;
//! - [`raid0`]: several drives striped, also mirrored;
//! - [`cloud`]: a volume over a network with rate caps and burst credit;
//! - [`slowed`]: any of these with a slower clock;
//! - [`closed_loop`]: a fixed number of commands in flight, to measure a model;
//! - [`profile`]: named devices as TOML, and how experiments vary them;
//! - [`validate`]: a model against a measured drive;
//! - [`fit`]: the linear device that fits a measured one;
//! - [`flash_fit`]: the solid-state drive that fits a measured one;
//! - [`published`]: a model against published figures of the device.
//!
//! **To add a device**: a file in `profiles/`, every figure with its source, and its line in
//! [`profile`]. A new kind of device implements [`DeviceModel`].
//!
//! Absent: no clock, no file, no thread, no randomness (the variation in `cloud` is a fixed
//! sequence). Times are whole nanoseconds; floating point only builds tables and reports.
#![forbid(unsafe_code)]

pub mod closed_loop;
pub mod cloud;
pub mod disk;
pub mod fit;
pub mod flash_fit;
mod in_flight;
pub mod linear;
pub mod profile;
pub mod published;
pub mod raid0;
pub mod slowed;
pub mod ssd;
#[cfg(test)]
mod tests;
pub mod validate;

use seekway_core::request::{Extent, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::Instant;

/// A device that serves commands. A command is a [`Request`] whose extent may
/// span several guests' requests that the engine coalesced; its id is the
/// engine's handle and comes back from [`DeviceModel::pop_completed`].
pub trait DeviceModel: Send {
    /// Description of the device for policies.
    fn profile(&self) -> DeviceProfile;

    /// Commands that the device takes at once, at least 1. The engine never submits more; a command
    /// counts until it is popped.
    fn queue_depth(&self) -> u32;

    /// A command reaches the device. `now` never runs backwards. An extent past
    /// the end of the device is a programmer error and panics: engines map and
    /// check before.
    fn submit(&mut self, now: Instant, command: &Request);

    /// When the next command completes, if any is in flight. A command that is submitted
    /// later may move that to a later time, but nothing that is due.
    fn next_completion(&self) -> Option<Instant>;

    /// A command that has completed by `now`, earliest first.
    fn pop_completed(&mut self, now: Instant) -> Option<RequestId>;

    /// Sectors that can be neither read nor written: commands that touch them fail, after their
    /// normal time.
    fn bad_sectors(&self) -> &[Extent] {
        &[]
    }

    /// Reports figures that only this model knows (`cache_hits`, `seeks`, …).
    fn metrics(&self, _sink: &mut dyn FnMut(&'static str, f64)) {}
}
