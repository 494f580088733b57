//! A model against a measured drive: replay of the drive's trace and the
//! demerit figure (Ruemmler and Wilkes, "An introduction to disk drive
//! modeling", 1994: the root mean square of the horizontal distance between
//! the two distributions of response times).
//!
//! The records are DiskSim's validation format, one request a line: `R|W Hit|Miss lbn sectors
//! service_us gap_us`. The word `Hit` is in every line of the traces at hand and says nothing; it
//! is parsed and ignored.
//!
//! The gap runs from this request's *completion* to the next request's
//! arrival. Evidence in the traces themselves: half the gaps of the Cheetah
//! 15K.5 trace are 9 to 15 µs after services of several ms on one outstanding
//! request, so they cannot be from arrival to arrival; and only with times
//! summed as service + gap does the rotational phase stay in step (see
//! [`Pace::Measured`]).

use crate::DeviceModel;
use crate::closed_loop::serve;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Sectors};
use thiserror::Error;

/// Most records that are taken from one trace.
pub const RECORDS_MAX: usize = 10_000_000;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record {
    /// Read or write: the first word of the line.
    pub op: Op,
    pub extent: Extent,
    /// Measured time from arrival to completion.
    pub service_ns: u64,
    /// From its completion to the next request's arrival.
    pub gap_ns: u64,
}

/// An error in a trace.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TraceError {
    /// A line that is not a record.
    #[error("line {line}: expected `R|W Hit|Miss lbn sectors service_us gap_us`, found `{found}`")]
    Line {
        /// Number of the line, from 1; empty lines count.
        line: usize,
        /// Its first 80 characters.
        found: String,
    },
    /// More than [`RECORDS_MAX`] records, or none.
    #[error("expected 1 to {RECORDS_MAX} records, found {0}")]
    Count(usize),
    /// A request past the end of the model.
    #[error("record {record}: {extent} ends past the device's {capacity} sectors")]
    PastEnd {
        /// Number of the record in the trace, from 1.
        record: usize,
        extent: Extent,
        /// The model's size in sectors.
        capacity: u64,
    },
}

/// Reads the records of a trace; empty lines are skipped.
///
/// # Errors
/// Says which line does not fit.
pub fn parse(text: &str) -> Result<Vec<Record>, TraceError> {
    let mut records = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let record = parse_line(line).ok_or_else(|| TraceError::Line {
            line: index + 1,
            found: line.chars().take(80).collect(),
        })?;
        if records.len() == RECORDS_MAX {
            return Err(TraceError::Count(records.len() + 1));
        }
        records.push(record);
    }
    if records.is_empty() { Err(TraceError::Count(0)) } else { Ok(records) }
}

fn parse_line(line: &str) -> Option<Record> {
    let mut words = line.split_ascii_whitespace();
    let op = match words.next()? {
        "R" => Op::Read,
        "W" => Op::Write,
        _ => return None,
    };
    if !matches!(words.next()?, "Hit" | "Miss") {
        return None;
    }
    let lba = Lba::new(words.next()?.parse().ok()?);
    let sectors = Sectors::new(words.next()?.parse().ok()?);
    let service_ns = micros(words.next()?)?;
    let gap_ns = micros(words.next()?)?;
    let extent = Extent::new(lba, sectors)?;
    words.next().is_none().then_some(Record { op, extent, service_ns, gap_ns })
}

/// A time in µs from 0 to an hour, to ns.
fn micros(word: &str) -> Option<u64> {
    let us: f64 = word.parse().ok()?;
    (0.0..=3.6e9).contains(&us).then(|| (us * 1e3).round() as u64)
}

/// When the replay issues the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// The gap after the model's completion, as for a host that waits; the definition of the
    /// demerit figure (DiskSim's validate mode).
    Closed,
    /// At the measured arrival (but not before the model is done with the previous one): keeps the
    /// model's spindle in step with the drive's, so that single requests can be compared.
    Measured,
}

/// Results of a model's validation.
#[derive(Clone, PartialEq, Debug)]
pub struct Validation {
    /// Number of replayed requests.
    pub requests: usize,
    /// RMS horizontal distance between the two distributions, in ms.
    pub demerit_ms: f64,
    /// `demerit_ms` as a share of the measured mean.
    pub demerit_relative: f64,
    /// Mean measured response time, in ms.
    pub mean_measured_ms: f64,
    /// Mean of the model's, in ms.
    pub mean_model_ms: f64,
    /// RMS of the differences request by request, in ms: says something with
    /// [`Pace::Measured`] and a layout that is right to the sector.
    pub paired_rms_ms: f64,
    /// (quantile, measured ms, model ms) at 1, 5, 10, 25, 50, 75, 90, 95, 99 %.
    pub quantiles: Vec<(f64, f64, f64)>,
}

