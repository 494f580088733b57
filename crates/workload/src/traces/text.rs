//! From a stream of bytes to parsed lines: what all text formats share.

use super::LINE_BYTES_MAX;
use super::buffer::Buffer;
use super::cursor::{Fault, quote};
use super::error::{Place, Reason};
use super::raw::{Decode, Raw, Step, Stop, Volumes};

/// The parser of one text format. It may remember what came before (a clock
/// that the lines advance, a header that has been seen).
pub(super) trait ParseLine: Send {
    /// The request that `line` (neither blank nor with its line end) holds,
    /// or `None` for a header or another line that is none.
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault>;
}

/// Lines of a stream through the parser of its format.
pub(super) struct TextDecoder {
    buffer: Buffer,
    parser: Box<dyn ParseLine>,
    line: u64,
}

impl TextDecoder {
    /// Decode `buffer` with `parser`.
    pub(super) fn new(buffer: Buffer, parser: Box<dyn ParseLine>) -> Self {
        TextDecoder { buffer, parser, line: 0 }
    }
}

impl Decode for TextDecoder {
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        let Some(line) = self.buffer.line(LINE_BYTES_MAX)? else { return Ok(Step::End) };
        self.line += 1;
        let Some(mut line) = line else {
            let fault = Fault {
                reason: Reason::LineTooLong,
                column: LINE_BYTES_MAX,
                expected: "a line of at most 4096 bytes",
                found: Some("a longer one".into()),
            };
            return Err(at(self.line, fault, b""));
        };
        if self.line == 1 {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.iter().all(|b| matches!(b, b' ' | b'\t')) {
            return Ok(Step::Ignored);
        }
        match self.parser.parse(line, volumes) {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => Err(at(self.line, fault, line)),
        }
    }
}

#[cold]
fn at(number: u64, mut fault: Fault, line: &[u8]) -> Stop {
    let column = fault.column.min(line.len());
    fault.found.get_or_insert_with(|| quote(&line[column..]));
    let place = Place::Line { line: number, column: fault.column as u64 + 1 };
    Stop::Record { fault, place }
}
