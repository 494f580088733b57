//! Commands that serve disks, ask who serves them, or measure a disk. They need the daemon's code.

mod calibrate;
mod ctl;
mod doctor;
mod predict;
mod serve;
mod top;

pub use calibrate::{CalibrateArgs, Kind, MeasuringArgs};
pub use ctl::{CtlArgs, CtlCommand};
pub use doctor::DoctorArgs;
pub use predict::{LivePredictArgs, PredictArgs};
pub use serve::{BackendArgs, ServeArgs};
pub use top::TopArgs;

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Which daemon is asked.
#[derive(Args, Debug)]
pub struct SocketArgs {
    /// Path of the daemon's control socket [default: /run/seekway/control.sock for root,
    /// $XDG_RUNTIME_DIR/seekway/control.sock for others]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

/// The commands of the feature `daemon`.
#[derive(Subcommand, Debug)]
pub enum DaemonCommand {
    Calibrate(CalibrateArgs),
    Predict(Box<PredictArgs>),
    Serve(Box<ServeArgs>),
    Ctl(CtlArgs),
    Top(TopArgs),
    Doctor(DoctorArgs),
}
