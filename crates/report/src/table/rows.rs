//! Tables that are filled column by column: a heading is beside the expression for its cells.

use super::{Cell, Column, Table};

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
