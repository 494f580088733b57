//! A table as aligned terminal text.
//!
//! A table that is too wide first wraps its words and headings, never a number; if that is not
//! enough, each row becomes a block of "heading: value" lines.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::{Align, Table, Tone};

/// Spaces between two columns, or between a heading and its value.
const GAP: usize = 2;
/// Words longer than this may be broken to make a table fit.
const WORD_MAX: usize = 16;
/// Below this a terminal is not taken at its word.
const WIDTH_MIN: usize = 20;

/// Options of a table on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// The terminal's columns; as wide as need be when `None` (a pipe).
    pub width: Option<usize>,
    /// Whether ANSI colours and bold may be used.
    pub colour: bool,
}

pub(super) fn render(table: &Table, options: TextOptions) -> String {
    let grid = Grid::new(table, options);
    let mut out = String::new();
    if !table.title.is_empty() {
        out += &grid.bold(&grid.wrapped(&printable(&table.title)));
        out += "\n\n";
    }
    if !table.columns.is_empty() {
        match grid.column_widths() {
            Some(widths) => grid.write_table(&mut out, &widths),
            None => grid.write_blocks(&mut out),
        }
    }
    for note in &table.notes {
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

    fn width(&self) -> usize {
        self.options.width.map_or(usize::MAX, |width| width.max(WIDTH_MIN))
    }

    /// A width for each column such that the table fits, or `None` if there is no such thing.
    fn column_widths(&self) -> Option<Vec<usize>> {
        let columns = 0..self.headings.len();
        let natural: Vec<usize> = columns
            .clone()
            .map(|c| {
                self.column(c).map(str::width).max().unwrap_or(0).max(self.headings[c].width())
            })
            .collect();
        let mut widths: Vec<usize> = columns.map(|c| self.least_width(c)).collect();
        let gaps = GAP * (widths.len() - 1);
        let mut spare = self.width().checked_sub(widths.iter().sum::<usize>() + gaps)?;
        // Words grow before headings of numbers, which are read in two lines as well; of several
        // the narrowest grows first, so that the longest text gets the remaining width.
        loop {
            let growing = (0..widths.len()).filter(|&c| widths[c] < natural[c]);
            let Some(next) =
                growing.min_by_key(|&c| (self.table.columns[c].align == Align::Right, widths[c]))
            else {
                break;
            };
            if spare == 0 {
                break;
            }
            widths[next] += 1;
            spare -= 1;
        }
        Some(widths)
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

    fn write_table(&self, out: &mut String, widths: &[usize]) {
        let plain = vec![Tone::Plain; widths.len()];
        self.write_row(out, &self.headings, &plain, widths, true);
        let rule = widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        *out += &"─".repeat(rule);
        *out += "\n";
        for (row, cells) in self.cells.iter().enumerate() {
            let tones: Vec<Tone> =
                (0..widths.len()).map(|column| self.table.cell(row, column).tone()).collect();
            self.write_row(out, cells, &tones, widths, false);
        }
    }

    fn write_row(
        &self,
        out: &mut String,
        cells: &[String],
        tones: &[Tone],
        widths: &[usize],
        head: bool,
    ) {
        let wrapped: Vec<Vec<String>> =
            cells.iter().zip(widths).map(|(c, w)| wrap(c, *w)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut text = String::new();
            let mut pending = 0; // Spaces are written only when something follows them.
            for (column, lines) in wrapped.iter().enumerate() {
                // Headings are aligned to the rule below them, other cells to their first line.
                let skip = if head { height - lines.len() } else { 0 };
                let part =
                    line.checked_sub(skip).and_then(|l| lines.get(l)).map_or("", |s| s.as_str());
                let fill = widths[column].saturating_sub(part.width());
                let (before, after) = match self.table.columns[column].align {
                    Align::Left => (0, fill),
                    Align::Right => (fill, 0),
                };
                pending += before + if column > 0 { GAP } else { 0 };
                if !part.is_empty() {
                    text += &" ".repeat(pending);
                    text += &self.toned(part, tones[column]);
                    pending = 0;
                }
                pending += after;
            }
            *out += &if head { self.bold(&text) } else { text };
            *out += "\n";
        }
    }

    fn write_blocks(&self, out: &mut String) {
        let key_width = self.headings.iter().map(|h| h.width()).max().unwrap_or(0);
        let key_width = key_width.min(self.width() / 2);
        let value_width = self.width().saturating_sub(key_width + GAP).max(1);
        for (row, cells) in self.cells.iter().enumerate() {
            if row > 0 {
                *out += "\n";
            }
            for (column, (heading, cell)) in self.headings.iter().zip(cells).enumerate() {
                let keys = wrap(heading, key_width);
                let values = wrap(cell, value_width);
                for line in 0..keys.len().max(values.len()) {
                    let key = keys.get(line).map_or("", String::as_str);
                    let value = values.get(line).map_or("", String::as_str);
                    let fill = " ".repeat(key_width.saturating_sub(key.width()) + GAP);
                    let value = self.toned(value, self.table.cell(row, column).tone());
                    let line = format!("{key}{fill}{value}");
                    let _ = writeln!(out, "{}", line.trim_end());
                }
            }
        }
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
