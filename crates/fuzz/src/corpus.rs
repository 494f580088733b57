//! Kept inputs: text files with one input a line, quoted and escaped as in Rust's
//! byte strings. That is also how a failing test prints its input. Lines that do
//! not begin with a quote are comments.

use std::fs;
use std::path::PathBuf;

/// The file of a target's kept inputs.
pub fn path(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{target}.txt"))
}

/// A target's kept inputs, those that found bugs first.
///
/// # Panics
/// A line is not an input.
pub fn kept(target: &str) -> Vec<Vec<u8>> {
    let files = [path(&format!("{target}.bugs")), path(target)];
    let text: String = files.map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
    let lines = text.lines().filter(|line| line.starts_with('"'));
    lines.map(|line| unescape(line).unwrap_or_else(|| panic!("{target}: {line}"))).collect()
}

/// The line of an input.
pub fn escape(input: &[u8]) -> String {
    format!("\"{}\"", input.escape_ascii())
}

/// The input of a line.
pub fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?.bytes();
    let mut input = Vec::new();
    while let Some(byte) = rest.next() {
        input.push(match (byte, byte == b'\\') {
            (byte, false) => byte,
            _ => match rest.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte @ (b'\\' | b'"' | b'\'') => byte,
                _ => return None,
            },
        });
    }
    Some(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)), Some(all));
        assert_eq!(unescape("\"\\q\""), None);
        assert_eq!(unescape("\"\\x4\""), None);
    }
}
