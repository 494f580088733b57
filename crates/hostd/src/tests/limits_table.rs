//! Holds the table of limits in SECURITY.md to the code.

/// The row of the table that begins with `what` says `limit`.
pub fn says(what: &str, limit: &str) {
    let page = include_str!("../../../../SECURITY.md");
    let start = format!("| {what} | {limit} ");
    assert!(page.lines().any(|line| line.starts_with(&start)), "SECURITY.md: no row {start:?}");
}

/// A number as the table writes it.
pub fn number(n: usize) -> String {
    match n {
        0..1000 => n.to_string(),
        _ => format!("{},{:03}", n / 1000, n % 1000),
    }
}
