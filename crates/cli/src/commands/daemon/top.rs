//! `seekway top`: a running daemon on a terminal. First what is not pure: the terminal, the control
//! socket and the clock; then the meaning of keys and the state.

mod draw;
#[cfg(test)]
mod tests;

use crate::args::TopArgs;
use crate::control::{self, SIGHUP, SIGINT, SIGTERM};
use crate::{Verdict, load, output};
use anyhow::{Context, Result, bail};
use draw::Look;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use seekway_hostd::control::counts::quantile_ms;
use seekway_hostd::control::history::{DeviceSample, DiskSample, Sample, find_disk};
use seekway_hostd::control::{
    Client, ClientError, DeviceReport, DiskReport, HostReport, LimitRequest, Request, reasons,
};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::num::NonZeroU32;
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
    let ended = control::noted(&[SIGINT, SIGTERM, SIGHUP])?;
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
        match press(&mut view, key) {
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

// Meaning of keys. Pure: what has to be asked of the daemon comes back as a request.

/// Longest line that can be typed.
const INPUT_MAX: usize = 500;

/// Consequence of a key.
#[derive(Clone, PartialEq, Debug)]
enum Action {
    /// Draw the view again; nothing is asked of the daemon.
    Draw,
    /// Ask this of the daemon.
    Ask(Request),
    Quit,
}

/// A key was pressed.
fn press(view: &mut View, key: KeyEvent) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if matches!(key.code, KeyCode::Char('c' | 'd')) {
            Action::Quit
        } else {
            Action::Draw
        };
    }
    if let Some(input) = view.input.take() {
        return type_into(view, input, key.code);
    }
    if view.help {
        view.help = false;
        return Action::Draw;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
        KeyCode::Char('?' | 'h') => view.help = true,
        KeyCode::Char(' ') => view.paused = !view.paused,
        KeyCode::Char('s') => view.sort = (view.sort + 1) % SORTS.len(),
        KeyCode::Char('r') => view.reversed = !view.reversed,
        KeyCode::Down | KeyCode::Char('j') => view.move_selection(1),
        KeyCode::Up | KeyCode::Char('k') => view.move_selection(-1),
        KeyCode::PageDown => view.move_selection(10),
        KeyCode::PageUp => view.move_selection(-10),
        KeyCode::Home => view.move_selection(isize::MIN + 1),
        KeyCode::End => view.move_selection(isize::MAX),
        KeyCode::Char('w') => ask(view, Asked::Weight),
        KeyCode::Char('l') => ask(view, Asked::Limit),
        KeyCode::Char('p') => ask(view, Asked::Policy),
        _ => {}
    }
    Action::Draw
}

/// Begin to type a setting of the selected disk, from what it is now.
fn ask(view: &mut View, asked: Asked) {
    let Some((device, disk)) = view.selected_disk() else { return };
    let (of, text) = match asked {
        Asked::Weight => (&disk.name, disk.weight.to_string()),
        Asked::Limit => (&disk.name, disk.limits.clone()),
        Asked::Policy => (&device.name, device.policy.clone()),
    };
    view.input = Some(Input { asked, of: of.clone(), text });
    view.message.clear();
}

fn type_into(view: &mut View, mut input: Input, key: KeyCode) -> Action {
    match key {
        KeyCode::Esc => return Action::Draw,
        KeyCode::Enter => match request(&input) {
            Ok(request) => return Action::Ask(request),
            Err(text) => view.message = text,
        },
        KeyCode::Backspace => _ = input.text.pop(),
        KeyCode::Char(c) if !c.is_control() && input.text.len() < INPUT_MAX => input.text.push(c),
        _ => {}
    }
    view.input = Some(input);
    Action::Draw
}

