//! `seekway-guest status`, which asks the agent that is at work.

use super::status::Status;
use crate::agent::{AgentError, failed};
use crate::args::{Format, StatusArgs};
use crate::{kernel, procfs};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for an answer: the agent's first thread answers when its vCPU runs and is free.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Shows the agent's status.
///
/// # Errors
/// None is at work, or it does not answer.
pub fn status(args: &StatusArgs) -> Result<(), AgentError> {
    let path = args.file.path();
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

/// Prints; a reader that has gone is no error.
pub(super) fn print(text: &str) -> Result<(), AgentError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(failed("write")(e)),
        _ => Ok(()),
    }
}
