//! `--supervise`: a parent that does nothing but put things back and start
//! the agent again when it died.

use crate::agent::{AgentError, Voice, failed};
use crate::events::Event;
use crate::kernel;
use crate::signals::Signals;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Before the first restart; doubled for each that follows a short life.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause, and what counts as a long life.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Status of a program that was told wrong: starting it again changes nothing.
const WRONG_USAGE: i32 = 2;

/// Run the agent as a child until a signal comes or it ends in order. `put_back` undoes
/// what one that died has changed.
///
/// # Errors
/// The agent has said what is wrong with how it was started, and ended. What may
/// pass, such as a full disk, is a warning.
pub fn supervise(
    voice: Voice,
    put_back: impl Fn() -> Result<(), AgentError>,
) -> Result<(), AgentError> {
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        let warn = |message: String| voice.say(&Event::Warning { message });
        match start() {
            Ok(mut child) => {
                let ended = watch(&mut child, &signals).map_err(failed("wait for the agent"))?;
                if ended.success() {
                    return Ok(());
                }
                if ended.code() == Some(WRONG_USAGE) {
                    let message = "the agent did not start: its message is above";
                    return Err(AgentError::Usage(message.into()));
                }
                warn(format!("the agent died ({ended})"));
            }
            Err(e) => warn(format!("start the agent: {e}")),
        }
        // What cannot be done now is done by the agent that starts next.
        if let Err(e) = put_back() {
            warn(e.to_string());
        }
        if started.elapsed() >= PAUSE_MAX {
            pause = PAUSE_MIN;
        }
        let until = Instant::now() + pause;
        while !signals.ending() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            signals.wait(left, &[]).map_err(failed("poll"))?;
        }
        if signals.ending() {
            return Ok(());
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The same command without `--supervise`.
fn start() -> std::io::Result<Child> {
    let own = std::process::id().to_string();
    let same = std::env::args_os().skip(1).filter(|arg| arg != "--supervise");
    Command::new("/proc/self/exe").args(same).args(["--parent", &own]).spawn()
}

/// Wait for the child, and end it when this is to end.
fn watch(child: &mut Child, signals: &Signals) -> std::io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if signals.ending() && !told {
            kernel::terminate(child.id());
            told = true;
        }
        // A child's end wakes this.
        signals.wait(PAUSE_MAX, &[])?;
    }
}