const QUANTILES: [f64; 9] = [0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99];

/// Replays `records`, at least one, on a device at rest and compares.
///
/// # Errors
/// [`TraceError::PastEnd`] for a request outside of the model, [`TraceError::Count`] for no
/// records.
pub fn validate(
    device: &mut dyn DeviceModel,
    records: &[Record],
    pace: Pace,
) -> Result<Validation, TraceError> {
    let model = replay(device, records, pace)?;
    let measured: Vec<u64> = records.iter().map(|r| r.service_ns).collect();
    compare(&measured, &model)
}

/// The model's response times in ns, one a record.
///
/// # Errors
/// As [`validate`].
pub fn replay(
    device: &mut dyn DeviceModel,
    records: &[Record],
    pace: Pace,
) -> Result<Vec<u64>, TraceError> {
    let capacity = device.profile().capacity.get();
    let mut services = Vec::with_capacity(records.len());
    let (mut measured_ns, mut free_ns) = (0_u64, 0_u64);
    for (index, record) in records.iter().enumerate() {
        if record.extent.end().get() > capacity {
            return Err(TraceError::PastEnd { record: index + 1, extent: record.extent, capacity });
        }
        let now_ns = match pace {
            Pace::Closed => free_ns,
            Pace::Measured => measured_ns.max(free_ns),
        };
        let done = serve(device, Instant::from_nanos(now_ns), record.op, record.extent);
        let done_ns = done.as_nanos();
        services.push(done_ns - now_ns);
        free_ns = match pace {
            Pace::Closed => done_ns + record.gap_ns,
            Pace::Measured => done_ns,
        };
        measured_ns += record.service_ns + record.gap_ns;
    }
    Ok(services)
}

/// Compares two equally long, non-empty lists of response times in ns, in the same order.
///
/// # Errors
/// [`TraceError::Count`] when they are empty or differ in length.
pub fn compare(measured_ns: &[u64], model_ns: &[u64]) -> Result<Validation, TraceError> {
    let n = measured_ns.len();
    if n == 0 || model_ns.len() != n {
        return Err(TraceError::Count(n.min(model_ns.len())));
    }
    let rms_ms = |a: &[u64], b: &[u64]| {
        let sum: f64 = a.iter().zip(b).map(|(&x, &y)| (x.abs_diff(y) as f64 / 1e6).powi(2)).sum();
        (sum / n as f64).sqrt()
    };
    let mean_ms = |a: &[u64]| a.iter().map(|&x| x as f64 / 1e6).sum::<f64>() / n as f64;
    let paired_rms_ms = rms_ms(measured_ns, model_ns);
    let (mut measured, mut model) = (measured_ns.to_vec(), model_ns.to_vec());
    measured.sort_unstable();
    model.sort_unstable();
    let at = |a: &[u64], q: f64| a[((n - 1) as f64 * q).round() as usize] as f64 / 1e6;
    let demerit_ms = rms_ms(&measured, &model);
    let mean_measured_ms = mean_ms(&measured);
    Ok(Validation {
        requests: n,
        demerit_ms,
        demerit_relative: demerit_ms / mean_measured_ms,
        mean_measured_ms,
        mean_model_ms: mean_ms(&model),
        paired_rms_ms,
        quantiles: QUANTILES.iter().map(|&q| (q, at(&measured, q), at(&model, q))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_parse_and_others_are_refused_with_their_line() {
        let r =
            parse("R Hit   1975456   4  15362.00000  56074.00000\n\nW Miss 1 8 1 2.5\n").unwrap();
        assert_eq!((r[0].service_ns, r[1].gap_ns, r[1].op), (15_362_000, 2_500, Op::Write));
        for bad in
            ["R Hit 1 0 1 1", "R Hit 1 8 -1 1", "X Hit 1 8 1 1", "R Hit 1 8 1", "R Hit 1 8 1 1 1"]
        {
            let text = format!("R Hit 1 8 1 1\n{bad}\n");
            assert!(matches!(parse(&text), Err(TraceError::Line { line: 2, .. })), "{bad}");
        }
        assert_eq!(parse("\n"), Err(TraceError::Count(0)));
    }

    #[test]
    fn the_demerit_is_the_distance_of_the_distributions() {
        // The same values in another order are no distance; a shift is itself.
        let v = compare(&[1_000_000, 3_000_000], &[3_000_000, 1_000_000]).unwrap();
        assert_eq!((v.demerit_ms, v.paired_rms_ms), (0.0, 2.0));
        let v = compare(&[1_000_000, 3_000_000], &[3_500_000, 1_500_000]).unwrap();
        assert_eq!((v.demerit_ms, v.demerit_relative, v.mean_model_ms), (0.5, 0.25, 2.5));
        assert!(compare(&[], &[]).is_err());
    }
}
