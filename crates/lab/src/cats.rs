//! Loads of cats-direct and vpt-rank, as in lab/seekway_lab/papers/cats.

use crate::simulate::Loads;
use anyhow::Result;
use seekway_device::fit::{Form, of_model};

/// The detailed disk, which stands for the paper's real drive.
const DISK: &str = "cheetah-15k4:read_ahead_min=64";
/// Random reads that the line is fitted to, and their seed.
const READS: usize = 100_000;
const SEED: u64 = 1;

/// cats-direct, "as in the paper".
pub fn direct() -> Loads {
    surge(50_000, DISK.into())
}

/// vpt-rank on the disk, direct: itself.
pub fn disk() -> Loads {
    surge(20_000, DISK.into())
}

/// vpt-rank on the line fitted to the disk, with the shadow's cache.
///
/// # Errors
/// No line fits the disk.
pub fn line() -> Result<Loads> {
    let line = of_model(DISK, Form::Points, READS, SEED)?;
    Ok(surge(20_000, line.profile_toml("fitted", DISK)))
}

fn surge(requests: u32, device: String) -> Loads {
    let vm = format!(
        "name=guest,tags=true,image=134GiB,atime=false,app=surge:processes=50,\
         requests={requests},direct=true,fill=34"
    );
    Loads { vms: vec![vm], device }
}
