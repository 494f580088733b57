//! The commands of the feature `daemon`, a file each.

mod calibrate;
mod ctl;
mod doctor;
mod predict;
mod serve;
mod top;

use crate::Verdict;
use crate::args::DaemonCommand;
use anyhow::Result;

pub fn run(command: DaemonCommand) -> Result<Verdict> {
    match command {
        DaemonCommand::Calibrate(args) => calibrate::run(&args),
        DaemonCommand::Predict(args) => predict::run(&args),
        DaemonCommand::Serve(args) => serve::run(&args),
        DaemonCommand::Ctl(args) => ctl::run(&args),
        DaemonCommand::Top(args) => top::run(&args),
        DaemonCommand::Doctor(args) => doctor::run(&args),
    }
}
