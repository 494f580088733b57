//! Draws the view: devices above, disks below them, and the selected disk at the bottom. Pure but
//! for the buffer that it draws into.

use super::{Asked, DeviceRow, DiskRow, Input, SORTS, View};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};
use seekway_hostd::control::{DiskReport, ProcessReport};

/// The smallest terminal that has room for all.
pub const COLUMNS_MIN: u16 = 80;
pub const LINES_MIN: u16 = 24;
/// Devices shown at most, and lines of the selected disk.
const DEVICES_MAX: usize = 6;
const DETAIL_LINES: u16 = 8;
/// A column of the disks' table: its title, its width and its text.
type Column = (&'static str, usize, fn(&DiskRow) -> String);

/// Columns of the disks' table without the name and the sparkline.
const COLUMNS: [Column; 9] = [
    ("weight", 6, |d| d.weight.to_string()),
    ("IOPS", 7, |d| short(d.iops)),
    ("rd MiB/s", 8, |d| short(d.read_mib_s)),
    ("wr MiB/s", 8, |d| short(d.written_mib_s)),
    ("p50 ms", 7, |d| d.p50_ms.map_or("-".into(), short)),
    ("p99 ms", 7, |d| d.p99_ms.map_or("-".into(), short)),
    ("time", 5, |d| d.share.map_or("-".into(), percent)),
    ("wait", 4, |d| d.waiting.to_string()),
    ("err", 4, |d| d.errors.to_string()),
];

/// Style of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Colours; without, bold and reversed say the same.
    pub colour: bool,
    /// The terminal shows more than ASCII.
    pub unicode: bool,
}

impl Look {
    /// A style with a colour, or with the modifier where there are none.
    fn style(self, colour: Color, without: Modifier) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(without),
        }
    }

    fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Draw all of it.
pub fn draw(frame: &mut Frame<'_>, view: &View, look: Look) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < LINES_MIN {
        let text = format!(
            "seekway top needs {COLUMNS_MIN} x {LINES_MIN} characters; here are {} x {}. \
             Make the window larger; q ends.",
            area.width, area.height
        );
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    if view.help {
        return frame.render_widget(Paragraph::new(HELP), area);
    }
    let devices = view.devices();
    let shown = devices.len().clamp(1, DEVICES_MAX) as u16;
    let [head, of_devices, _, of_disks, of_one, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1 + shown),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(DETAIL_LINES),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(header(view)).style(look.head()), head);
    draw_devices(frame, of_devices, &devices, look);
    let disks = view.disks();
    draw_disks(frame, of_disks, view, &disks, look);
    let selected = disks.iter().find(|disk| Some(&disk.name) == view.selected.as_ref());
    let report = view.selected_disk().map(|(_, disk)| disk);
    if let (Some(row), Some(report)) = (selected, report) {
        let lines = details(row, report, look);
        frame.render_widget(Paragraph::new(lines), of_one);
    }
    draw_foot(frame, foot, view, look);
}

const HELP: &str = "\
seekway top: keys

  up, down, k, j    select a disk          PgUp, PgDn, Home, End    further
  s                 sort by the next of: name, IOPS, bandwidth, p99, device time, waiting
  r                 reverse the order
  w                 change the selected disk's weight
  l                 replace its limits, as iops=2000,bandwidth=100MiB or none
  p                 change the policy of its device, as fairway or cfq:slice_idle=4ms
  space             pause, or go on
  q, Esc, Ctrl-C    quit

  IOPS, rd, wr: reads and writes of guests in the last interval
  p50, p99: half, and 99 of 100, of them took less (within a tenth)
  time: share of the time that all disks had on the device
  wait: requests that have come and are not done
  trend: p99 over the last intervals, the newest at the right

Any key goes back.";

fn header(view: &View) -> String {
    let Some(report) = &view.report else { return format!("seekway top  {}", view.message) };
    let disks: usize = report.devices.iter().map(|device| device.disks.len()).sum();
    let mut text = format!(
        "seekway top  up {}  devices {}  disks {disks}  sorted by {}{}",
        span(report.uptime_s),
        report.devices.len(),
        SORTS[view.sort].0,
        if view.reversed { ", reversed" } else { "" },
    );
    if view.paused {
        text += "  PAUSED";
    }
    if !report.failed.is_empty() {
        text += &format!("  NOT SERVED: {}", report.failed.len());
    }
    if !report.silent.is_empty() {
        text += &format!("  NO ANSWER: {}", report.silent.join(", "));
    }
    text
}

/// A time span in its two largest units.
fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

fn draw_devices(frame: &mut Frame<'_>, area: Rect, devices: &[DeviceRow], look: Look) {
    let columns = ["device", "policy", "queued", "in flight", "busy", "Jain", "withheld"];
    let widths = [14, 20, 6, 9, 5, 5].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(8)]);
    let row = |device: &DeviceRow| {
        let held = device.held.iter().map(|(why, share)| format!("{why} {}", percent(*share)));
        Row::new([
            device.name.clone(),
            device.policy.clone(),
            format!("{:>6}", device.queued),
            format!("{:>9}", format!("{}/{}", device.in_flight, device.depth)),
            format!("{:>5}", percent(device.busy)),
            format!("{:>5}", device.jain.map_or("-".into(), |jain| format!("{jain:.2}"))),
            held.collect::<Vec<_>>().join(", "),
        ])
    };
    let hidden = devices.len().saturating_sub(DEVICES_MAX);
    let rows = devices.iter().take(DEVICES_MAX - usize::from(hidden > 0)).map(row);
    let more = (hidden > 0).then(|| Row::new([format!("and {} more", hidden + 1)]));
    let table = Table::new(rows.chain(more), widths).header(Row::new(columns).style(look.head()));
    frame.render_widget(table, area);
}

