//! What commands print: an aligned table for people, or the same as JSON for programs.

use std::{fmt, io::Write};

use serde::Serialize;

pub use kvasir_gguf::size::size as bytes;

/// Form of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// one JSON document
    Json,
    /// an aligned table
    #[default]
    Table,
}

impl Output {
    /// Prints `value` in this form on stdout; `table` shows it to people.
    pub fn print<T: Serialize>(self, value: &T, table: impl FnOnce(&T) -> Table) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        match self {
            Output::Json => {
                serde_json::to_writer_pretty(&mut out, value)?;
                writeln!(out)?;
            }
            Output::Table => write!(out, "{}", table(value))?,
        }
        out.flush()?;
        Ok(())
    }
}

/// Rows under a head, aligned by column: words to the left, numbers to the right.
#[derive(Debug)]
pub struct Table {
    head: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// Head of a column.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// words, aligned to the left
    Words(&'static str),
    /// numbers, aligned to the right
    Number(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Words(title) | Column::Number(title) => title,
        }
    }
}

impl Table {
    /// A table without rows.
    pub fn new(head: impl Into<Vec<Column>>) -> Self {
        Table {
            head: head.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a cell for each column.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.head.len(), "a cell for each column");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: Vec<String> = self.head.iter().map(|column| column.title().to_owned()).collect();
        let mut widths = vec![0; head.len()];
        for row in self.rows.iter().chain([&head]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in [&head].into_iter().chain(&self.rows) {
            let cells = row
                .iter()
                .zip(&self.head)
                .zip(&widths)
                .map(|((cell, column), width)| match column {
                    Column::Words(_) => format!("{cell:<width$}"),
                    Column::Number(_) => format!("{cell:>width$}"),
                });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_carry_no_trailing_blanks() {
        let mut table = Table::new([Column::Number("RANK"), Column::Words("LAYERS"), Column::Number("BYTES")]);
        table.row(["0".to_owned(), "0..10".to_owned(), "9 B".to_owned()]);
        table.row(["10".to_owned(), "10..100".to_owned(), "45.1 MiB".to_owned()]);
        assert_eq!(
            table.to_string(),
            "RANK  LAYERS      BYTES\n   0  0..10         9 B\n  10  10..100  45.1 MiB\n"
        );
    }

    #[test]
    fn a_row_of_words_ends_at_its_last_word() {
        let mut table = Table::new([Column::Words("A"), Column::Words("LONG TITLE")]);
        table.row(["x".to_owned(), "y".to_owned()]);
        assert_eq!(table.to_string(), "A  LONG TITLE\nx  y\n");
    }
}
