//! Lines in a form of `blkparse -f`, which the user gives as it was given to blkparse:
//! `%T.%t %d %S %n`.

use super::{Event, RWBS, is_device, number, seconds};
use crate::traces::cursor::{Cursor, Fault};
use crate::traces::error::Reason;
use crate::traces::ops;

/// The form, field by field.
pub(super) struct Pattern {
    /// Text in front of the first field.
    first: Vec<u8>,
    /// The letter of each field, and the text behind it without blanks.
    fields: Vec<(u8, Vec<u8>)>,
}

/// Letters of blkparse's fields.
const LETTERS: &[u8] = b"acCdDeMmNnpPsStTuU";

impl Pattern {
    /// The form, or what it lacks.
    pub(super) fn new(format: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern { first: Vec::new(), fields: Vec::new() };
        let format = format.replace("\\n", "").replace("\\t", " ");
        let mut rest = format.as_bytes();
        while let [byte, tail @ ..] = rest {
            let is_field = *byte == b'%' && tail.first() != Some(&b'%');
            if !is_field {
                rest = if *byte == b'%' { &tail[1..] } else { tail };
                let text = pattern.fields.last_mut().map_or(&mut pattern.first, |(_, text)| text);
                if !byte.is_ascii_whitespace() {
                    text.push(*byte);
                }
                continue;
            }
            let width = tail.iter().take_while(|b| b.is_ascii_digit() || **b == b'-').count();
            let letter = tail.get(width).copied().filter(|letter| LETTERS.contains(letter));
            let Some(letter) = letter else {
                return Err(format!("--columns {format}: % without one of blkparse's letters"));
            };
            pattern.fields.push((letter, Vec::new()));
            rest = &tail[width + 1..];
        }
        let has = |letter| pattern.fields.iter().any(|(l, _)| *l == letter);
        for (there, lacks) in [
            (has(b'T'), "%T, the time in seconds"),
            (has(b'd'), "%d, the operation"),
            (has(b'S'), "%S, the sector"),
            (has(b'n') || has(b'N'), "%n or %N, the length"),
        ] {
            if !there {
                return Err(format!("--columns {format}: without {lacks}, there are no requests"));
            }
        }
        Ok(pattern)
    }

    /// The event of a line. `None` for one that begins in another way: the summary.
    pub(super) fn event<'a>(&self, line: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        let mut c = Cursor::new(line);
        if text(&mut c, &self.first).is_err() {
            return Ok(None);
        }
        let mut event = Event {
            time_ns: 0,
            action: None,
            rwbs: (0, b""),
            extent: (0, 0, 0),
            device: b"",
            process: 0,
        };
        // From the major number to the minor one.
        let mut device = None;
        for (n, (letter, behind)) in self.fields.iter().enumerate() {
            c.at_end();
            let column = c.pos();
            let word = field(&mut c, *letter, behind.first().copied());
            let read = put(&mut event, *letter, (column, word));
            if matches!(letter, b'D' | b'M' | b'm') {
                let (from, _) = device.unwrap_or((column, 0));
                device = Some((from, c.pos()));
            }
            match read.and_then(|()| text(&mut c, behind)) {
                // The summary, or a message.
                Err(_) if n == 0 => return Ok(None),
                read => read?,
            }
        }
        event.device = device.map_or(b"", |(from, to)| &line[from..to]);
        Ok(Some(event))
    }
}

/// Puts a field into the event.
fn put<'a>(event: &mut Event<'a>, letter: u8, at: (usize, &'a [u8])) -> Result<(), Fault> {
    let (column, word) = at;
    let fault = |reason, expected| Fault { reason, column, expected, found: None };
    match letter {
        b'T' => {
            let ns = seconds(at)?.checked_add(event.time_ns);
            event.time_ns = ns.ok_or_else(|| fault(Reason::Overflow, "a time"))?;
        }
        b't' => {
            let ns = number(at, "nanoseconds")?.checked_add(event.time_ns);
            event.time_ns = ns.ok_or_else(|| fault(Reason::Overflow, "a time"))?;
        }
        b'S' => (event.extent.0, event.extent.1) = (column, number(at, "a sector number")?),
        b'n' => event.extent.2 = number(at, "a length in sectors")?,
        b'N' => event.extent.2 = number(at, "a length in bytes")?.div_ceil(512),
        b'p' => event.process = u32::try_from(number(at, "a process id")?).unwrap_or(0),
        b'M' | b'm' | b'c' | b's' => drop(number(at, "a number")?),
        b'D' if !is_device(word) => return Err(fault(Reason::Malformed, "a device such as 8,0")),
        // An action of two letters is none of a request's.
        b'a' => event.action = Some(if let [letter] = word { *letter } else { 0 }),
        b'd' if ops::rwbs(word).is_none() => return Err(fault(Reason::UnknownOp, RWBS)),
        b'd' => event.rwbs = at,
        _ => {}
    }
    Ok(())
}

/// The bytes of a field: up to a blank, or the text behind it.
fn field<'a>(c: &mut Cursor<'a>, letter: u8, behind: Option<u8>) -> &'a [u8] {
    let from = c.pos();
    let mut comma = letter == b'D';
    while let Some(byte) = c.peek() {
        let blank = byte == b' ' || byte == b'\t';
        let is_name = letter == b'C' && behind.is_some();
        if (blank && !is_name) || (Some(byte) == behind && !(comma && byte == b',')) {
            break;
        }
        comma &= byte != b',';
        c.skip();
    }
    c.since(from)
}

/// The text behind a field, with blanks anywhere.
fn text(c: &mut Cursor<'_>, text: &[u8]) -> Result<(), Fault> {
    for byte in text {
        c.sep(*byte, "the text that --columns has there")?;
    }
    Ok(())
}
