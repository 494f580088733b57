//! Amounts in JSON: a number, or a text with a unit, as options and files have them.

use seekway_core::params::{ParamError, parse_bytes, parse_lba};
use serde::{Deserialize, Deserializer, de};

/// An amount as it is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or a text with a unit")]
pub enum Amount {
    Number(u64),
    Text(String),
}

impl Amount {
    /// The text that options and files would have.
    pub fn text(self) -> String {
        match self {
            Amount::Number(number) => number.to_string(),
            Amount::Text(text) => text,
        }
    }
}

fn read<'de, D: Deserializer<'de>>(
    from: D,
    parse: fn(&str) -> Result<u64, ParamError>,
) -> Result<Option<u64>, D::Error> {
    let Some(amount) = Option::<Amount>::deserialize(from)? else { return Ok(None) };
    let text = amount.text();
    parse(&text).map(Some).map_err(|e| de::Error::custom(format!("{text}: {e}")))
}

/// Bytes.
pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    read(from, parse_bytes)
}

/// A place: the number of a sector, or bytes with a unit.
pub fn sector<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    read(from, |text| parse_lba(text).map(|lba| lba.get()))
}
