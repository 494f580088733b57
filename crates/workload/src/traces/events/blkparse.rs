//! Lines of `blkparse`:
//!
//! ```text
//!   8,16   0        1     0.000000000   100  Q  WS 1000 + 8 [fio]
//! ```
//!
//! that is device, CPU, sequence number, seconds, process, action, RWBS, sector + sectors, and in
//! brackets the process's name or the error. Formats of `-f` that leave out some of the fields and
//! keep the order of the others are read, too. The summary at the end is no event. Without data
//! there is no sector, or one alone, or the bytes of a command.
//!
//! ftrace's tracer `blk` prints the same behind its own columns:
//!
//! ```text
//!  fio-1234  [002] ..... 5512.345678:   8,0    Q  WS 2048 + 8 [fio]
//! ```

use super::{
    Event, RWBS, extent, extent_and_from, is_device, is_time, number, perf, seconds, words,
};
use crate::traces::cursor::Fault;
use crate::traces::error::Reason;
use crate::traces::once::Kind;
use crate::traces::ops;

/// Actions of blkparse's first column of letters.
pub(super) const ACTIONS: [&[u8]; 18] = [
    b"Q", b"G", b"S", b"R", b"D", b"C", b"I", b"P", b"U", b"UT", b"M", b"F", b"X", b"A", b"B",
    b"m", b"DR", b"AB",
];

/// Expected action, and expected text after the RWBS letters, for messages.
pub(super) const ACTION: &str = "an action such as Q, D or C";
pub(super) const EXTENT: &str = "a sector, + and a length in sectors, as blkparse prints them; give \
    the format of its -f by --columns, such as --columns '%T.%t %a %d %S %n'";

pub(super) fn event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(32).collect();
    let fault =
        |expected| Fault { reason: Reason::Missing, column: line.len(), expected, found: None };
    let bare = |word: &'_ [u8]| word.len() - usize::from(word.ends_with(b":"));
    let Some(time) = words.iter().position(|(_, word)| is_time(&word[..bare(word)])) else {
        let is_event = words.first().is_some_and(|(_, word)| is_device(word));
        return if is_event { Err(fault("a time in seconds")) } else { Ok(None) };
    };
    let (column, word) = words[time];
    let (before, behind) = (&words[..time], &words[time + 1..]);
    let is_ftrace = word.ends_with(b":");
    let Some(action) = behind.iter().position(|(_, word)| ACTIONS.contains(word)) else {
        return if is_ftrace { Ok(None) } else { Err(fault(ACTION)) };
    };
    let mut devices = if is_ftrace { &behind[..action] } else { before }.iter();
    let device = devices.find(|(_, word)| is_device(word)).map(|(_, word)| *word);
    let kind = Kind::of_letter(behind[action].1);
    let Some(kind) = kind.filter(|_| !is_ftrace || device.is_some()) else { return Ok(None) };
    let rwbs = *behind.get(action + 1).ok_or_else(|| fault(RWBS))?;
    let pid = (action > 0).then(|| number(behind[0], "a process id").ok()).flatten();
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    let rest = &behind[action + 2..];
    let (extent, from) = match kind {
        Kind::Queue | Kind::Issue | Kind::Complete => (place(kind, rwbs, rest, line.len())?, None),
        _ => match extent_and_from(kind, rest) {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let cpu = match before {
        _ if is_ftrace => perf::cpu(before),
        [_, cpu, _] => number(*cpu, "a CPU").ok().and_then(|cpu| u32::try_from(cpu).ok()),
        _ => None,
    };
    Ok(Some(Event {
        time_ns: seconds((column, &word[..bare(word)]))?,
        kind: Some(kind),
        rwbs,
        extent,
        device: device.unwrap_or(b""),
        process: if is_ftrace { perf::process(before) } else { pid },
        cpu,
        from,
    }))
}

/// The extent among the words behind the RWBS letters; one of zero sectors at `end` if there is
/// none.
fn place(
    kind: Kind,
    rwbs: (usize, &[u8]),
    rest: &[(usize, &[u8])],
    end: usize,
) -> Result<(usize, u64, u64), Fault> {
    if rest.get(1).is_some_and(|(_, word)| *word == b"+")
        && let Some(extent) = extent(rest)?
    {
        return Ok(extent);
    }
    let opens = |at: usize| rest.get(at).is_some_and(|(_, word)| matches!(word[0], b'[' | b'('));
    // Queued is only what has a place, or a flush.
    let is_number = || kind != Kind::Queue && number(rest[0], "").is_ok();
    if opens(0) || (opens(1) && is_number()) {
        return Ok((end, 0, 0));
    }
    let (reason, column, expected) = match ops::rwbs(rwbs.1) {
        None => (Reason::UnknownOp, rwbs.0, RWBS),
        Some(_) => (Reason::Missing, rest.first().map_or(end, |(column, _)| *column), EXTENT),
    };
    Err(Fault { reason, column, expected, found: None })
}

/// A message (`m`), which blkparse prints in its own form whatever `-f` says, or a line of the
/// summaries.
pub(super) fn is_aside(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = words(line).take(6).map(|(_, word)| word).collect();
    if let [device, _, _, time, _, action] = words[..]
        && is_device(device)
        && is_time(time)
    {
        return action == b"m";
    }
    let line = line.trim_ascii();
    // Of a process: its name and its number.
    let pid = line.rsplit(|b| *b == b'(').next().and_then(|pid| pid.strip_suffix(b")"));
    let pid = pid.map(|pid| pid.strip_suffix(b", ...").unwrap_or(pid));
    pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit))
        || SUMMARY.split('|').any(|begin| line.starts_with(begin.as_bytes()))
}

/// Beginnings of the lines of summaries.
const SUMMARY: &str = "Input file |CPU|Total (|Read|PC Read|IO unplugs:|Allocation wait:|\
    Dispatch wait:|Completion wait:|Throughput (|Events (|Skips:";
