//! A table as Arrow's columns.

use anyhow::Result;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use seekway_report::table::{Cell, Table};
use std::sync::Arc;

/// The table's columns under their headings: text, whole numbers, or numbers; null where a cell
/// is absent. Shares are parts of one.
pub fn batch(table: &Table) -> Result<RecordBatch> {
    let columns = table.columns.iter().enumerate().map(|(n, column)| {
        let cells = table.rows.iter().map(move |row| row.get(n).unwrap_or(&Cell::Absent));
        (column.name.as_str(), array(cells.collect()))
    });
    Ok(RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?)
}

fn array(cells: Vec<&Cell>) -> ArrayRef {
    let whole = |cell: &&Cell| matches!(cell, Cell::Count(_) | Cell::Absent);
    if cells.iter().any(|cell| text(cell).is_some()) {
        return Arc::new(cells.into_iter().map(text).collect::<StringArray>());
    }
    if cells.iter().all(whole) && cells.iter().any(|cell| matches!(cell, Cell::Count(_))) {
        let count = |cell: &Cell| if let Cell::Count(n) = cell { Some(*n) } else { None };
        return Arc::new(cells.into_iter().map(count).collect::<UInt64Array>());
    }
    Arc::new(cells.into_iter().map(Cell::number).collect::<Float64Array>())
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
    use arrow_schema::DataType;
    use seekway_report::table::Column;

    #[test]
    fn columns_have_the_types_of_their_cells() {
        let names = ["what", "n", "x", "none"].map(|name| Column::number(name, ""));
        let mut table = Table::new("", names.into());
        table.push([Cell::Text("a".into()), Cell::Count(3), Cell::Number(0.5), Cell::Absent]);
        table.push([Cell::Absent, Cell::Absent, Cell::Count(2), Cell::Absent]);
        let batch = batch(&table).unwrap();
        let schema = batch.schema();
        let types: Vec<&DataType> = schema.fields().iter().map(|f| f.data_type()).collect();
        use DataType::{Float64, UInt64, Utf8};
        assert_eq!(types, [&Utf8, &UInt64, &Float64, &Float64]);
        let nulls: Vec<usize> = batch.columns().iter().map(|c| c.null_count()).collect();
        assert_eq!(nulls, [1, 1, 0, 2]);
    }
}
