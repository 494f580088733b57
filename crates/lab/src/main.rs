//! The `seekway-live` program: runs experiments on real QEMU guests, beside the
//! simulator with the same guests and loads. `seekway experiment run NAME --live`
//! starts it.
//!
//! Output and exit status are those of `seekway` (`seekway_cli`).
#![forbid(unsafe_code)]

mod args;
mod cats;
mod migrate;
mod noisy;
mod pregather;
mod procs;
mod scene;
mod show;
mod simulate;
mod spread;
mod together;
mod vpt;

use anyhow::{Context, Result, bail};
use args::LabArgs;
use clap::Parser;
use seekway_cli::{NoisyArgs, Verdict};
use seekway_policy::{schedulers, vcpu};
use std::process::ExitCode;

fn main() -> ExitCode {
    seekway_cli::exit("seekway-live", run(&LabArgs::parse()))
}

fn run(args: &LabArgs) -> Result<Verdict> {
    if let Some(policy) = &args.policy {
        schedulers::build(policy).context("--policy")?;
    }
    if let Some(spec) = &args.vcpu {
        vcpu::build(spec).context("--vcpu")?;
    }
    if args.vcpu.is_some() && args.name != migrate::NAME {
        bail!("--vcpu: for {} only", migrate::NAME);
    }
    if args.scenes.is_some() && ![noisy::NAME, together::NAME].contains(&&*args.name) {
        bail!("--scenes: for {} and {} only", noisy::NAME, together::NAME);
    }
    if args.name != noisy::NAME && args.noisy != NoisyArgs::default() {
        bail!("--servers, --seconds, --rounds, --work-dir: for {} only", noisy::NAME);
    }
    if let Some(scene) = scene::SCENES.iter().find(|s| s.experiment == args.name) {
        return scene::run(args, scene);
    }
    match &*args.name {
        pregather::NAME => pregather::run(args),
        procs::NAME => procs::run(args),
        migrate::NAME => migrate::run(args),
        noisy::NAME => noisy::run(args),
        together::NAME => together::run(args),
        vpt::NAME => vpt::run(args),
        other => {
            let scenes = scene::SCENES.iter().map(|s| s.experiment);
            let known = [pregather::NAME].into_iter().chain(scenes);
            let others = [procs::NAME, migrate::NAME, noisy::NAME, together::NAME, vpt::NAME];
            let known: Vec<&str> = known.chain(others).collect();
            bail!("{other} does not run live; these do: {}", known.join(", "));
        }
    }
}
