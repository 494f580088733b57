//! Parsing one line of a text format, byte by byte and in one pass.

use super::error::Reason;

/// Why a record is unusable, before file and line are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    /// Byte in the line, from zero; unused by binary formats.
    pub(super) column: usize,
    pub(super) expected: &'static str,
    /// Found value; `None` lets the text decoder quote the line.
    pub(super) found: Option<String>,
}

impl Fault {
    /// A fault of a binary record.
    pub(super) fn binary(reason: Reason, expected: &'static str, found: String) -> Self {
        Fault { reason, column: 0, expected, found: Some(found) }
    }
}

/// A position in a line.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    line: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `line`, past leading blanks.
    pub(super) fn new(line: &'a [u8]) -> Self {
        let mut cursor = Cursor { line, pos: 0 };
        cursor.blanks();
        cursor
    }

    /// The next byte, if any.
    pub(super) fn peek(&self) -> Option<u8> {
        self.line.get(self.pos).copied()
    }

    /// Bytes from the line's start.
    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The line's bytes from `from` up to here.
    pub(super) fn since(&self, from: usize) -> &'a [u8] {
        &self.line[from.min(self.pos)..self.pos]
    }

    /// Past the next byte.
    pub(super) fn skip(&mut self) {
        self.pos += usize::from(self.pos < self.line.len());
    }

    /// Nothing but blanks is left.
    pub(super) fn at_end(&mut self) -> bool {
        self.blanks();
        self.pos == self.line.len()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.pos += 1;
        }
    }

    /// A fault at the current position; the byte there decides between
    /// missing, binary, negative and malformed.
    #[cold]
    pub(super) fn fault(&self, expected: &'static str) -> Fault {
        let reason = match self.peek() {
            None => Reason::Missing,
            Some(b'-') => Reason::Negative,
            Some(b) if !(0x20..0x7f).contains(&b) && b != b'\t' => Reason::Binary,
            Some(_) => Reason::Malformed,
        };
        self.fault_at(self.pos, reason, expected)
    }

    /// A fault of kind `reason` at byte `column`.
    #[cold]
    pub(super) fn fault_at(&self, column: usize, reason: Reason, expected: &'static str) -> Fault {
        Fault { reason, column, expected, found: None }
    }

    /// An unsigned decimal integer.
    #[inline]
    pub(super) fn u64(&mut self, expected: &'static str) -> Result<u64, Fault> {
        let start = self.pos;
        let Some(value) = self.digits(0, 0, usize::MAX) else {
            return Err(self.fault_at(start, Reason::Overflow, expected));
        };
        if self.pos == start || self.peek().is_some_and(continues_number) {
            return Err(self.fault(expected));
        }
        Ok(value)
    }

    /// A decimal number with an optional fraction, in units of 10^-`scale`
    /// of its own unit (seconds with scale 9 give nanoseconds); further
    /// digits are cut off.
    #[inline]
    pub(super) fn decimal(&mut self, scale: usize, expected: &'static str) -> Result<u64, Fault> {
        let start = self.pos;
        let mut value = self.digits(0, 0, usize::MAX);
        let digits = self.pos - start;
        let mut left = scale;
        if self.peek() == Some(b'.') && digits > 0 {
            self.pos += 1;
            let point = self.pos;
            value = value.and_then(|v| self.digits(v, digits, scale));
            left -= self.pos - point;
            while self.peek().is_some_and(|b| b.is_ascii_digit()) {
                self.pos += 1;
            }
        }
        if value.is_some() && (digits == 0 || self.peek().is_some_and(continues_number)) {
            return Err(self.fault(expected));
        }
        value
            .and_then(|v| v.checked_mul(10u64.pow(left as u32)))
            .ok_or_else(|| self.fault_at(start, Reason::Overflow, expected))
    }

    /// Append up to `most` digits to `value`, which has `used` digits already.
    /// `None` when it overflows.
    #[inline]
    fn digits(&mut self, mut value: u64, used: usize, most: usize) -> Option<u64> {
        let rest = &self.line[self.pos..];
        let mut count = 0;
        for byte in rest.iter().take(most) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            // Nineteen digits cannot overflow; only beyond do we check.
            value = if used + count < 19 {
                value * 10 + u64::from(digit)
            } else {
                value.checked_mul(10)?.checked_add(u64::from(digit))?
            };
            count += 1;
        }
        self.pos += count;
        Some(value)
    }

    /// The separator `byte`, blanks around it allowed.
    #[inline]
    pub(super) fn sep(&mut self, byte: u8, expected: &'static str) -> Result<(), Fault> {
        self.blanks();
        if self.peek() != Some(byte) {
            return Err(self.fault(expected));
        }
        self.pos += 1;
        self.blanks();
        Ok(())
    }

    /// At least one blank.
    #[inline]
    pub(super) fn space(&mut self, expected: &'static str) -> Result<(), Fault> {
        if !matches!(self.peek(), Some(b' ' | b'\t')) {
            return Err(self.fault(expected));
        }
        self.blanks();
        Ok(())
    }

    /// Printable bytes up to `until`, a blank or the line's end; not empty.
    #[inline]
    pub(super) fn word(&mut self, until: u8, expected: &'static str) -> Result<&'a [u8], Fault> {
        let start = self.pos;
        while let Some(b) = self.peek() {
            if b == until || b == b' ' || b == b'\t' {
                break;
            }
            if b < 0x20 || b == 0x7f {
                return Err(self.fault(expected));
            }
            self.pos += 1;
        }
        if self.pos == start {
            return Err(self.fault(expected));
        }
        Ok(&self.line[start..self.pos])
    }

    /// Nothing may follow but blanks.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        if self.at_end() { Ok(()) } else { Err(self.fault("the end of the line")) }
    }
}

/// Bytes that make a number behind which they stand another kind of number.
const fn continues_number(byte: u8) -> bool {
    matches!(byte, b'.' | b'A'..=b'Z' | b'a'..=b'z')
}

/// `bytes` as text for a message: escaped, at most 32 of them.
pub(super) fn quote(bytes: &[u8]) -> String {
    const SHOWN: usize = 32;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let dots = if bytes.len() > SHOWN { "…" } else { "" };
    if bytes.is_empty() {
        "the end of the line".into()
    } else {
        format!("`{}{dots}`", shown.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Result<u64, Reason> {
        Cursor::new(text.as_bytes()).decimal(9, "x").map_err(|f| f.reason)
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let int = |text: &str| Cursor::new(text.as_bytes()).u64("x").map_err(|f| f.reason);
        assert_eq!(int("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(int("000000000000000000000000007"), Ok(7));
        assert_eq!(int("18446744073709551616"), Err(Reason::Overflow));
        assert_eq!(int("-1"), Err(Reason::Negative));
        assert_eq!(int("1.5"), Err(Reason::Malformed));
        assert_eq!(int("\0"), Err(Reason::Binary));
        assert_eq!(int(""), Err(Reason::Missing));
        assert_eq!(decimal("1455591804.310701"), Ok(1_455_591_804_310_701_000));
        assert_eq!(decimal("0.0000000019"), Ok(1));
        assert_eq!(decimal("7"), Ok(7_000_000_000));
        assert_eq!(decimal("99999999999999"), Err(Reason::Overflow));
        assert_eq!(decimal(".5"), Err(Reason::Malformed));
        assert_eq!(decimal("1e5"), Err(Reason::Malformed));
    }
}
