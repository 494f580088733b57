//! A line's fields where only the separator is known (RFC 4180's quotes, tabs, semicolons, runs
//! of blanks), and numbers as spreadsheets and data frames write them: `4096.0`, `1.5e-05`, `0x10`.

use super::cursor::Fault;
use super::error::Reason;

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
