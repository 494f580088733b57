//! Lines of `blkparse`:
//!
//! ```text
//!   8,16   0        1     0.000000000   100  Q  WS 1000 + 8 [fio]
//! ```
//!
//! that is device, CPU, sequence number, seconds, process, action, RWBS, sector + sectors, and in
//! brackets the process's name or the error. Formats of `-f` that leave out some of the fields and
//! keep the order of the others are read, too. The summary at the end is no event.

use super::{Event, extent, is_device, is_time, number, seconds, words};
use crate::traces::cursor::Fault;
use crate::traces::error::Reason;
use crate::traces::ops;

/// Actions of blkparse's first column of letters.
const ACTIONS: [&[u8]; 18] = [
    b"Q", b"G", b"S", b"R", b"D", b"C", b"I", b"P", b"U", b"UT", b"M", b"F", b"X", b"A", b"B",
    b"m", b"DR", b"AB",
];

pub(super) fn event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(32).collect();
    let Some(time) = words.iter().position(|(_, word)| is_time(word)) else {
        let reason = Reason::Missing;
        let is_event = words.first().is_some_and(|(_, word)| is_device(word));
        let (column, expected) = (line.len(), "a time in seconds");
        return if is_event {
            Err(Fault { reason, column, expected, found: None })
        } else {
            Ok(None)
        };
    };
    let action = words[time + 1..].iter().position(|(_, word)| ACTIONS.contains(word));
    let Some(action) = action.map(|at| at + time + 1) else { return Ok(None) };
    let Some(rwbs) = words.get(action + 1).copied() else { return Ok(None) };
    let is_flush = ops::rwbs(rwbs.1).is_some_and(|named| named.flush);
    let found = extent(&words[action + 2..])?;
    // A flush without data has no sector; what else has none is no request for blocks.
    let Some(extent) = found.or(is_flush.then_some((line.len(), 0, 0))) else { return Ok(None) };
    let device = words[..time].iter().find(|(_, word)| is_device(word));
    let process = (action > time + 1).then(|| number(words[time + 1], "a process id"));
    Ok(Some(Event {
        time_ns: seconds(words[time])?,
        action: words[action].1.first().copied().filter(|_| words[action].1.len() == 1),
        rwbs,
        extent,
        device: device.map_or(b"", |(_, word)| word),
        process: process.and_then(|pid| u32::try_from(pid.ok()?).ok()).unwrap_or(0),
    }))
}
