//! Lines of the block layer's tracepoints, as perf, trace-cmd and ftrace print them:
//!
//! ```text
//!  fio  1234 [002]  5512.345678: block:block_rq_issue: 8,0 WS 4096 () 2048 + 8 none,0,0 [fio]
//!  fio-1234  [002] d..1. 5512.345678: block_bio_queue: 8,0 WS 2048 + 8 [fio]
//! ```
//!
//! Newer kernels print the priority behind the length. A flush has no sectors.

use super::{Event, extent, extent_and_from, is_device, is_time, seconds, words};
use crate::traces::cursor::Fault;
use crate::traces::error::Reason;
use crate::traces::once::Kind;

/// Tracepoints that are requests, or say that another one is the same request again.
const TRACEPOINTS: [(&[u8], Kind); 6] = [
    (b"block_bio_queue:", Kind::Queue),
    (b"block_rq_issue:", Kind::Issue),
    (b"block_rq_complete:", Kind::Complete),
    (b"block_bio_remap:", Kind::Remap),
    (b"block_split:", Kind::Split),
    (b"block_rq_requeue:", Kind::Requeue),
];

pub(super) fn event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(64).collect();
    let tracepoint = |word: &[u8]| {
        let word = word.strip_prefix(b"block:").unwrap_or(word);
        TRACEPOINTS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
    };
    let found = words.iter().enumerate().find_map(|(at, (_, word))| Some((at, tracepoint(word)?)));
    let Some((at, kind)) = found else { return Ok(None) };
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
    let rest = &words[at + 3..];
    let (extent, from) = match kind {
        Kind::Queue | Kind::Issue | Kind::Complete => match extent(rest)? {
            Some(extent) => (extent, None),
            None => return Err(missing(line.len(), "a sector, + and a length in sectors")),
        },
        _ => match extent_and_from(kind, rest) {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    Ok(Some(Event {
        time_ns: seconds(time)?,
        kind: Some(kind),
        rwbs: *rwbs,
        extent,
        device: device.1,
        process: process(&words[..at]),
        cpu: cpu(&words[..at]),
        from,
    }))
}

/// The process of `fio 1234 [002]`, `fio 1234/1240 [002]`, `kworker/0:1H-1234 [002]` or
/// `fio-1234 (1230) [002]`; zero where there is none.
pub(super) fn process(before: &[(usize, &[u8])]) -> u32 {
    let end = before.iter().rposition(|(_, word)| in_brackets(word).is_some());
    let end = end.unwrap_or(before.len());
    let number = |word: &[u8]| {
        let pid = match word.rsplitn(2, |b| *b == b'-').next() {
            Some(pid) if pid.len() < word.len() => pid,
            _ => word.split(|b| *b == b'/').next()?,
        };
        std::str::from_utf8(pid).ok()?.parse().ok()
    };
    before[..end].iter().rev().find_map(|(_, word)| number(word)).unwrap_or(0)
}

/// The CPU: `[002]`.
pub(super) fn cpu(before: &[(usize, &[u8])]) -> Option<u32> {
    before.iter().rev().find_map(|(_, word)| in_brackets(word))
}

fn in_brackets(word: &[u8]) -> Option<u32> {
    let [b'[', digits @ .., b']'] = word else { return None };
    let digits = Some(digits).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