/// Makes a request of a typed line.
fn request(input: &Input) -> Result<Request, String> {
    let (of, text) = (input.of.clone(), input.text.trim());
    Ok(match input.asked {
        Asked::Weight => {
            let weight = text.parse::<NonZeroU32>();
            let weight = weight.map_err(|_| format!("weight {text}: expected a number from 1"))?;
            Request::Weight { disk: of, weight }
        }
        Asked::Limit => {
            let limit = LimitRequest::new(Some(&of), None, text);
            let limit = limit.map_err(|e| format!("limit {text}: {e}"))?;
            Request::Limit(Box::new(limit))
        }
        Asked::Policy => Request::Policy { policy: text.into(), device: Some(of) },
    })
}

// State of `seekway top`: the daemon's last report, the intervals before it, and the user's
// choices. Pure.

/// Intervals kept for the sparklines: more than a wide terminal has columns.
const SAMPLES: usize = 240;

/// An order of the disks: the word for it, and a figure of which the largest comes first.
type Sort = (&'static str, fn(&DiskRow) -> f64);

/// Orders of disks, each with its key.
const SORTS: [Sort; 6] = [
    ("name", |_| 0.0),
    ("IOPS", |row| row.iops),
    ("bandwidth", |row| row.read_mib_s + row.written_mib_s),
    ("p99", |row| row.p99_ms.unwrap_or(0.0)),
    ("device time", |row| row.share.unwrap_or(0.0)),
    ("waiting", |row| f64::from(row.waiting)),
];

/// Value that is being typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Weight,
    Limit,
    Policy,
}

/// A line that is being typed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Input {
    pub asked: Asked,
    /// The disk, or for a policy the device, that it is for.
    pub of: String,
    pub text: String,
}

/// Everything that is drawn.
#[derive(Debug, Default)]
struct View {
    pub report: Option<HostReport>,
    pub samples: VecDeque<Sample>,
    /// By which of [`SORTS`] the disks are sorted.
    pub sort: usize,
    pub reversed: bool,
    /// Name of the disk.
    pub selected: Option<String>,
    pub input: Option<Input>,
    /// Last answer of the daemon, or the reason why it does not answer.
    pub message: String,
    pub paused: bool,
    pub help: bool,
}

/// A disk in the last interval.
#[derive(Clone, PartialEq, Debug)]
struct DiskRow {
    pub device: String,
    pub name: String,
    pub weight: u32,
    pub iops: f64,
    pub read_mib_s: f64,
    pub written_mib_s: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Of the time that all disks had on the device; absent when none had any.
    pub share: Option<f64>,
    pub waiting: u32,
    pub errors: u64,
    /// p99 of the last intervals, newest last; 0 where there was no request.
    pub p99s_ms: Vec<f64>,
    /// Why its requests wait, a sentence each.
    pub reasons: Vec<String>,
}

/// A disk in an interval, and its device.
type Found<'s> = (&'s DeviceSample, &'s DiskSample);

/// A device in the last interval.
#[derive(Clone, PartialEq, Debug)]
struct DeviceRow {
    pub name: String,
    pub policy: String,
    pub queued: u64,
    pub in_flight: u32,
    pub depth: u32,
    /// Share of the time in which it was busy with reads and writes.
    pub busy: f64,
    /// Shares of the time withheld, by cause, the longest first.
    pub held: Vec<(String, f64)>,
    pub jain: Option<f64>,
}

impl View {
    /// The daemon's next report.
    pub fn take(&mut self, report: HostReport) {
        if let Some(before) = &self.report {
            if before.process != report.process || report.uptime_s < before.uptime_s {
                self.samples.clear(); // another daemon: nothing of it is known
            } else if report.uptime_s > before.uptime_s {
                self.samples.push_back(Sample::between(before, &report));
            }
        }
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        self.report = Some(report);
        let disks = self.disks();
        let is_there = |name: &String| disks.iter().any(|disk| disk.name == *name);
        if !self.selected.as_ref().is_some_and(is_there) {
            self.selected = disks.first().map(|disk| disk.name.clone());
        }
    }

