//! `seekway-guest status`, which asks the agent that is at work, and `migrate --probe`, which
//! asks the guest what there is.

use super::loads::{Loads, ThreadLoad};
use super::status::Status;
use super::{clock, loads, preemption};
use crate::agent::{AgentError, failed};
use crate::args::{Format, StatusArgs};
use crate::{kernel, procfs, say};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// The agent's first thread answers when its vCPU runs and nobody goes before it.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Show what the agent is doing.
///
/// # Errors
/// None is at work, or it does not answer.
pub fn status(args: &StatusArgs) -> Result<(), AgentError> {
    let path = args.path();
    let old = read(&path)?;
    let is_alive = procfs::stat(old.pid).is_some_and(|stat| stat.start == old.start);
    if !is_alive {
        return Err(none(format!(
            "the agent ({}) has died: `seekway-guest restore migrate` puts back what it has changed",
            old.pid
        )));
    }
    kernel::ask(old.pid).map_err(failed(format!("ask the agent ({})", old.pid)))?;
    let asked = Instant::now();
    let status = loop {
        let status = read(&path)?;
        if status.serial != old.serial {
            break status;
        }
        if asked.elapsed() > PATIENCE {
            let message = format!("the agent ({}) does not answer: {PATIENCE:?}", old.pid);
            return Err(none(message));
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let text = match args.format {
        Format::Text => status.to_string(),
        Format::Json => serde_json::to_string_pretty(&status).expect("plain data") + "\n",
    };
    print(&text)
}

fn read(path: &Path) -> Result<Status, AgentError> {
    let bytes = fs::read(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => none(format!(
            "no agent is at work (there is no {}): `seekway-guest migrate` starts one",
            path.display()
        )),
        _ => failed(format!("read {}", path.display()))(e),
    })?;
    serde_json::from_slice(&bytes).map_err(|e| {
        AgentError::Usage(format!("{} is no status of seekway-guest ({e})", path.display()))
    })
}

fn none(message: String) -> AgentError {
    failed("status")(io::Error::other(message))
}

/// Who reads may have gone.
fn print(text: &str) -> Result<(), AgentError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(failed("write")(e)),
        _ => Ok(()),
    }
}

/// A way of seeing something, and whether this guest has it. JSON keys stay.
#[derive(Serialize)]
struct Probed {
    what: &'static str,
    way: &'static str,
    /// Why not.
    missing: Option<String>,
    /// Who it saw waiting for I/O in [`LOOK`].
    waiting: Vec<Waiting>,
}

/// A thread that waited for I/O.
#[derive(Serialize)]
struct Waiting {
    tid: i32,
    pid: i32,
    vcpu: usize,
    waited_us: u64,
    ran_us: u64,
    ios: u32,
}

/// A way of seeing who waits looks for so long.
const LOOK: Duration = Duration::from_millis(100);

/// Say which ways this guest has, and what they see.
///
/// # Errors
/// It cannot be written.
pub fn probe(format: Format) -> Result<(), AgentError> {
    let preemption = preemption::names().into_iter().map(|way| {
        let missing = preemption::open(Some(way)).err().map(|e| e.to_string());
        Probed { what: "preemption", way, missing, waiting: Vec::new() }
    });
    let loads = loads::names().into_iter().map(|way| {
        let seen = loads::open(Some(way))
            .map_err(|e| e.to_string())
            .and_then(|chosen| look(chosen.way).map_err(|e| e.to_string()));
        let (missing, waiting) = match seen {
            Ok(waiting) => (None, waiting),
            Err(why) => (Some(why), Vec::new()),
        };
        Probed { what: "loads", way, missing, waiting }
    });
    for probed in preemption.chain(loads) {
        let line = match format {
            Format::Json => serde_json::to_string(&probed).expect("plain data"),
            Format::Text => probed.to_string(),
        };
        say::say(&mut io::stdout(), &line);
    }
    Ok(())
}

fn look(mut way: Box<dyn Loads>) -> io::Result<Vec<Waiting>> {
    let mut loads = Vec::new();
    way.window(clock::now(), &mut loads)?;
    std::thread::sleep(LOOK);
    way.window(clock::now(), &mut loads)?;
    let waiting = |load: ThreadLoad| Waiting {
        tid: load.tid,
        pid: load.pid,
        vcpu: load.vcpu.index(),
        waited_us: load.waited.get() / 1000,
        ran_us: load.ran.get() / 1000,
        ios: load.ios,
    };
    Ok(loads.into_iter().map(waiting).collect())
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Probed { what, way, missing, waiting } = self;
        match missing {
            None => write!(f, "{what}: {way}: yes")?,
            Some(why) => write!(f, "{what}: {way}: no: {why}")?,
        }
        for it in waiting {
            let percent = u128::from(it.waited_us) * 100 / LOOK.as_micros();
            let Waiting { tid, vcpu, ios, .. } = it;
            write!(
                f,
                "\n  thread {tid} on vCPU {vcpu} waits {percent} % of the time ({ios} I/Os)"
            )?;
        }
        Ok(())
    }
}
