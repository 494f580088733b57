//! What a Parquet file claims of itself, checked before the decoder believes it: the decoder
//! allocates a page's size after unpacking and a dictionary's number of values as they stand, and
//! it goes into nested groups of columns by recursion.
//!
//! Headers of pages and the footer are structs of Thrift's compact protocol. In a header,
//! fields 2 and 3 are the page's bytes, unpacked and as stored; field 7 is a struct whose field 1
//! is the number of values of a dictionary. In the footer, field 2 is the list of columns.

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

/// The largest page, unpacked or stored, in bytes. Writers make pages of some 1 MiB; DuckDB's
/// hold a row group, by default of 122,880 rows.
pub(in crate::traces) const PAGE_BYTES_MAX: u64 = 64 << 20;
/// The longest header of a page, in bytes. It has the least and the greatest value.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// A dictionary has numbers of four bytes or more, or texts, each with four bytes for its length.
const VALUE_BYTES_MIN: u64 = 4;
/// The longest footer, in bytes. One of a thousand row groups of ten columns has 1 MiB.
const FOOTER_BYTES_MAX: u32 = 16 << 20;
/// Most columns and groups of columns, also most that are within each other.
const COLUMNS_MAX: u64 = 1000;
/// Lists and structs within each other; a footer has seven.
const DEPTH_MAX: u32 = 12;

/// Is the footer one that the decoder can be given? What is no footer at all is left to it.
pub(super) fn check_footer(file: &File) -> io::Result<()> {
    let mut tail = [0; 8];
    let Some(end) = file.metadata()?.len().checked_sub(8) else { return Ok(()) };
    file.read_exact_at(&mut tail, end)?;
    let [a, b, c, d, ..] = tail;
    let bytes = u32::from_le_bytes([a, b, c, d]);
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, format!("footer: {what}"));
    if bytes > FOOTER_BYTES_MAX {
        return Err(invalid(format!("{bytes} bytes, at most {FOOTER_BYTES_MAX} are read")));
    }
    let Some(start) = end.checked_sub(bytes.into()) else { return Ok(()) };
    let mut footer = vec![0; bytes as usize];
    file.read_exact_at(&mut footer, start)?;
    Thrift { input: &footer[..] }.check_footer().map_err(invalid)
}

