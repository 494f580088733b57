//! A table of results, rendered as terminal text, CSV, Markdown and (by [`crate::html`]) HTML.

use crate::number::{self, ABSENT};
use crate::rank::{Better, EQUAL_WITHIN, best};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use unicode_width::UnicodeWidthStr as _;

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
    /// Row and column of each cell that [`Table::mark_best`] has marked.
    pub(crate) best: BTreeSet<(usize, usize)>,
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
    /// A time in ms with three significant digits, whatever the others of its column have.
    Time(f64),
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
        Table { title: title.into(), columns, ..Table::default() }
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
        render(self, options)
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

    /// Marks the best cells of columns that `better` knows: `Less` if less is better. Rows are
    /// compared that have all leading words but the last in common: of a VM's rows, one a policy,
    /// the best policy. Where all are equal, none is marked. A row with nothing where more is better
    /// has nothing to be good at.
    pub fn mark_best(&mut self, better: impl Fn(&Column) -> Option<Better>) {
        let better: Vec<Option<Better>> = self.columns.iter().map(better).collect();
        let is_nothing = |(column, better): (usize, &Option<Better>), row| {
            *better == Some(Better::More) && self.cell(row, column).number() == Some(0.0)
        };
        let idle: Vec<bool> = (0..self.rows.len())
            .map(|row| better.iter().enumerate().any(|column| is_nothing(column, row)))
            .collect();
        let mut groups: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
        for (row, cells) in self.shown().into_iter().enumerate() {
            let common = cells.into_iter().take(self.leading_words().saturating_sub(1));
            groups.entry(common.collect()).or_default().push(row);
        }
        for (column, better) in better.into_iter().enumerate() {
            let Some(better) = better else { continue };
            for rows in groups.values() {
                let number = |row: usize| self.cell(row, column).number();
                let value = |row: &usize| number(*row).filter(|_| !idle[*row]);
                let values: Vec<Option<f64>> = rows.iter().map(value).collect();
                let marked = best(&values, better);
                if marked.len() < values.iter().flatten().count() {
                    self.best.extend(marked.into_iter().map(|n| (rows[n], column)));
                }
            }
        }
    }

    /// Number of columns of words before the first number, which say what a row is about.
    fn leading_words(&self) -> usize {
        self.columns.iter().take_while(|column| column.align == Align::Left).count()
    }

    /// Colour of a cell.
    pub(crate) fn tone(&self, row: usize, column: usize) -> Tone {
        let is_best = self.best.contains(&(row, column));
        if is_best { Tone::Good } else { self.cell(row, column).tone() }
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
            Cell::Number(v) | Cell::Time(v) | Cell::Share(v) | Cell::Change(v) | Cell::Ratio(v) => {
                Some(v)
            }
        }
        .filter(|value| value.is_finite())
    }

    fn shown(&self, decimals: usize) -> String {
        match self {
            Cell::Absent => ABSENT.to_owned(),
            Cell::Text(text) | Cell::Badge { text, .. } => text.clone(),
            Cell::Count(value) => number::count(*value),
            Cell::Number(value) => number::in_column(*value, decimals),
            Cell::Time(value) => number::time_cell(*value),
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
            Cell::Number(v) | Cell::Time(v) | Cell::Share(v) | Cell::Change(v) | Cell::Ratio(v) => {
                if v.is_finite() {
                    v.to_string()
                } else {
                    String::new()
                }
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

// A table as aligned terminal text.
//
// A table that is too wide first wraps its words and headings, never a number; if that is not
// enough, it is cut between columns into several, one below the other, each of which begins with
// the words that say what a row is about.

/// Stands behind the best cell of a column, and behind those equal to it.
const MARK: &str = "*";
/// Spaces between two columns.
const GAP: usize = 2;
/// Words longer than this may be broken to make a table fit.
const WORD_MAX: usize = 16;
/// Below this a terminal is not taken at its word.
const WIDTH_MIN: usize = 20;
/// Most columns that each part of a table begins with: a VM and a policy.
const REPEATED_MAX: usize = 2;

/// Options of a table on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// The terminal's columns; as wide as need be when `None` (a pipe).
    pub width: Option<usize>,
    /// Whether ANSI colours and bold may be used.
    pub colour: bool,
}

impl TextOptions {
    fn columns(self) -> usize {
        self.width.map_or(usize::MAX, |width| width.max(WIDTH_MIN))
    }
}

fn render(table: &Table, options: TextOptions) -> String {
    let grid = Grid::new(table, options);
    let mut out = String::new();
    if !table.title.is_empty() {
        out += &grid.bold(&grid.wrapped(&printable(&table.title)));
        out += "\n\n";
    }
    let parts: Vec<String> = grid.parts().iter().map(|part| grid.part(part)).collect();
    out += &parts.join("\n");
    let within = EQUAL_WITHIN * 100.0;
    let marks = format!("{MARK} the best, or within {within} % of it.");
    for note in table.notes.iter().chain((!table.best.is_empty()).then_some(&marks)) {
        out += "\n";
        out += &grid.wrapped(&printable(note));
        out += "\n";
    }
    out
}

/// The table's strings, fit to print.
struct Grid<'a> {
    table: &'a Table,
    options: TextOptions,
    headings: Vec<String>,
    cells: Vec<Vec<String>>,
}

impl<'a> Grid<'a> {
    fn new(table: &'a Table, options: TextOptions) -> Grid<'a> {
        let headings = table.columns.iter().map(|c| printable(&c.heading())).collect();
        let cells =
            table.shown().iter().map(|r| r.iter().map(|c| printable(c)).collect()).collect();
        Grid { table, options, headings, cells }
    }

    /// Columns of the terminal, but for the mark behind the last column.
    fn width(&self) -> usize {
        let marks = if self.table.best.is_empty() { 0 } else { MARK.len() };
        self.options.columns().saturating_sub(marks)
    }

    /// Columns of each part: all in one, if they fit.
    fn parts(&self) -> Vec<Vec<usize>> {
        let all = self.headings.len();
        let repeated = self.table.leading_words().min(REPEATED_MAX).min(all.saturating_sub(1));
        let width = |of: &[usize]| of.iter().map(|&c| self.least_width(c) + GAP).sum::<usize>();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for column in 0..all {
            let fits = |part: &&mut Vec<usize>| {
                let needed = width(part) + self.least_width(column);
                part.len() <= repeated || needed <= self.width()
            };
            if let Some(part) = parts.last_mut().filter(fits) {
                part.push(column);
            } else {
                let repeated = if parts.is_empty() { 0 } else { repeated };
                parts.push((0..repeated).chain([column]).collect());
            }
        }
        parts
    }

    /// A width for each of these columns, such that they fit if that is possible.
    fn column_widths(&self, columns: &[usize]) -> Vec<usize> {
        let natural = |c: usize| {
            self.column(c).map(str::width).max().unwrap_or(0).max(self.headings[c].width())
        };
        let natural: Vec<usize> = columns.iter().map(|&c| natural(c)).collect();
        let mut widths: Vec<usize> = columns.iter().map(|&c| self.least_width(c)).collect();
        let least = widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        // Words grow before headings of numbers, which are read in two lines as well; of several
        // the narrowest grows first, so that the longest text gets the remaining width.
        for _ in least..self.width() {
            let growing = (0..widths.len()).filter(|&n| widths[n] < natural[n]);
            let is_number = |n: usize| self.table.columns[columns[n]].align == Align::Right;
            let Some(next) = growing.min_by_key(|&n| (is_number(n), widths[n])) else { break };
            widths[next] += 1;
        }
        widths
    }

    fn least_width(&self, column: usize) -> usize {
        let longest_word = |text: &str| text.split(' ').map(str::width).max().unwrap_or(0);
        let heading = longest_word(&self.headings[column]);
        let cells = match self.table.columns[column].align {
            Align::Right => self.column(column).map(str::width).max(),
            Align::Left => self.column(column).map(|cell| longest_word(cell).min(WORD_MAX)).max(),
        };
        heading.max(cells.unwrap_or(0)).max(1)
    }

    fn column(&self, column: usize) -> impl Iterator<Item = &str> {
        self.cells.iter().map(move |row| row[column].as_str())
    }

    /// These columns as a table.
    fn part(&self, columns: &[usize]) -> String {
        let widths = self.column_widths(columns);
        let headings: Vec<&str> = columns.iter().map(|&c| self.headings[c].as_str()).collect();
        let rule = widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        let mut out = self.line(None, &headings, columns, &widths);
        out += &"─".repeat(rule);
        out += "\n";
        for (row, cells) in self.cells.iter().enumerate() {
            let cells: Vec<&str> = columns.iter().map(|&c| cells[c].as_str()).collect();
            out += &self.line(Some(row), &cells, columns, &widths);
        }
        out
    }

    /// A row, or the headings if it is none.
    fn line(
        &self,
        row: Option<usize>,
        cells: &[&str],
        columns: &[usize],
        widths: &[usize],
    ) -> String {
        let wrapped: Vec<Vec<String>> =
            cells.iter().zip(widths).map(|(c, w)| wrap(c, *w)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        let mut out = String::new();
        for line in 0..height {
            let mut text = String::new();
            let mut pending = 0; // Spaces are written only when something follows them.
            let mut owed = 0; // Columns of the gap that a mark has taken.
            for (n, lines) in wrapped.iter().enumerate() {
                // Headings are aligned to the rule below them, other cells to their first line.
                let skip = if row.is_none() { height - lines.len() } else { 0 };
                let part =
                    line.checked_sub(skip).and_then(|l| lines.get(l)).map_or("", |s| s.as_str());
                let fill = widths[n].saturating_sub(part.width());
                let (before, after) = match self.table.columns[columns[n]].align {
                    Align::Left => (0, fill),
                    Align::Right => (fill, 0),
                };
                pending += before + if n > 0 { GAP - std::mem::take(&mut owed) } else { 0 };
                if !part.is_empty() {
                    let tone = row.map_or(Tone::Plain, |row| self.table.tone(row, columns[n]));
                    text += &" ".repeat(pending);
                    text += &self.toned(part, tone);
                    pending = 0;
                }
                pending += after;
                let is_best = |row| self.table.best.contains(&(row, columns[n]));
                if line == 0 && row.is_some_and(is_best) {
                    text.push_str(MARK); // in the gap
                    pending = pending.saturating_sub(MARK.len());
                    owed = MARK.len().saturating_sub(after);
                }
            }
            out += &if row.is_none() { self.bold(&text) } else { text };
            out += "\n";
        }
        out
    }

    fn wrapped(&self, text: &str) -> String {
        wrap(text, self.width()).join("\n")
    }

    fn bold(&self, text: &str) -> String {
        if self.options.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn toned(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Fair => 33,
            Tone::Bad => 31,
            Tone::Plain => return text.to_owned(),
        };
        if self.options.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Sentences as tables write their notes: no wider than the terminal, and harmless to it. Lines stay
/// apart.
pub fn sentences(text: &str, options: TextOptions) -> String {
    let width = options.columns();
    let lines = text.lines().flat_map(|line| wrap(&printable(line), width));
    lines.collect::<Vec<_>>().join("\n")
}

/// Lines of at most `width` columns; at least one.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let lines: Vec<String> = textwrap::wrap(text, width).into_iter().map(Into::into).collect();
    if lines.is_empty() { vec![String::new()] } else { lines }
}

/// Without control and direction-changing characters: a name may not move the cursor, recolour
/// the terminal or pass for another row.
fn printable(text: &str) -> String {
    let steers = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || steers(c) { '\u{fffd}' } else { c }).collect()
}
