//! A bounded window over a byte stream: what all readers read through.

use std::io::{self, Read};

/// Bytes held at a time. Longer than any line or record that is accepted.
const WINDOW_BYTES: usize = 128 * 1024;

/// A stream seen through a window that never grows.
pub(super) struct Buffer {
    input: Box<dyn Read + Send>,
    window: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
    /// The rest of a line that was too long comes next.
    inside_line: bool,
    /// Bytes of the stream that lie before the window's start.
    offset: u64,
}

impl Buffer {
    /// A window on `input`.
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Buffer {
            input,
            window: vec![0; WINDOW_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ended: false,
            inside_line: false,
            offset: 0,
        }
    }

    /// Bytes that were read and not consumed.
    pub(super) fn held(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// The stream position of the first held byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Read more behind what is held. False when the stream has ended or the
    /// window is full.
    pub(super) fn more(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.window.len() {
            return Ok(false);
        }
        loop {
            match self.input.read(&mut self.window[self.end..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok(n) => {
                    // A reader that lies about its count must not make us panic.
                    self.end = (self.end + n).min(self.window.len());
                    return Ok(true);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Hold at least `n` bytes if the stream has them (`n` at most 64 KiB).
    /// Returns what is held, which is shorter only at the stream's end.
    pub(super) fn ensure(&mut self, n: usize) -> io::Result<&[u8]> {
        while self.end - self.start < n && self.more()? {}
        Ok(&self.window[self.start..self.end])
    }

    /// Move the window's start forward by `n` held bytes.
    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }

    /// Skip `n` bytes of the stream, held or not. Returns how many there were.
    pub(super) fn skip(&mut self, n: usize) -> io::Result<usize> {
        let mut left = n;
        while left > 0 {
            if self.start == self.end && !self.more()? {
                break;
            }
            let step = left.min(self.end - self.start);
            self.consume(step);
            left -= step;
        }
        Ok(n - left)
    }

    /// The next line without its end (`\n` or `\r\n`), `None` at the stream's
    /// end, `Some(None)` for a line of more than `bytes_max` bytes. The next call
    /// skips its rest: it may have no end, and who stops at the first bad line
    /// shall not wait for it.
    pub(super) fn line(&mut self, bytes_max: usize) -> io::Result<Option<Option<&[u8]>>> {
        if std::mem::take(&mut self.inside_line) {
            self.skip_line()?;
        }
        let mut searched = 0;
        let end = loop {
            if let Some(at) = memchr::memchr(b'\n', &self.held()[searched..]) {
                break searched + at;
            }
            searched = self.held().len();
            if searched > bytes_max + 1 {
                self.inside_line = true;
                return Ok(Some(None));
            }
            if !self.more()? {
                break self.held().len();
            }
        };
        if end == self.held().len() && end == 0 {
            return Ok(None);
        }
        let from = self.start;
        self.consume(end + 1);
        let line = &self.window[from..from + end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some((line.len() <= bytes_max).then_some(line)))
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', self.held()) {
                self.consume(at + 1);
                return Ok(());
            }
            self.consume(self.end - self.start);
            if !self.more()? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_across_short_reads_and_long_ones_are_skipped() {
        let text = [&b"ab\r\n\n"[..], &[b'x'; 300_000], b"\nlast"].concat();
        let mut buffer = Buffer::new(Box::new(io::Cursor::new(text)));
        assert_eq!(buffer.line(10).unwrap(), Some(Some(&b"ab"[..])));
        assert_eq!(buffer.line(10).unwrap(), Some(Some(&b""[..])));
        assert_eq!(buffer.line(10).unwrap(), Some(None));
        assert_eq!(buffer.line(10).unwrap(), Some(Some(&b"last"[..])));
        assert_eq!(buffer.line(10).unwrap(), None);
        assert_eq!(buffer.offset(), 300_010);
    }
}
