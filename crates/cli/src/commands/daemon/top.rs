//! `seekway top`: a running daemon on a terminal. This file has what is not pure: the terminal, the
//! control socket and the clock.

mod draw;
mod keys;
mod model;

use crate::args::TopArgs;
use crate::signals::{self, SIGHUP, SIGINT, SIGTERM};
use crate::{Verdict, control, load, output};
use anyhow::{Context, Result, bail};
use draw::Look;
use keys::Action;
use model::View;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};
use seekway_hostd::control::{Client, ClientError, HostReport, Request};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest time until a signal is noticed.
const SIGNAL_TIME: Duration = Duration::from_millis(250);
/// Lines of a picture that is printed: more disks than this say little.
const PRINTED_LINES_MAX: u16 = 1000;

pub fn run(args: &TopArgs) -> Result<Verdict> {
    let interval = Duration::from_nanos(load::duration("--interval", &args.interval)?.get());
    if !(100..=3_600_000).contains(&interval.as_millis()) {
        bail!("--interval {}: expected 100ms to 3600s", args.interval);
    }
    let socket = control::socket(args.daemon.socket.clone())?;
    let look = Look { colour: output::may_colour(), unicode: is_unicode() };
    let mut daemon = Daemon::connect(&socket)?;
    if args.once || !std::io::stdout().is_terminal() {
        return print(&mut daemon, interval, look);
    }
    if !std::io::stdin().is_terminal() || std::env::var("TERM").is_ok_and(|term| term == "dumb") {
        bail!("top needs a terminal for its keys; `seekway top --once` prints one picture");
    }
    // The terminal is made as it was when this returns, and by ratatui's hook after a panic.
    let mut terminal = ratatui::try_init().context("cannot set up the terminal")?;
    let ended = watch(&mut terminal, &mut daemon, interval, look);
    ratatui::restore();
    ended.map(|()| Verdict::Done)
}

/// Does the locale say that the terminal shows more than ASCII?
fn is_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The daemon's control socket, connected again when the daemon has been started again.
struct Daemon {
    path: PathBuf,
    client: Option<Client>,
}

impl Daemon {
    fn connect(path: &Path) -> Result<Daemon, ClientError> {
        Ok(Daemon { client: Some(Client::connect(path)?), path: path.into() })
    }

    fn ask(&mut self, request: &Request) -> Result<serde_json::Value, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.path)?,
        };
        let answer = client.ask(request);
        // What the daemon refuses says nothing against the connection.
        if matches!(answer, Ok(_) | Err(ClientError::Refused(_))) {
            self.client = Some(client);
        }
        answer
    }

    fn report(&mut self) -> Result<HostReport> {
        control::read(self.ask(&Request::Status {})?)
    }
}

/// Print what happens in one interval.
fn print(daemon: &mut Daemon, interval: Duration, look: Look) -> Result<Verdict> {
    let mut view = View::default();
    view.take(daemon.report()?);
    std::thread::sleep(interval);
    view.take(daemon.report()?);
    view.selected = None;
    let disks = view.disks().len() as u16;
    let lines = draw::LINES_MIN.saturating_add(disks).min(PRINTED_LINES_MAX);
    let columns = terminal_size::terminal_size().map_or(draw::COLUMNS_MIN, |(width, _)| width.0);
    let backend = TestBackend::new(columns.max(draw::COLUMNS_MIN), lines);
    let mut terminal = Terminal::new(backend)?;
    terminal.draw(|frame| draw::draw(frame, &view, look))?;
    let text = draw::text(terminal.backend().buffer());
    // The keys at the bottom are for terminals.
    let text = text.trim_end().rsplit_once('\n').map_or(text.as_str(), |(text, _)| text);
    output::print(&format!("{}\n", text.trim_end()))?;
    Ok(Verdict::Done)
}

/// Draw until somebody quits.
fn watch(
    terminal: &mut DefaultTerminal,
    daemon: &mut Daemon,
    interval: Duration,
    look: Look,
) -> Result<()> {
    let ended = signals::noted(&[SIGINT, SIGTERM, SIGHUP])?;
    let mut view = View::default();
    let mut answered = Instant::now();
    let mut due = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= due && !view.paused {
            due = Instant::now() + interval;
            match daemon.report() {
                Ok(report) => {
                    if view.message.starts_with("no answer") {
                        view.message.clear();
                    }
                    answered = Instant::now();
                    view.take(report);
                }
                Err(e) => {
                    let seconds = answered.elapsed().as_secs();
                    view.message = format!("no answer for {seconds} s: {e}");
                }
            }
        }
        terminal.draw(|frame| draw::draw(frame, &view, look)).context("cannot draw")?;
        let left = due.saturating_duration_since(Instant::now()).min(SIGNAL_TIME);
        if !event::poll(left.max(Duration::from_millis(10))).context("cannot read keys")? {
            continue;
        }
        let Event::Key(key) = event::read().context("cannot read keys")? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match keys::press(&mut view, key) {
            Action::Draw => {}
            Action::Quit => break,
            Action::Ask(request) => {
                let asked = daemon.ask(&request);
                view.message = asked.map_or_else(|e| e.to_string(), |_| "done".into());
                due = Instant::now();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
