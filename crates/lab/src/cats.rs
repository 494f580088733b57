//! Scenarios of cats-direct and vpt-rank, which are studies of the laboratory (`lab/`) in the
//! simulator.

use anyhow::Result;
use seekway_device::fit::{Form, of_model};
use seekway_sim::experiments::Scenario;

/// The detailed disk, which stands for the paper's real drive.
const DISK: &str = "cheetah-15k4:read_ahead_min=64";
/// Random reads that the line is fitted to, and their seed.
const READS: usize = 100_000;
const SEED: u64 = 1;

/// The scenario of this name, if the experiment is one of these.
///
/// # Errors
/// No line fits the disk.
pub fn scenario(experiment: &str, name: &str) -> Result<Option<Scenario>> {
    let line = || -> Result<String> {
        Ok(of_model(DISK, Form::Points, READS, SEED)?.profile_toml("fitted", DISK))
    };
    let (requests, device) = match (experiment, name) {
        ("cats-direct", "as in the paper") => (50_000, DISK.to_string()),
        ("vpt-rank", "disk, direct: itself") => (20_000, DISK.to_string()),
        ("vpt-rank", "disk, direct: fitted line, shadow's cache") => (20_000, line()?),
        ("vpt-rank", "disk, direct: fitted line, shadow's cache, k = 8") => {
            (20_000, format!("slow = 8\n{}", line()?))
        }
        _ => return Ok(None),
    };
    let vm = format!(
        "name=guest,tags=true,image=134GiB,atime=false,app=surge:processes=50,\
         requests={requests},direct=true,fill=34"
    );
    Ok(Some(Scenario::new(name, vec![vm], device)))
}
