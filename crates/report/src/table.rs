//! A table of results, rendered as terminal text, CSV, Markdown and (by [`crate::html`]) HTML.

mod text;

use crate::number;
use crate::number::ABSENT;
use std::io;
pub use text::TextOptions;

/// Rows of cells under named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Printed above; may be empty.
    pub title: String,
    /// At least one, or nothing is printed.
    pub columns: Vec<Column>,
    /// A short row reads as if filled up with [`Cell::Absent`]; surplus cells are not shown.
    pub rows: Vec<Vec<Cell>>,
    /// Printed below, one paragraph each.
    pub notes: Vec<String>,
}

/// The heading of a column and the alignment of its cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Heading without the unit.
    pub name: String,
    /// Numbers to the right, words to the left.
    pub align: Align,
    /// Empty when there is none.
    pub unit: String,
}

/// Alignment of a cell's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// Flush left, as words are.
    #[default]
    Left,
    /// Flush right, as numbers are.
    Right,
}

/// One value of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// Not measured, not defined: shown as an en dash, empty in CSV.
    #[default]
    Absent,
    /// Words; a table that is too wide for the terminal wraps them.
    Text(String),
    /// A whole number: `12,345`.
    Count(u64),
    /// A measured number, rounded alike with the others of its column; absent if not finite.
    Number(f64),
    /// A part of one, shown in per cent: 0.774 → `77.4 %`.
    Share(f64),
    /// A relative change, shown in per cent with its sign: -0.36 → `-36.0 %`.
    Change(f64),
    /// A factor: 1.6 → `1.60×`.
    Ratio(f64),
    /// A word to be judged at a glance, such as a verdict.
    Badge {
        text: String,
        /// Its colour, where colours are shown.
        tone: Tone,
    },
}

/// Judgement of a cell, shown as its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Neither good nor bad: without a colour.
    #[default]
    Plain,
    /// As wanted: green on a terminal.
    Good,
    /// Wanted in part: yellow on a terminal.
    Fair,
    /// Not as wanted: red on a terminal.
    Bad,
}

impl Table {
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When the number of cells is not that of the columns: a mistake in the caller.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = row.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "one cell for each column of {:?}", self.title);
        self.rows.push(row);
    }

    /// Aligned text for a terminal, ending in a line feed; see [`TextOptions`].
    pub fn to_text(&self, options: TextOptions) -> String {
        text::render(self, options)
    }

    /// Comma-separated values: headings, then full-precision numbers, shares as parts of one.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_csv(&self, writer: impl io::Write) -> io::Result<()> {
        let mut csv = csv::Writer::from_writer(writer);
        csv.write_record(self.columns.iter().map(Column::heading))?;
        for row in 0..self.rows.len() {
            csv.write_record((0..self.columns.len()).map(|column| self.cell(row, column).raw()))?;
        }
        csv.flush()
    }

    /// A GitHub-flavoured Markdown table, with the title in bold above.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            out += &format!("**{}**\n\n", markdown_escaped(&self.title));
        }
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        out += &line(self.columns.iter().map(|c| markdown_escaped(&c.heading())).collect());
        out += &line(self.columns.iter().map(|c| c.align.markdown_rule().to_owned()).collect());
        for row in self.shown() {
            out += &line(row.iter().map(|cell| markdown_escaped(cell)).collect());
        }
        for note in &self.notes {
            out += &format!("\n{}\n", markdown_escaped(note));
        }
        out
    }

    /// Every cell as a person reads it, in full rows.
    pub(crate) fn shown(&self) -> Vec<Vec<String>> {
        let decimals: Vec<usize> = (0..self.columns.len()).map(|c| self.decimals(c)).collect();
        let show = |row, column: usize| self.cell(row, column).shown(decimals[column]);
        (0..self.rows.len())
            .map(|row| (0..self.columns.len()).map(|column| show(row, column)).collect())
            .collect()
    }

    pub(crate) fn cell(&self, row: usize, column: usize) -> &Cell {
        self.rows[row].get(column).unwrap_or(&Cell::Absent)
    }

    fn decimals(&self, column: usize) -> usize {
        number::column_decimals((0..self.rows.len()).filter_map(
            |row| match self.cell(row, column) {
                Cell::Number(value) => Some(*value),
                _ => None,
            },
        ))
    }
}

impl Column {
    /// A column of words.
    pub fn text(name: impl Into<String>) -> Column {
        Column { name: name.into(), align: Align::Left, unit: String::new() }
    }

    /// A column of numbers; `unit` may be empty.
    pub fn number(name: impl Into<String>, unit: impl Into<String>) -> Column {
        Column { name: name.into(), align: Align::Right, unit: unit.into() }
    }

    /// The name with the unit in brackets, as `p99 (ms)`.
    pub fn heading(&self) -> String {
        match (self.name.as_str(), self.unit.as_str()) {
            (name, "") => name.to_owned(),
            ("", unit) => unit.to_owned(),
            (name, unit) => format!("{name} ({unit})"),
        }
    }
}

impl Align {
    fn markdown_rule(self) -> &'static str {
        match self {
            Align::Left => ":--",
            Align::Right => "--:",
        }
    }
}

impl Cell {
    /// A word with a tone.
    pub fn badge(text: impl Into<String>, tone: Tone) -> Cell {
        Cell::Badge { text: text.into(), tone }
    }