fn draw_disks(frame: &mut Frame<'_>, area: Rect, view: &View, disks: &[DiskRow], look: Look) {
    let figures: u16 = COLUMNS.iter().map(|(_, width, _)| *width as u16 + 1).sum();
    let free = area.width.saturating_sub(figures + 1);
    let name = disks.iter().map(|disk| disk.name.chars().count()).max().unwrap_or(4);
    let name = (name as u16).clamp(4, free.saturating_sub(8));
    let spark = free - name;
    let widths = [name].into_iter().chain(COLUMNS.map(|(_, width, _)| width as u16)).chain([spark]);
    let right = COLUMNS.map(|(title, width, _)| format!("{title:>width$}"));
    let head = ["disk".to_string()].into_iter().chain(right).chain(["trend".to_string()]);
    let rows = disks.iter().map(|disk| disk_row(disk, spark.into(), look));
    let table = Table::new(rows, widths.map(Constraint::Length))
        .header(Row::new(head).style(look.head()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let at = disks.iter().position(|disk| Some(&disk.name) == view.selected.as_ref());
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(at));
}

fn disk_row(disk: &DiskRow, spark: usize, look: Look) -> Row<'static> {
    let right = COLUMNS.map(|(_, width, text)| format!("{:>width$}", text(disk)));
    let cells = [disk.name.clone()].into_iter().chain(right);
    let row = Row::new(cells.chain([sparkline(&disk.p99s_ms, spark, look.unicode)]));
    match disk.errors {
        0 => row,
        _ => row.style(look.style(Color::Red, Modifier::UNDERLINED)),
    }
}

/// Details of the selected disk.
fn details(row: &DiskRow, disk: &DiskReport, look: Look) -> Vec<Line<'static>> {
    let title = format!("{} on {}: {}, limits {}", row.name, row.device, disk.path, disk.limits);
    let mut lines = vec![Line::styled(title, look.head())];
    lines.push(Line::raw(match row.waiting {
        0 => "  nothing is under way".to_string(),
        waiting => format!("  {waiting} under way"),
    }));
    lines.extend(row.reasons.iter().take(2).map(|reason| Line::raw(format!("  {reason}"))));
    let warnings = disk.warnings.iter().take(1);
    let warn = look.style(Color::Yellow, Modifier::BOLD);
    lines.extend(warnings.map(|text| Line::styled(format!("  {text}"), warn)));
    if let Some(cache) = &disk.cache {
        let mut processes: Vec<&ProcessReport> = cache.processes.iter().collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.usage.read_bytes));
        lines.extend(processes.into_iter().take(3).map(|process| Line::raw(of_process(process))));
    }
    lines
}

/// Describes a process's use of the cache.
fn of_process(process: &ProcessReport) -> String {
    let usage = &process.usage;
    let hits = match usage.read_bytes {
        0 => "-".into(),
        read => percent(usage.hit_bytes as f64 / read as f64),
    };
    let name = process.tag.map_or("untagged".to_string(), |tag| format!("process {tag}"));
    format!(
        "  {name}: read {} MiB, cache hits {hits}, read ahead {} MiB, used {}",
        usage.read_bytes >> 20,
        usage.prefetched_bytes >> 20,
        percent(usage.accuracy)
    )
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let Some(Input { asked, of, text }) = &view.input else {
        let foot = match view.message.is_empty() {
            true => Line::raw(
                "s sort  r reverse  w weight  l limits  p policy  space pause  ? help  q quit",
            ),
            false => Line::styled(view.message.clone(), look.style(Color::Yellow, Modifier::BOLD)),
        };
        return frame.render_widget(Paragraph::new(foot), area);
    };
    let what = match asked {
        Asked::Weight => "weight",
        Asked::Limit => "limits",
        Asked::Policy => "policy",
    };
    let mut prompt = format!("{what} of {of}: ");
    if !view.message.is_empty() {
        prompt = format!("{}; {prompt}", view.message);
    }
    // What is typed is seen, however long.
    let room = usize::from(area.width).saturating_sub(2);
    let all: Vec<char> = prompt.chars().chain(text.chars()).collect();
    let seen: String = all[all.len().saturating_sub(room)..].iter().collect();
    let end = area.x + seen.chars().count() as u16;
    frame.render_widget(Paragraph::new(Line::from(Span::styled(seen, look.head()))), area);
    frame.set_cursor_position(Position::new(end.min(area.right().saturating_sub(1)), area.y));
}

/// A share, 0 to 1.
fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A figure in at most six characters, three of them significant.
fn short(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 99_999.5 => format!("{v:.0}"),
        v if v < 9_999_999.0 => format!("{:.0}k", v / 1e3),
        v if v < 9.99e9 => format!("{:.0}M", v / 1e6),
        v => format!("{v:.0e}"),
    }
}

/// The last values as a line of bars, the newest at the right; the highest is a whole one.
fn sparkline(values: &[f64], width: usize, unicode: bool) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '%', '#'];
    let bars = if unicode { BARS } else { ASCII };
    let last = &values[values.len().saturating_sub(width)..];
    let most = last.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match *value > 0.0 {
        true => bars[((value / most * 8.0).ceil() as usize).clamp(1, 8)],
        false => ' ',
    };
    let line: String = last.iter().map(bar).collect();
    format!("{line:>width$}")
}

/// The buffer as text, without what only fills lines.
pub fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let line: String =
            (buffer.area.left()..buffer.area.right()).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
