//! Arguments of `seekway calibrate`.

use clap::Args;

/// Make a device profile from a real disk, a file on it, or a measured trace
#[derive(Args, Debug)]
pub struct CalibrateArgs {}
