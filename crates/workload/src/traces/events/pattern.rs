//! Lines in a form of `blkparse -f`, which the user gives as it was given to blkparse:
//! `%T.%t %d %S %n`.

use super::{Event, RWBS, blkparse, is_device, number, seconds, words};
use crate::traces::cursor::{Cursor, Fault};
use crate::traces::error::Reason;
use crate::traces::once::Kind;
use crate::traces::ops;

/// The form, field by field.
pub(super) struct Pattern {
    /// Text in front of the first field.
    first: Vec<u8>,
    fields: Vec<Part>,
}

/// A field of the form.
struct Part {
    letter: u8,
    /// The text behind it without blanks.
    behind: Vec<u8>,
    /// Number of words after it.
    words: usize,
}

/// Letters of blkparse's fields.
const LETTERS: &[u8] = b"acCdDegMmNnpPsStTuUz";

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
                let text = pattern.fields.last_mut();
                let text = text.map_or(&mut pattern.first, |part| &mut part.behind);
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
            rest = &tail[width + 1..];
            let words = words(rest).count();
            pattern.fields.push(Part { letter, behind: Vec::new(), words });
        }
        let has = |letter| pattern.has(letter);
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

    fn has(&self, letter: u8) -> bool {
        self.fields.iter().any(|part| part.letter == letter)
    }

    /// Do the lines say which events they are?
    pub(super) fn says(&self) -> bool {
        self.has(b'a')
    }

    /// The event of a line. `None` for one of another kind, a message, and the summary.
    pub(super) fn event<'a>(&self, line: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        match self.read(line) {
            Ok(event) => Ok(Some(event).filter(|event| event.kind.is_some() || !self.says())),
            Err(_) if blkparse::is_aside(line) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn read<'a>(&self, line: &'a [u8]) -> Result<Event<'a>, Fault> {
        let mut c = Cursor::new(line);
        text(&mut c, &self.first)?;
        let mut event = Event {
            time_ns: 0,
            kind: None,
            rwbs: (0, b""),
            extent: (0, 0, 0),
            device: b"",
            process: 0,
            cpu: None,
            from: None,
        };
        // From the major number to the minor one.
        let mut device = None;
        for part in &self.fields {
            c.at_end();
            let column = c.pos();
            put(&mut event, part.letter, (column, field(&mut c, part, line)))?;
            if matches!(part.letter, b'D' | b'M' | b'm') {
                let (from, _) = device.unwrap_or((column, 0));
                device = Some((from, c.pos()));
            }
            text(&mut c, &part.behind)?;
        }
        event.device = device.map_or(b"", |(from, to)| &line[from..to]);
        Ok(event)
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
        b'c' => event.cpu = u32::try_from(number(at, "a CPU")?).ok(),
        b'M' | b'm' | b's' => drop(number(at, "a number")?),
        b'D' if !is_device(word) => return Err(fault(Reason::Malformed, "a device such as 8,0")),
        b'a' if !blkparse::ACTIONS.contains(&word) => {
            return Err(fault(Reason::UnknownOp, blkparse::ACTION));
        }
        b'a' => event.kind = Kind::of_letter(word),
        b'd' if ops::rwbs(word).is_none() => return Err(fault(Reason::UnknownOp, RWBS)),
        b'd' => event.rwbs = at,
        _ => {}
    }
    Ok(())
}

/// The bytes of a field: up to a blank, or the text behind it. The name of a process has blanks: it
/// goes up to the text, or leaves as many words as stand behind it.
fn field<'a>(c: &mut Cursor<'a>, part: &Part, line: &[u8]) -> &'a [u8] {
    let from = c.pos();
    let end = part.behind.first().copied();
    if part.letter == b'C' && end.is_none() {
        let words: Vec<_> = words(&line[from..]).collect();
        let last = words.len().checked_sub(part.words + 1).map(|last| words[last]);
        let end = last.map_or(from, |(at, word)| from + at + word.len());
        while c.pos() < end {
            c.skip();
        }
        return c.since(from);
    }
    let mut comma = part.letter == b'D';
    while let Some(byte) = c.peek() {
        let is_blank = byte == b' ' || byte == b'\t';
        let ends = Some(byte) == end && !(comma && byte == b',');
        if ends || (is_blank && part.letter != b'C') {
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
