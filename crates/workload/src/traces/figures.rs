//! Figures that no disk has, and how figures are shown.

/// Requests of which the beginning of a file has to have as many, to tell units by.
pub(super) const REQUESTS_LEAST: u64 = 16;
/// More requests a second than a machine's block layer hands on.
pub(super) const RATE_MAX: f64 = 5e6;
/// In seconds.
pub(super) const YEAR_S: f64 = 365.25 * 86_400.0;
/// Longer than machines run without a restart, or traces without wall-clock times.
pub(super) const UPTIME_NS_MAX: f64 = 400.0 * 86_400e9;
/// Units of times, from the longest on, their powers of ten, and the years 2000 to 2040 in them.
pub(super) const TIMES: [(&str, u32, f64, f64); 5] = [
    ("time_s", 9, 0.94e9, 2.3e9),
    ("time_ms", 6, 0.94e12, 2.3e12),
    ("time_us", 3, 0.94e15, 2.3e15),
    // Since 1601, in units of 100 ns.
    ("time_filetime", 2, 1.25e17, 1.39e17),
    ("time_ns", 0, 0.94e18, 2.3e18),
];

/// The year of a wall-clock time in the unit `name`.
pub(super) fn year(name: &str, ns: f64) -> String {
    let first = if name == "time_filetime" { 1601.0 } else { 1970.0 };
    format!("{:.0}", (first + ns / 1e9 / YEAR_S).floor())
}

/// Describes the span of `requests` requests, and their rate.
pub(super) fn within(requests: u64, span_s: f64) -> String {
    let rate = requests.saturating_sub(1) as f64 / span_s;
    match rate {
        rate if !rate.is_finite() || rate == 0.0 => "at one time".into(),
        rate if rate < 1.0 => format!("in {}, one every {}", time(span_s), time(1.0 / rate)),
        rate if rate < 10.0 => format!("in {}, {rate:.2} a second", time(span_s)),
        rate => format!("in {}, {} a second", time(span_s), grouped(rate.round() as u64)),
    }
}

/// A number with commas between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits of a size.
pub(super) fn size(bytes: f64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (value, unit) = scaled(bytes, &units, 1024.0);
    if unit == "bytes" { format!("{value:.0} bytes") } else { format!("{} {unit}", three(value)) }
}

/// Three digits of a time.
pub(super) fn time(seconds: f64) -> String {
    if seconds >= 2.0 * 86_400.0 {
        return format!("{} days", three(seconds / 86_400.0));
    }
    if seconds >= 1.0 {
        return format!("{} s", three(seconds));
    }
    let (value, unit) = scaled(seconds * 1e9, &["ns", "µs", "ms", "s"], 1000.0);
    format!("{} {unit}", three(value))
}

fn scaled<'a>(mut value: f64, units: &[&'a str], step: f64) -> (f64, &'a str) {
    let mut at = 0;
    while value >= step && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    (value, units[at])
}

fn three(value: f64) -> String {
    match value {
        v if v >= 99.5 || v.fract() == 0.0 => grouped(v.round() as u64),
        v if v >= 9.95 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
