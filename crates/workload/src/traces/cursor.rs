//! Parsing one line of a text format: byte by byte and in one pass, or field by field where only
//! the separator is known.

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

// A line's fields where only the separator is known (RFC 4180's quotes, tabs, semicolons, runs
// of blanks), and numbers as spreadsheets and data frames write them: `4096.0`, `1.5e-05`, `0x10`.

/// Separator of two fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Separator {
    /// One byte: each makes a field.
    Byte(u8),
    /// Runs of blanks and tabs.
    Blanks,
}

impl Separator {
    /// All, in the order in which a header is tried with them.
    pub(super) const ALL: [Separator; 5] = [
        Separator::Byte(b','),
        Separator::Byte(b'\t'),
        Separator::Byte(b';'),
        Separator::Byte(b'|'),
        Separator::Blanks,
    ];
}

/// One field: its bytes without blanks and quotes around them, and its column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub(super) column: usize,
    pub(super) bytes: &'a [u8],
}

fn fault(column: usize, reason: Reason, expected: &'static str) -> Fault {
    Fault { reason, column, expected, found: None }
}

impl<'a> Field<'a> {
    /// A fault in this field; an empty one lacks.
    pub(super) fn fault(&self, expected: &'static str) -> Fault {
        let reason = match self.bytes.first() {
            None => Reason::Missing,
            Some(b'-') => Reason::Negative,
            Some(b) if !(0x20..0x7f).contains(b) => Reason::Binary,
            Some(_) => Reason::Malformed,
        };
        fault(self.column, reason, expected)
    }

    /// A fault of this kind in this field.
    pub(super) fn fault_of(&self, reason: Reason, expected: &'static str) -> Fault {
        fault(self.column, reason, expected)
    }

    /// The number, times `by`, times ten to the power of `scale`. Smaller parts are cut off if
    /// `cut`, else refused.
    pub(super) fn scaled(
        &self,
        (by, scale): (u64, u32),
        cut: bool,
        expected: &'static str,
    ) -> Result<u64, Fault> {
        let (digits, power) = number(self.bytes).ok_or_else(|| match self.bytes {
            [b'0'..=b'9', .., b'0'..=b'9'] if self.bytes.contains(&b',') => {
                self.fault("a number without a comma: a fraction stands behind a point")
            }
            _ => self.fault(expected),
        })?;
        let power = power + scale as i32;
        let overflow = || self.fault_of(Reason::Overflow, expected);
        let value = digits.checked_mul(by.into()).ok_or_else(overflow)?;
        let ten = |power: u32| 10_u128.checked_pow(power);
        let value = match u32::try_from(power) {
            _ if value == 0 => 0,
            Ok(power) => ten(power).and_then(|t| value.checked_mul(t)).ok_or_else(overflow)?,
            Err(_) => match ten(power.unsigned_abs()) {
                Some(t) if cut || value.is_multiple_of(t) => value / t,
                None if cut => 0,
                _ => return Err(self.fault(expected)),
            },
        };
        u64::try_from(value).map_err(|_| overflow())
    }

    /// A whole number.
    pub(super) fn whole(&self, expected: &'static str) -> Result<u64, Fault> {
        self.scaled((1, 0), false, expected)
    }
}

/// A decimal number as its digits and a power of ten; or a hexadecimal one behind `0x`.
fn number(text: &[u8]) -> Option<(u128, i32)> {
    // More digits than any time has; further ones of a fraction are cut off.
    const DIGITS_MAX: usize = 30;
    if let [b'0', b'x' | b'X', digits @ ..] = text {
        let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() <= 16)?;
        let whole = digits.bytes().all(|b| b.is_ascii_hexdigit());
        return Some((u128::from_str_radix(digits, 16).ok().filter(|_| whole)?, 0));
    }
    let (mut value, mut power, mut digits, mut point) = (0_u128, 0_i32, 0, false);
    let mut rest = text.strip_prefix(b"+").unwrap_or(text);
    while let [first, tail @ ..] = rest {
        match first {
            b'0'..=b'9' => {
                let room = value == 0 || digits < DIGITS_MAX;
                if room {
                    value = value * 10 + u128::from(first - b'0');
                }
                digits += usize::from(value > 0);
                power += i32::from(!room) - i32::from(point);
            }
            b'.' if !point => point = true,
            b'e' | b'E' => break,
            _ => return None,
        }
        rest = tail;
    }
    if !text.iter().any(u8::is_ascii_digit) || matches!(text.first(), Some(b'e' | b'E')) {
        return None;
    }
    if let [_, exponent @ ..] = rest {
        let exponent = std::str::from_utf8(exponent).ok()?.parse::<i32>().ok()?;
        power = power.checked_add(exponent).filter(|p| p.abs() < 1000)?;
    }
    Some((value, power))
}

