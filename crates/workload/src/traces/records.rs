//! Binary formats of records that all have the same size.

use super::Place;
use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::Reason;
use super::raw::{Decode, Raw, Step, Stop, Volumes};

/// Decodes such records.
pub(super) struct Records<P> {
    buffer: Buffer,
    size: usize,
    /// Expected text of a message about a record that the file's end cuts off.
    whole: &'static str,
    /// The request of a record; `None` for one of another kind.
    parse: P,
    number: u64,
}

impl<P> Records<P>
where
    P: Fn(&[u8], &mut Volumes) -> Result<Option<Raw>, Fault> + Send,
{
    pub(super) fn new(buffer: Buffer, size: usize, whole: &'static str, parse: P) -> Self {
        Records { buffer, size, whole, parse, number: 0 }
    }
}

impl<P> Decode for Records<P>
where
    P: Fn(&[u8], &mut Volumes) -> Result<Option<Raw>, Fault> + Send,
{
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        let offset = self.buffer.offset();
        let held = self.buffer.ensure(self.size)?;
        if held.is_empty() {
            return Ok(Step::End);
        }
        self.number += 1;
        let place = Place::Record { number: self.number, offset };
        let result = match held.get(..self.size) {
            Some(record) => (self.parse)(record, volumes),
            None => {
                let found = format!("{} bytes", held.len());
                Err(Fault::binary(Reason::Truncated, self.whole, found))
            }
        };
        self.buffer.consume(self.size);
        match result {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => Err(Stop::Record { fault, place }),
        }
    }
}