    pub(crate) fn tone(&self) -> Tone {
        match self {
            Cell::Badge { tone, .. } => *tone,
            _ => Tone::Plain,
        }
    }

    /// The cell's number at full precision, by which HTML tables are sorted: `None` if it has none
    /// or is not finite.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Cell::Absent | Cell::Text(_) | Cell::Badge { .. } => None,
            Cell::Count(value) => Some(value as f64),
            Cell::Number(v) | Cell::Share(v) | Cell::Change(v) | Cell::Ratio(v) => Some(v),
        }
        .filter(|value| value.is_finite())
    }

    fn shown(&self, decimals: usize) -> String {
        match self {
            Cell::Absent => ABSENT.to_owned(),
            Cell::Text(text) | Cell::Badge { text, .. } => text.clone(),
            Cell::Count(value) => number::count(*value),
            Cell::Number(value) => number::in_column(*value, decimals),
            Cell::Share(v) | Cell::Change(v) | Cell::Ratio(v) if !v.is_finite() => {
                ABSENT.to_owned()
            }
            Cell::Share(value) => format!("{} %", number::fixed(value * 100.0, 1)),
            Cell::Change(value) => {
                let shown = number::fixed(value * 100.0, 1);
                let sign = if shown.starts_with('-') || shown == "0.0" { "" } else { "+" };
                format!("{sign}{shown} %")
            }
            Cell::Ratio(value) => format!("{}×", number::fixed(*value, 2)),
        }
    }

    fn raw(&self) -> String {
        match self {
            Cell::Absent => String::new(),
            Cell::Text(text) | Cell::Badge { text, .. } => text.clone(),
            Cell::Count(value) => value.to_string(),
            Cell::Number(v) | Cell::Share(v) | Cell::Change(v) | Cell::Ratio(v) => {
                if v.is_finite() { v.to_string() } else { String::new() }
            }
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Cell {
        Cell::Text(text.clone())
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::Number(value)
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Count(value)
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Cell {
        Cell::Count(value.into())
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Cell {
        Cell::Count(value as u64)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Absent, Into::into)
    }
}

/// A name may not become markup, a link or a second row.
fn markdown_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

// Tables that are filled column by column: a heading is beside the expression for its cells.

/// A table in the making, from [`Table::of`].
pub struct Rows<'a, T> {
    table: Table,
    rows: Vec<&'a T>,
}

impl Table {
    /// A table with a line for each of `rows`; its columns follow, one call each.
    ///
    /// ```
    /// use seekway_report::Table;
    ///
    /// let rates = [("cfq", 29.3), ("noop", 18.1)];
    /// let table = Table::of("Bandwidth", &rates)
    ///     .text("policy", |row| row.0)
    ///     .number("rate", "MiB/s", |row| row.1)
    ///     .done();
    /// assert_eq!((table.columns.len(), table.rows.len()), (2, 2));
    /// ```
    pub fn of<'a, T>(
        title: impl Into<String>,
        rows: impl IntoIterator<Item = &'a T>,
    ) -> Rows<'a, T> {
        let rows: Vec<&T> = rows.into_iter().collect();
        let mut table = Table::new(title, Vec::new());
        table.rows.resize_with(rows.len(), Vec::new);
        Rows { table, rows }
    }
}

impl<'a, T> Rows<'a, T> {
    /// A column of words.
    pub fn text<C: Into<Cell>>(
        self,
        name: impl Into<String>,
        cell: impl FnMut(&'a T) -> C,
    ) -> Rows<'a, T> {
        self.column(Column::text(name), cell)
    }

    /// A column of numbers; `unit` may be empty.
    pub fn number<C: Into<Cell>>(
        self,
        name: impl Into<String>,
        unit: impl Into<String>,
        cell: impl FnMut(&'a T) -> C,
    ) -> Rows<'a, T> {
        self.column(Column::number(name, unit), cell)
    }

    fn column<C: Into<Cell>>(
        mut self,
        column: Column,
        mut cell: impl FnMut(&'a T) -> C,
    ) -> Rows<'a, T> {
        self.table.columns.push(column);
        for (line, row) in self.table.rows.iter_mut().zip(&self.rows) {
            line.push(cell(row).into());
        }
        self
    }

    /// More columns, if there is a reason to show them.
    pub fn when(self, shown: bool, columns: impl FnOnce(Self) -> Self) -> Rows<'a, T> {
        if shown { columns(self) } else { self }
    }

    /// A column, or several, for each of `items`.
    pub fn each<I>(
        self,
        items: impl IntoIterator<Item = I>,
        columns: impl FnMut(Self, I) -> Self,
    ) -> Rows<'a, T> {
        items.into_iter().fold(self, columns)
    }

    /// Paragraphs below the table.
    pub fn notes<N: Into<String>>(mut self, notes: impl IntoIterator<Item = N>) -> Rows<'a, T> {
        self.table.notes.extend(notes.into_iter().map(Into::into));
        self
    }

    /// A paragraph below the table.
    pub fn note(self, note: impl Into<String>) -> Rows<'a, T> {
        self.notes([note])
    }

    /// The table, with all columns.
    pub fn done(self) -> Table {
        self.table
    }
}
