//! A bounded window over a byte stream, for all readers, and the decoders of compressed streams.

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io;
use std::io::{BufRead, BufReader, Cursor, Read};

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

// Decompression, chosen by the first bytes and never by the file's name.
// All decoders stream, accept several members one after the other (as
// `cat a.gz b.gz` makes them) and are bounded in memory.

/// The largest window that is kept, in bytes: as `zstd -d` does without an option, and what
/// `zstd --long` asks for.
const ZSTD_WINDOW_MAX: u64 = 128 << 20;
/// The largest window that `zstd` makes and unpacks.
const ZSTD_LONGEST: u64 = 1 << 31;
/// The largest dictionary that is kept; `xz -9` has 64 MiB.
const XZ_DICTIONARY_MAX: u64 = 256 << 20;

/// Unpacking takes more memory than a trace may have.
#[derive(Debug, thiserror::Error)]
#[error("its {what} is larger than {most_mib} MiB")]
pub(super) struct TooLarge {
    /// "window of 2048 MiB".
    pub(super) what: String,
    /// Memory that the decoder may take, in MiB.
    pub(super) most_mib: u64,
    /// The command that unpacks it, without the file.
    pub(super) command: String,
}

impl From<TooLarge> for io::Error {
    fn from(error: TooLarge) -> Self {
        io::Error::new(io::ErrorKind::OutOfMemory, error)
    }
}

/// Compression of a stream.
#[derive(Clone, Copy)]
pub(super) struct Compression {
    /// As messages name it.
    pub(super) name: &'static str,
    /// The command that checks such a file.
    pub(super) check: &'static str,
    magic: &'static [u8],
    /// The number is how many bytes its window or dictionary may have.
    open: fn(Stream, u64) -> Box<dyn Read + Send>,
}

type Stream = BufReader<Box<dyn Read + Send>>;

const COMPRESSIONS: [Compression; 5] = [
    Compression { name: "gzip", check: "gzip -t", magic: b"\x1f\x8b\x08", open: gzip },
    Compression { name: "bzip2", check: "bzip2 -t", magic: b"BZh", open: bzip2 },
    Compression { name: "xz", check: "xz -t", magic: b"\xfd7zXZ\0", open: xz },
    Compression { name: "zstd", check: "zstd -t", magic: b"\x28\xb5\x2f\xfd", open: zstd },
    Compression { name: "zstd", check: "zstd -t", magic: b"\x50\x2a\x4d\x18", open: zstd },
];

/// Beginnings of files that are packed in other ways, with the command that unpacks each.
const FOREIGN: [(&[u8], &str, &str); 7] = [
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"\x04\x22\x4d\x18", "LZ4", "lz4 -dc"),
    (b"LZIP", "lzip", "lzip -dc"),
    (b"\x89LZO\0", "lzop", "lzop -dc"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z e -so"),
    (b"\x5d\0\0", "LZMA", "xz -dc"),
    (b"\x1f\x9d", "compress", "gzip -dc"),
];

/// Names the compression of a file that is no trace, and the command that unpacks it.
pub(super) fn foreign(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = FOREIGN.into_iter().find(|(magic, ..)| head.starts_with(magic));
    let found = found.map(|(_, name, command)| (name, command));
    found.or_else(|| is_tar(head).then_some(("tar", "tar -xOf")))
}

/// A text in it would be read from its second line on.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Finds the compression of a stream by its first bytes.
pub(super) fn packed(head: &[u8]) -> Option<Compression> {
    COMPRESSIONS.into_iter().find(|c| head.starts_with(c.magic))
}

/// Unpack `input` if it is packed, with a window of at most `window_max` bytes.
pub(super) fn unpack(
    mut input: Box<dyn Read + Send>,
    window_max: u64,
) -> io::Result<(Box<dyn Read + Send>, Option<Compression>)> {
    let mut head = [0u8; 6];
    let held = read_up_to(&mut *input, &mut head)?;
    let head = &head[..held];
    let compression = packed(head);
    let whole: Box<dyn Read + Send> = Box::new(Cursor::new(head.to_vec()).chain(input));
    Ok(match compression {
        Some(c) => ((c.open)(BufReader::with_capacity(64 << 10, whole), window_max), compression),
        None => (whole, None),
    })
}