/// Puts the fields of `line` into `fields`. One empty field behind the last separator is none: a
/// comma too many at the lines' ends.
pub(super) fn split<'a>(
    line: &'a [u8],
    separator: Separator,
    fields: &mut Vec<Field<'a>>,
) -> Result<(), Fault> {
    fields.clear();
    let mut at = 0;
    let blank = |b: u8| b == b' ' || (b == b'\t' && separator != Separator::Byte(b'\t'));
    loop {
        while line.get(at).is_some_and(|b| blank(*b)) {
            at += 1;
        }
        let Some(first) = line.get(at) else { break };
        let (from, to);
        if *first == b'"' {
            from = at + 1;
            to = closing_quote(line, from)
                .ok_or_else(|| fault(at, Reason::Malformed, "a quote that ends the field"))?;
            at = to + 1;
        } else {
            from = at;
            let ends = |b: &u8| match separator {
                Separator::Byte(byte) => *b == byte,
                Separator::Blanks => blank(*b),
            };
            at += line[at..].iter().position(ends).unwrap_or(line.len() - at);
            to = at;
        }
        fields.push(Field { column: from, bytes: line[from..to].trim_ascii() });
        let Separator::Byte(byte) = separator else { continue };
        while line.get(at).is_some_and(|b| blank(*b)) {
            at += 1;
        }
        match line.get(at) {
            None => break,
            Some(b) if *b == byte => at += 1,
            Some(_) => return Err(fault(at, Reason::Malformed, "a separator behind the quote")),
        }
    }
    Ok(())
}

/// As [`split`], but what is empty behind the last separator is a field where one of `needs` lacks.
pub(super) fn split_to<'a>(
    line: &'a [u8],
    separator: Separator,
    needs: usize,
    fields: &mut Vec<Field<'a>>,
) -> Result<(), Fault> {
    split(line, separator, fields)?;
    let last = line.iter().rfind(|b| **b != b' ');
    if fields.len() + 1 == needs && last.is_some_and(|b| separator == Separator::Byte(*b)) {
        fields.push(Field { column: line.len(), bytes: b"" });
    }
    Ok(())
}

/// Where a quote ends the field that begins at `from`; two quotes are one of the text.
fn closing_quote(line: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += line.get(at..)?.iter().position(|b| *b == b'"')?;
        if line.get(at + 1) != Some(&b'"') {
            return Some(at);
        }
        at += 2;
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

#[cfg(test)]
mod fields_tests {
    use super::*;

    #[test]
    fn lines_are_split_as_their_separator_says() {
        let split = |line: &'static str, separator| {
            let mut fields = Vec::new();
            split(line.as_bytes(), separator, &mut fields)
                .map(|()| fields.iter().map(|f| f.bytes.escape_ascii().to_string()).collect())
                .map_err(|f| f.column)
        };
        let texts = |texts: &[&str]| Ok(texts.iter().map(|t| t.to_string()).collect::<Vec<_>>());
        let comma = Separator::Byte(b',');
        assert_eq!(split("1, \"a,b\" ,\"\",,2,", comma), texts(&["1", "a,b", "", "", "2"]));
        assert_eq!(split("1,2,,", comma), texts(&["1", "2", ""]));
        assert_eq!(split("a\t\tb c", Separator::Byte(b'\t')), texts(&["a", "", "b c"]));
        assert_eq!(split("  a\t b  c ", Separator::Blanks), texts(&["a", "b", "c"]));
        assert_eq!(split("1,\"a", comma), Err(2));
        assert_eq!(split("\"a\"b,2", comma), Err(3));
        assert_eq!(split("", comma), texts(&[]));
    }

    #[test]
    fn numbers_of_spreadsheets_and_data_frames() {
        let scaled = |text: &'static str, by, scale, cut| {
            let field = Field { column: 0, bytes: text.as_bytes() };
            field.scaled((by, scale), cut, "x").map_err(|fault| fault.reason)
        };
        assert_eq!(scaled("1.5e-05", 1, 9, true), Ok(15_000));
        assert_eq!(scaled("128166385295514663", 1, 2, true), Ok(12_816_638_529_551_466_300));
        assert_eq!(scaled("1455591804.310701000", 1, 9, true), Ok(1_455_591_804_310_701_000));
        assert_eq!(scaled("0.0000000019", 1, 9, true), Ok(1));
        assert_eq!(scaled("4096.0", 1, 0, false), Ok(4096));
        assert_eq!(scaled("0x10", 512, 0, false), Ok(8192));
        assert_eq!(scaled(".5", 1024, 0, false), Ok(512));
        assert_eq!(scaled("1E3", 1, 0, false), Ok(1000));
        assert_eq!(scaled("0e999", 1, 0, false), Ok(0));
        assert_eq!(scaled("4096.5", 1, 0, false), Err(Reason::Malformed));
        assert_eq!(scaled("-1", 1, 0, false), Err(Reason::Negative));
        assert_eq!(scaled("", 1, 0, false), Err(Reason::Missing));
        assert_eq!(scaled("1e999", 1, 0, true), Err(Reason::Overflow));
        assert_eq!(scaled("18446744073709551616", 1, 0, true), Err(Reason::Overflow));
        assert_eq!(scaled(&"9".repeat(60).leak()[..], 1, 0, true), Err(Reason::Overflow));
        for none in ["e5", "1e", "1.2.3", "0x", "1 2", ".", "nan", "1,5", "0x+1"] {
            assert_eq!(scaled(none, 1, 9, true), Err(Reason::Malformed), "{none}");
        }
    }
}
