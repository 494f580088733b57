//! Checks published figures: their ranges, and the keys of a mix.

use super::{ProfileError, QUEUE_DEPTH_MAX, us, within, wrong};
use crate::published::{Mix, Published};

const MIXES_MAX: usize = 64;

/// `prefix` is the table's name, as in `ssd.published`.
pub(super) fn published(prefix: &str, p: &Published) -> Result<(), ProfileError> {
    let figures = [
        ("sequential_read_mb_s", p.sequential_read_mb_s),
        ("sequential_write_mb_s", p.sequential_write_mb_s),
        ("random_read_iops", p.random_read_iops),
        ("random_write_iops", p.random_write_iops),
        ("random_read_qd1_iops", p.random_read_qd1_iops),
        ("random_write_qd1_iops", p.random_write_qd1_iops),
    ];
    for (key, value) in figures {
        if let Some(value) = value {
            within(&format!("{prefix}.{key}"), value, 1.0..=1e9)?;
        }
    }
    let depth = format!("{prefix}.random_queue_depth");
    within(&depth, p.random_queue_depth, 1..=QUEUE_DEPTH_MAX)?;
    within(&format!("{prefix}.span_gib"), p.span_gib, 0.001..=1e6)?;
    us(&format!("{prefix}.host_us"), p.host_us)?;
    within(&format!("{prefix}.mix"), p.mix.len(), 0..=MIXES_MAX)?;
    for (index, m) in p.mix.iter().enumerate() {
        mix(&format!("{prefix}.mix[{index}]"), m)?;
    }
    Ok(())
}

fn mix(key: &str, m: &Mix) -> Result<(), ProfileError> {
    let at = |field: &str| format!("{key}.{field}");
    if let Some(depth) = m.depth {
        within(&at("depth"), depth, 1..=QUEUE_DEPTH_MAX)?;
    }
    match (m.reads, m.depth) {
        (Some(reads), Some(_)) => drop(within(&at("reads"), reads, 0.0..=1.0)?),
        (None, None) => {}
        (Some(reads), None) => {
            return Err(wrong(at("reads"), "with depth: it is the loop's share of reads", reads));
        }
        (None, Some(_)) => return Err(wrong(at("reads"), "0 to 1 with depth", "none")),
    }
    for (field, rate) in [("reads_per_s", m.reads_per_s), ("writes_per_s", m.writes_per_s)] {
        if rate != 0.0 {
            within(&at(field), rate, 1.0..=1e8)?;
        }
    }
    for (field, kib) in [("read_kib", m.read_kib), ("write_kib", m.write_kib)] {
        within(&at(field), kib, 0.5..=1024.0)?;
    }
    if m.depth.is_none() && m.reads_per_s == 0.0 {
        let expected = "depth, or reads_per_s above 0";
        return Err(wrong(key, expected, "a load without reads to judge"));
    }
    let figures = [
        ("iops", m.iops),
        ("read_mean_us", m.read_mean_us),
        ("read_p50_us", m.read_p50_us),
        ("read_p95_us", m.read_p95_us),
        ("read_p99_us", m.read_p99_us),
    ];
    if figures.iter().all(|(_, figure)| figure.is_none()) {
        let expected = "one of iops, read_mean_us, read_p50_us, read_p95_us and read_p99_us";
        return Err(wrong(key, expected, "none"));
    }
    for (field, figure) in figures {
        if let Some(figure) = figure {
            within(&at(field), figure, 1.0..=1e9)?;
        }
    }
    match (m.iops, m.depth) {
        (Some(iops), None) => Err(wrong(at("iops"), "with depth: it is the loop's rate", iops)),
        _ => Ok(()),
    }
}
