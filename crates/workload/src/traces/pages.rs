//! A page for each format: its columns with their units, and an example. They are written in
//! `pages.md`; a test reads the examples.

use std::sync::LazyLock;

/// A column of a text format, or a field of a binary one.
pub struct Column {
    /// As the format's own description calls it.
    pub name: &'static str,
    /// Its unit, or the values that it may have.
    pub unit: &'static str,
}

/// Description of a format, for users.
pub struct FormatPage {
    /// The format's name.
    pub(super) format: &'static str,
    /// In the order of the file.
    pub columns: &'static [Column],
    /// The beginning of such a trace; for binary formats a command.
    pub example: &'static str,
    /// Further facts that a user needs, in whole sentences; may be empty.
    pub more: &'static str,
}

static PAGES: LazyLock<Vec<FormatPage>> = LazyLock::new(|| {
    let sections = include_str!("pages.md").split("\n### ").skip(1);
    sections
        .map(|text| FormatPage::read(text).expect("a page has a table and an example"))
        .collect()
});

impl FormatPage {
    pub(super) fn of(format: &str) -> Option<&'static FormatPage> {
        PAGES.iter().find(|page| page.format == format)
    }

    /// Takes a section apart: name, table of columns, example, the rest.
    fn read(section: &'static str) -> Option<FormatPage> {
        let (format, rest) = section.split_once("\n\n")?;
        let (table, rest) = rest.split_once("\n\n```text\n")?;
        let (example, more) = rest.split_once("\n```\n")?;
        let rows = table.lines().skip(2).map(|row| {
            let (name, unit) = row.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
            Some(Column { name, unit })
        });
        // They live as long as the program: no page is made twice.
        let columns = rows.collect::<Option<Vec<_>>>()?.leak();
        Some(FormatPage { format, columns, example, more: more.trim() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, TraceOptions, TraceReader};
    use super::FormatPage;
    use std::io::Cursor;

    #[test]
    fn every_format_has_a_page_and_its_example_is_read() {
        for format in Format::all() {
            let page = FormatPage::of(format.name()).unwrap_or_else(|| panic!("{format}: no page"));
            assert!(!page.columns.is_empty() && !page.example.is_empty(), "{format}");
            if format.parser().is_none() {
                continue;
            }
            let text = format!("{}\n", page.example).into_bytes();
            let options = TraceOptions { format: Some(format), ..TraceOptions::default() };
            let reader =
                TraceReader::from_read(format.name(), Box::new(Cursor::new(text)), &options);
            let requests = reader.unwrap().map(Result::unwrap).count();
            assert!(requests >= 2, "{format}: {requests} requests");
        }
    }
}