    /// The disks in the order that the user wants.
    pub fn disks(&self) -> Vec<DiskRow> {
        let Some(report) = &self.report else { return Vec::new() };
        let of = |device: &DeviceReport| {
            let row = |(at, disk)| self.disk(device, at, disk);
            device.disks.iter().enumerate().map(row).collect::<Vec<_>>()
        };
        let mut rows: Vec<DiskRow> = report.devices.iter().flat_map(of).collect();
        let (_, key) = SORTS[self.sort];
        rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// The devices, as the daemon has them.
    pub fn devices(&self) -> Vec<DeviceRow> {
        let devices = self.report.iter().flat_map(|report| &report.devices);
        devices.map(|device| self.device(device)).collect()
    }

    fn device(&self, device: &DeviceReport) -> DeviceRow {
        let last = self.samples.back();
        let sample = last.and_then(|s| s.devices.iter().find(|d| d.name == device.name));
        let seconds = last.map_or(1.0, Sample::seconds);
        let share = |ms: f64| (ms / 1e3 / seconds).clamp(0.0, 1.0);
        let held = sample.iter().flat_map(|sample| &sample.held_ms);
        let mut held: Vec<_> = held.map(|(why, ms)| (why.clone(), share(*ms))).collect();
        held.sort_by(|a, b| b.1.total_cmp(&a.1));
        DeviceRow {
            name: device.name.clone(),
            policy: device.policy.clone(),
            queued: device.outstanding.saturating_sub(device.in_flight.into()),
            in_flight: device.in_flight,
            depth: device.depth,
            busy: sample.map_or(0.0, |sample| share(sample.service_ms)),
            held,
            jain: device.fairness.jain,
        }
    }

    fn disk(&self, device: &DeviceReport, at: usize, disk: &DiskReport) -> DiskRow {
        fn find<'s>(sample: &'s Sample, device: &str, at: usize, disk: &str) -> Option<Found<'s>> {
            let of = sample.devices.iter().find(|d| d.name == device)?;
            Some((of, find_disk(&of.disks, at, disk)?))
        }
        let find = |sample| find(sample, &device.name, at, &disk.name);
        let seconds = self.samples.back().map_or(1.0, Sample::seconds);
        let (nothing, none) = (DeviceSample::default(), DiskSample::default());
        let (on, now) = self.samples.back().and_then(find).unwrap_or((&nothing, &none));
        let all_ms: f64 = on.disks.iter().map(|d| d.device_time_ms).sum();
        let mib_s = |bytes: u64| bytes as f64 / f64::from(1 << 20) / seconds;
        let p99 = |sample| find(sample).and_then(|(_, disk)| quantile_ms(&disk.responses, 0.99));
        DiskRow {
            device: device.name.clone(),
            name: disk.name.clone(),
            weight: disk.weight,
            iops: (now.reads + now.writes) as f64 / seconds,
            read_mib_s: mib_s(now.read_bytes),
            written_mib_s: mib_s(now.written_bytes),
            p50_ms: quantile_ms(&now.responses, 0.5),
            p99_ms: quantile_ms(&now.responses, 0.99),
            share: (all_ms > 0.0).then(|| now.device_time_ms / all_ms),
            waiting: disk.outstanding,
            errors: disk.ops.values().map(|op| op.errors).sum(),
            p99s_ms: self.samples.iter().map(|s| p99(s).unwrap_or(0.0)).collect(),
            reasons: reasons::of(disk, now, on, seconds),
        }
    }

    /// The disk that is selected, as the daemon reports it, with its device.
    pub fn selected_disk(&self) -> Option<(&DeviceReport, &DiskReport)> {
        let name = self.selected.as_ref()?;
        let devices = self.report.iter().flat_map(|report| &report.devices);
        let mut disks = devices.flat_map(|device| device.disks.iter().map(move |d| (device, d)));
        disks.find(|(_, disk)| disk.name == *name)
    }

    /// Moves the selection by this number of rows, down if positive.
    pub fn move_selection(&mut self, by: isize) {
        let disks = self.disks();
        let at = disks.iter().position(|d| Some(&d.name) == self.selected.as_ref()).unwrap_or(0);
        let to = at.saturating_add_signed(by).min(disks.len().saturating_sub(1));
        self.selected = disks.get(to).map(|disk| disk.name.clone());
    }
}