/// Read until `to` is full or the stream ends.
pub(super) fn read_up_to(input: &mut dyn Read, to: &mut [u8]) -> io::Result<usize> {
    let mut held = 0;
    while held < to.len() {
        match input.read(&mut to[held..]) {
            Ok(0) => break,
            Ok(n) => held = (held + n).min(to.len()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(held)
}

fn gzip(stream: Stream, _: u64) -> Box<dyn Read + Send> {
    Box::new(Gzip { member: Some(GzDecoder::new(stream)) })
}

/// Members of gzip one after the other, and zeros behind one, as tapes pad them and `gzip` allows.
struct Gzip {
    /// `None` at the end.
    member: Option<GzDecoder<Stream>>,
}

impl Read for Gzip {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let n = member.read(out)?;
            if n > 0 || out.is_empty() {
                return Ok(n);
            }
            let mut stream = self.member.take().expect("it is read").into_inner();
            loop {
                let held = stream.fill_buf()?;
                let zeros = held.iter().take_while(|b| **b == 0).count();
                if zeros < held.len() {
                    stream.consume(zeros);
                    self.member = Some(GzDecoder::new(stream));
                    break;
                }
                if held.is_empty() {
                    break;
                }
                stream.consume(zeros);
            }
        }
        Ok(0)
    }
}

fn bzip2(stream: Stream, _: u64) -> Box<dyn Read + Send> {
    Box::new(bzip2::bufread::MultiBzDecoder::new(stream))
}

fn xz(stream: Stream, window_max: u64) -> Box<dyn Read + Send> {
    /// Memory of the decoder beside its dictionary, and some more.
    const OWN_KIB: u64 = 256;
    let most_mib = window_max.min(XZ_DICTIONARY_MAX) >> 20;
    let most_kib = (most_mib << 10) + OWN_KIB;
    let reader = lzma_rust2::XzReader::new_mem_limit(stream, true, most_kib as u32);
    Box::new(Xz { reader, most_mib })
}

/// Says of a dictionary that is too large what to do.
struct Xz {
    reader: lzma_rust2::XzReader<Stream>,
    most_mib: u64,
}

impl Read for Xz {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reader.read(out).map_err(|e| match e.kind() {
            io::ErrorKind::OutOfMemory => TooLarge {
                what: "dictionary".into(),
                most_mib: self.most_mib,
                command: "xz -d".into(),
            }
            .into(),
            _ => e,
        })
    }
}

fn zstd(stream: Stream, window_max: u64) -> Box<dyn Read + Send> {
    let window_max = window_max.min(ZSTD_WINDOW_MAX);
    Box::new(ZstdFrames { state: Zstd::Between(stream), window_max })
}

/// The `ruzstd` decoder ends with its frame: this one goes on to the next,
/// skips skippable frames and verifies the checksums.
struct ZstdFrames {
    state: Zstd,
    window_max: u64,
}

enum Zstd {
    Between(Stream),
    Inside(Box<Frame>),
    Ended,
}

struct Frame {
    stream: Stream,
    decoder: FrameDecoder,
}

impl Frame {
    /// Zero at the frame's end.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            self.decoder
                .decode_blocks(&mut self.stream, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
        self.decoder.read(out)
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, Zstd::Ended) {
                Zstd::Ended => return Ok(0),
                Zstd::Between(stream) => self.state = next_frame(stream, self.window_max)?,
                Zstd::Inside(mut frame) => {
                    let n = frame.read(out)?;
                    if n > 0 {
                        self.state = Zstd::Inside(frame);
                        return Ok(n);
                    }
                    let stored = frame.decoder.get_checksum_from_data();
                    if stored.is_some() && stored != frame.decoder.get_calculated_checksum() {
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "checksum mismatch",
                        ));
                    }
                    self.state = Zstd::Between(frame.stream);
                }
            }
        }
    }
}

fn next_frame(mut stream: Stream, window_max: u64) -> io::Result<Zstd> {
    if stream.fill_buf()?.is_empty() {
        return Ok(Zstd::Ended);
    }
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(window_max);
    match decoder.init(&mut stream) {
        Ok(()) => Ok(Zstd::Inside(Box::new(Frame { stream, decoder }))),
        Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
            length,
            ..
        })) => {
            let length = u64::from(length);
            if io::copy(&mut (&mut stream).take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Zstd::Between(stream))
        }
        // Larger ones than zstd itself can have are damage.
        Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) if requested <= ZSTD_LONGEST => {
            let log = requested.next_power_of_two().ilog2();
            Err(TooLarge {
                what: format!("window of {} MiB", requested.div_ceil(1 << 20)),
                most_mib: window_max >> 20,
                command: format!("zstd -d --long={log}"),
            }
            .into())
        }
        Err(e) => Err(io::Error::new(io::ErrorKind::InvalidData, e)),
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
