//! `seekway ctl freeze`: disks stand still while somebody takes a snapshot of their images.

use crate::args::Format;
use crate::signals::{self, SIGINT, SIGTERM};
use crate::{Verdict, control, load, output};
use anyhow::{Context, Result, anyhow, bail};
use seekway_hostd::control::{Client, DiskReport, HostReport, Request};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

/// Freeze the disks, for `timeout` at the most. With a command: run it, and thaw them.
///
/// # Errors
/// A disk that cannot be frozen; a command that cannot be run or fails; a disk that thawed before
/// the command had ended. No disk stays frozen then.
pub fn run(
    client: &mut Client,
    names: &[String],
    timeout: &str,
    command: &[String],
    format: Format,
) -> Result<Verdict> {
    let time = load::duration("--timeout", timeout)?;
    let status = control::status(client)?;
    let disks = names.iter().map(|name| find(&status, name)).collect::<Result<Vec<_>>>()?;
    // A signal that ended us now would leave disks frozen until their time is over.
    let ended = signals::noted(&[SIGINT, SIGTERM])?;
    for (at, disk) in disks.iter().enumerate() {
        let request = Request::Freeze { disk: disk.name.clone(), timeout_s: time.as_secs_f64() };
        let frozen = client.ask(&request).map_err(|e| anyhow!(e)).and_then(|_| sync(disk));
        if let Err(e) = frozen {
            // The last one may be frozen and not synced. What thaws by itself need not be told.
            let _ = thaw(client, &names[..=at]);
            return Err(e);
        }
    }
    let Some((program, arguments)) = command.split_first() else {
        if format != Format::Table {
            super::done(format, &json!({}))?;
            return Ok(Verdict::Done);
        }
        let list = names.join(" ");
        output::print(&format!(
            "frozen for up to {timeout}: {list}\nthaw with: seekway ctl thaw {list}\n"
        ))?;
        return Ok(Verdict::Done);
    };
    let status = match ended.load(Ordering::Relaxed) {
        true => Err(anyhow!("interrupted before {program} was started")),
        false => Command::new(program).args(arguments).status().with_context(|| program.clone()),
    };
    let thawed = thaw(client, names);
    let status = status?;
    if !status.success() {
        bail!("{program}: {status}; the disks take requests again");
    }
    thawed.context(
        "what the command made is not a snapshot of one moment: give a longer --timeout",
    )?;
    Ok(Verdict::Done)
}

/// Take requests of all these disks again.
///
/// # Errors
/// The first disk that was not frozen any more, or is unknown; the others are thawed.
pub fn thaw(client: &mut Client, names: &[String]) -> Result<()> {
    let ask = |name: &String| client.ask(&Request::Thaw { disk: name.clone() });
    let answers: Vec<_> = names.iter().map(ask).collect();
    for answer in answers {
        answer?;
    }
    Ok(())
}

fn find<'r>(status: &'r HostReport, name: &str) -> Result<&'r DiskReport> {
    let mut disks = status.devices.iter().flat_map(|device| &device.disks);
    let found = disks.find(|disk| disk.name == name);
    found.with_context(|| format!("there is no disk {name}: see `seekway ctl status`"))
}

/// Flushes the page cache of an image to its device. The image is opened again: the kernel reports
/// a failure once to each open file, and the daemon's must report it at its guest's next flush.
fn sync(disk: &DiskReport) -> Result<()> {
    let path = Path::new(&disk.path);
    match std::fs::File::open(path).and_then(|file| file.sync_all()) {
        Ok(()) => Ok(()),
        // Guests' data is not in the page cache.
        Err(_) if disk.direct => Ok(()),
        Err(e) => {
            Err(anyhow!(e).context(format!("disk {}: {}: cannot sync", disk.name, disk.path)))
        }
    }
}