/// Are all columns' pages within the file, of `bytes`? The decoder panics at places below zero.
pub(super) fn check_places(footer: &ParquetMetaData, bytes: u64) -> io::Result<()> {
    for (number, rows) in footer.row_groups().iter().enumerate() {
        let inside = rows.columns().iter().all(|column| {
            let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let end = first.checked_add(column.compressed_size());
            let end = end.filter(|end| (0..=*end).contains(&first));
            end.and_then(|end| u64::try_from(end).ok()).is_some_and(|end| end <= bytes)
        });
        if !inside || rows.num_rows() < 0 {
            let text = format!("row group {}: its columns are not within the file", number + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    Ok(())
}

/// Are all columns packed in a way that is read? Unpacking gzip and Brotli has no bound here: a page
/// of 64 MiB could become 64 GiB.
pub(super) fn check_codecs(footer: &ParquetMetaData) -> io::Result<()> {
    let columns = footer.row_groups().iter().flat_map(|rows| rows.columns());
    for column in columns {
        let name = match column.compression() {
            Compression::GZIP(_) => "gzip",
            Compression::BROTLI(_) => "Brotli",
            Compression::LZO => "LZO",
            _ => continue,
        };
        let column = column.column_path();
        let text = format!("column {column} is packed with {name}: write it with snappy or zstd");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// A file whose pages are read only if their sizes are within the limits.
pub(super) struct CheckedPages(pub(super) File);

impl Length for CheckedPages {
    fn len(&self) -> u64 {
        Length::len(&self.0)
    }
}

impl ChunkReader for CheckedPages {
    type T = BufReader<File>;

    /// The decoder calls this for each page header, and for nothing else once it has the footer.
    fn get_read(&self, start: u64) -> Result<BufReader<File>> {
        let header = Thrift { input: self.0.get_read(start)?.take(HEADER_BYTES_MAX) };
        header.check_page().map_err(|what| {
            ParquetError::General(format!("page header at byte {start}: {what}"))
        })?;
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

struct Thrift<R> {
    input: R,
}

const UNUSUAL: &str = "damaged";

impl<R: Read> Thrift<R> {
    fn check_page(mut self) -> Result<(), String> {
        let (mut bytes, mut values, mut id) = (0, 0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match id {
                2 => bytes = self.number(kind)?.max(bytes),
                3 => {
                    let stored = self.number(kind)?;
                    limit(stored)?;
                }
                7 if kind == 12 => values = self.dictionary()?.max(values),
                7 => return Err(UNUSUAL.into()),
                _ => self.skip(kind, 0)?,
            }
        }
        limit(bytes)?;
        if values > bytes / VALUE_BYTES_MIN {
            return Err(format!("a dictionary of {values} values in {bytes} bytes"));
        }
        Ok(())
    }

    fn check_footer(mut self) -> Result<(), String> {
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            match id {
                2 if kind == 9 => {
                    let columns = self.list(0)?;
                    if columns > COLUMNS_MAX {
                        return Err(format!("{columns} columns, at most {COLUMNS_MAX} are read"));
                    }
                }
                2 => return Err(UNUSUAL.into()),
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(())
    }

    /// Skips a list; the number of its elements.
    fn list(&mut self, depth: u32) -> Result<u64, String> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => few.into(),
        };
        for _ in 0..count {
            match head & 15 {
                1 | 2 => self.discard(1)?,
                kind => self.skip(kind, depth + 1)?,
            }
        }
        Ok(count)
    }

    fn dictionary(&mut self) -> Result<u64, String> {
        let (mut values, mut id) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match id {
                1 => values = self.number(kind)?.max(values),
                _ => self.skip(kind, 1)?,
            }
        }
        Ok(values)
    }

    /// The kind of the next field, `None` at the struct's end; `id` was the field before.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, String> {
        let head = self.byte()?;
        match head >> 4 {
            _ if head & 15 == 0 => return Ok(None),
            0 => *id = self.zigzag()?,
            delta => *id = id.saturating_add(delta.into()),
        }
        Ok(Some(head & 15))
    }

    /// An integer that is not negative.
    fn number(&mut self, kind: u8) -> Result<u64, String> {
        if !(4..=6).contains(&kind) {
            return Err(UNUSUAL.into());
        }
        u64::try_from(self.zigzag()?).map_err(|_| UNUSUAL.into())
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), String> {
        match kind {
            1 | 2 => {}
            3 => self.discard(1)?,
            4..=6 => drop(self.varint()?),
            7 => self.discard(8)?,
            8 => {
                let length = self.varint()?;
                self.discard(length)?;
            }
            9 | 10 if depth < DEPTH_MAX => drop(self.list(depth)?),
            12 if depth < DEPTH_MAX => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return Err(UNUSUAL.into()),
        }
        Ok(())
    }

    fn zigzag(&mut self) -> Result<i64, String> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(UNUSUAL.into())
    }

    fn discard(&mut self, count: u64) -> Result<(), String> {
        let done = std::io::copy(&mut (&mut self.input).take(count), &mut std::io::sink());
        let whole = done.is_ok_and(|done| done == count);
        whole.then_some(()).ok_or_else(|| UNUSUAL.into())
    }

    fn byte(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.input.read_exact(&mut byte).map_err(|_| UNUSUAL)?;
        Ok(byte[0])
    }
}

fn limit(bytes: u64) -> Result<(), String> {
    let within = bytes <= PAGE_BYTES_MAX;
    within.then_some(()).ok_or_else(|| {
        format!("a page of {bytes} bytes, at most {PAGE_BYTES_MAX} are read; write smaller pages")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8]) -> Result<(), String> {
        Thrift { input: bytes }.check_page()
    }

    #[test]
    fn sizes_are_those_of_the_header_wherever_they_stand() {
        // Page type 2 (dictionary), 40 bytes, 30 stored; 10 values, plain.
        let sound = [0x15, 4, 0x15, 80, 0x15, 60, 0x4c, 0x15, 20, 0x15, 0, 0, 0];
        assert_eq!(check(&sound), Ok(()));
        let mut values = sound;
        values[8] = 22;
        assert_eq!(check(&values).unwrap_err(), "a dictionary of 11 values in 40 bytes");
        // Field 2 once more at the end, by its number: 2^31 - 1 bytes.
        let again = [&sound[..12], &[5, 4, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0]].concat();
        assert!(check(&again).unwrap_err().contains("write smaller pages"));
        assert_eq!(check(&sound[..9]).unwrap_err(), UNUSUAL);
        // A text that is longer than the header, and structs without end.
        assert_eq!(check(&[0x18, 0xff, 0xff, 0x03]).unwrap_err(), UNUSUAL);
        assert_eq!(check(&[0x1c; 100]).unwrap_err(), UNUSUAL);
    }

    #[test]
    fn a_footer_has_so_many_columns_and_no_more() {
        /// The lower seven bits of 1000, whose upper ones are 7.
        const LAST: u8 = 104;
        let footer = |count: u8| {
            let columns = [&[0x15, 2, 0x19, 0xfc, 0x80 | count, 7][..], &[0; 1100], &[0; 1]];
            Thrift { input: &columns.concat()[..] }.check_footer()
        };
        assert_eq!(footer(LAST), Ok(()));
        assert_eq!(footer(LAST + 1).unwrap_err(), "1001 columns, at most 1000 are read");
        let endless = Thrift { input: &[0x19; 100][..] };
        assert!(endless.check_footer().is_err());
    }
}
