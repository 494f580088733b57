//! Lines of the block layer's tracepoints, as perf, trace-cmd and ftrace print them:
//!
//! ```text
//!  fio  1234 [002]  5512.345678: block:block_rq_issue: 8,0 WS 4096 () 2048 + 8 none,0,0 [fio]
//!  fio-1234  [002] d..1. 5512.345678: block_bio_queue: 8,0 WS 2048 + 8 [fio]
//! ```
//!
//! Newer kernels print the priority behind the length. A flush has no sectors.

use super::{Event, extent, is_device, is_time, seconds, words};
use crate::traces::cursor::Fault;
use crate::traces::error::Reason;

/// Tracepoints and blkparse's letters for them.
const TRACEPOINTS: [(&[u8], u8); 6] = [
    (b"block_bio_queue:", b'Q'),
    (b"block_rq_issue:", b'D'),
    (b"block_rq_complete:", b'C'),
    (b"block_rq_insert:", b'I'),
    (b"block_getrq:", b'G'),
    (b"block_rq_requeue:", b'R'),
];

pub(super) fn event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(64).collect();
    let tracepoint = |word: &[u8]| {
        let word = word.strip_prefix(b"block:").unwrap_or(word);
        TRACEPOINTS.iter().find(|(name, _)| *name == word).map(|(_, action)| *action)
    };
    let found = words.iter().enumerate().find_map(|(at, (_, word))| Some((at, tracepoint(word)?)));
    let Some((at, action)) = found else { return Ok(None) };
    let missing =
        |column, expected| Fault { reason: Reason::Missing, column, expected, found: None };
    let time = at.checked_sub(1).map(|before| words[before]);
    let time = time.and_then(|(column, word)| Some((column, word.strip_suffix(b":")?)));
    let Some(time) = time.filter(|(_, word)| is_time(word)) else {
        return Err(missing(words[at].0, "a time in seconds and a colon in front of the event"));
    };
    let (Some(device), Some(rwbs)) = (words.get(at + 1), words.get(at + 2)) else {
        return Err(missing(line.len(), "a device and RWBS letters"));
    };
    if !is_device(device.1) {
        return Err(Fault {
            reason: Reason::Malformed,
            ..missing(device.0, "a device such as 8,0")
        });
    }
    let Some(extent) = extent(&words[at + 3..])? else {
        return Err(missing(line.len(), "a sector, + and a length in sectors"));
    };
    Ok(Some(Event {
        time_ns: seconds(time)?,
        action: Some(action),
        rwbs: *rwbs,
        extent,
        device: device.1,
        process: process(&words[..at]),
    }))
}

/// The process of `fio 1234 [002]`, `fio 1234/1240 [002]`, `fio-1234 [002]` or
/// `fio-1234 (1230) [002]`; zero where there is none.
fn process(before: &[(usize, &[u8])]) -> u32 {
    let is_cpu = |word: &[u8]| matches!(word, [b'[', cpu @ .., b']'] if !cpu.is_empty() && cpu.iter().all(u8::is_ascii_digit));
    let end = before.iter().rposition(|(_, word)| is_cpu(word)).unwrap_or(before.len());
    let number = |word: &[u8]| {
        let word = word.split(|b| *b == b'/').next().unwrap_or(word);
        let word = word.rsplit(|b| *b == b'-').next().unwrap_or(word);
        std::str::from_utf8(word).ok()?.parse().ok()
    };
    before[..end].iter().rev().find_map(|(_, word)| number(word)).unwrap_or(0)
}
