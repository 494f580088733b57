//! A table as typed columns.

use seekway_report::table::{Cell, Table};
use seekway_sim::scenario::tables::Values;

/// The table's columns under their headings: text, whole numbers, or numbers; `None` where a cell
/// is absent. Shares are parts of one.
pub fn of(table: Table) -> Vec<(String, Values)> {
    let Table { columns, rows, .. } = table;
    let cells = |n: usize| rows.iter().map(|row| row.get(n).unwrap_or(&Cell::Absent)).collect();
    columns.into_iter().enumerate().map(|(n, column)| (column.name, values(cells(n)))).collect()
}

fn values(cells: Vec<&Cell>) -> Values {
    let whole = |cell: &&Cell| matches!(cell, Cell::Count(_) | Cell::Absent);
    if cells.iter().any(|cell| text(cell).is_some()) {
        return Values::Text(cells.into_iter().map(text).collect());
    }
    if cells.iter().all(whole) && cells.iter().any(|cell| matches!(cell, Cell::Count(_))) {
        let count = |cell: &Cell| if let Cell::Count(n) = cell { Some(*n) } else { None };
        return Values::Count(cells.into_iter().map(count).collect());
    }
    Values::Number(cells.into_iter().map(Cell::number).collect())
}

fn text(cell: &Cell) -> Option<&str> {
    match cell {
        Cell::Text(text) | Cell::Badge { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_report::table::Column;

    #[test]
    fn columns_have_the_types_of_their_cells() {
        let names = ["what", "n", "x", "none"].map(|name| Column::number(name, ""));
        let mut table = Table::new("", names.into());
        table.push([Cell::Text("a".into()), Cell::Count(3), Cell::Number(0.5), Cell::Absent]);
        table.push([Cell::Absent, Cell::Absent, Cell::Count(2), Cell::Absent]);
        let columns = of(table);
        let [
            (what, Values::Text(texts)),
            (_, Values::Count(counts)),
            (_, Values::Number(numbers)),
            (_, Values::Number(none)),
        ] = &columns[..]
        else {
            panic!("of other types");
        };
        assert_eq!(what, "what");
        assert_eq!(texts.iter().collect::<Vec<_>>(), [Some("a"), None]);
        assert_eq!(counts, &[Some(3), None]);
        assert_eq!(numbers, &[Some(0.5), Some(2.0)]);
        assert_eq!(none, &[None, None]);
    }
}
