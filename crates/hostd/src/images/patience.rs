//! Waits for an image that a dying process still has.

use super::ImageError;
use std::time::{Duration, Instant};

/// Longest wait of a starting daemon, or of an attach.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which to look.
const PAUSE: Duration = Duration::from_millis(20);

/// Repeat `open` until nobody else has the image, or it is `until`. A process that was killed, or
/// that has ended a moment ago, keeps its files locked, and its block devices claimed, until the
/// kernel has done with what it had in flight and with its ring.
///
/// # Errors
/// The last one of `open`.
pub fn patiently<T>(
    until: Instant,
    mut open: impl FnMut() -> Result<T, ImageError>,
) -> Result<T, ImageError> {
    loop {
        match open() {
            Err(e) if e.is_taken() && Instant::now() < until => pause(),
            opened => return opened,
        }
    }
}

fn pause() {
    #[cfg(test)]
    if let Some(others) = crate::waiting::others() {
        return others();
    }
    std::thread::sleep(PAUSE);
}
