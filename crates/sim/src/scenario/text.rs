//! Values of a scenario as they are written: times, sizes and sectors with their units, by the
//! parsers of the command line, and fields that take `none` beside a table.

use seekway_core::params::{parse_bytes, parse_duration, parse_lba, parse_size};
use seekway_core::units::{Lba, Nanos, Sectors};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// A text, a number or a flag, as the text that a command line would have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Scalar(pub String);

/// Parameters by their keys.
pub type Map = BTreeMap<String, Scalar>;

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or true or false")
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.trim().into()))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
        }
        from.deserialize_any(AsText)
    }
}

impl Serialize for Scalar {
    /// As a number or a flag where that reads back as the same text.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = self.0.as_str();
        if let Some(number) = text.parse::<i64>().ok().filter(|n| n.to_string() == text) {
            return to.serialize_i64(number);
        }
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && n.to_string() == text);
        match (number, text) {
            (Some(number), _) => to.serialize_f64(number),
            (None, "true") => to.serialize_bool(true),
            (None, "false") => to.serialize_bool(false),
            (None, text) => to.serialize_str(text),
        }
    }
}

/// A quantity with its unit, read by a parser of the command line and written exactly.
macro_rules! quantity {
    ($(#[$about:meta])* $name:ident, $of:ty, $parse:path, $shown:expr) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub $of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let Scalar(text) = Scalar::deserialize(from)?;
                $parse(&text).map($name).map_err(|e| D::Error::custom(format!("{text}: {e}")))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let shown: fn($of) -> String = $shown;
                Scalar(shown(self.0)).serialize(to)
            }
        }
    };
}

quantity!(
    /// A span of time.
    Time, Nanos, parse_duration, |time| time.to_string()
);
quantity!(
    /// An amount that is a whole number of sectors.
    Size, Sectors, parse_size, |size| ByteSize(size.bytes()).to_string()
);
quantity!(
    /// An amount of any number of bytes.
    Bytes, u64, parse_bytes, |bytes| ByteSize(bytes).to_string()
);
quantity!(
    /// An offset on the device.
    Place, Lba, parse_lba, |place| place.get().to_string()
);

/// Bytes in the largest unit that divides them: `512MiB`.
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits)) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// True for a value that is the default.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A table of a field that also takes `none`.
pub trait Chosen: for<'de> Deserialize<'de> {
    type Made;

    /// `None` if the table says so itself.
    ///
    /// # Errors
    /// Says what is wrong, and what to write.
    fn made(self) -> Result<Option<Self::Made>, String>;
}

/// Reads `"none"`, or a table of the kind `T`.
pub fn none_or<'de, T: Chosen, D: Deserializer<'de>>(from: D) -> Result<Option<T::Made>, D::Error> {
    struct NoneOr<T>(PhantomData<T>);
    impl<'de, T: Chosen> Visitor<'de> for NoneOr<T> {
        type Value = Option<T::Made>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"none\" or a table")
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<Option<T::Made>, E> {
            match value {
                "none" => Ok(None),
                _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
            }
        }
        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Option<T::Made>, M::Error> {
            let table = T::deserialize(MapAccessDeserializer::new(map))?;
            table.made().map_err(M::Error::custom)
        }
    }
    from.deserialize_any(NoneOr(PhantomData::<T>))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_they_are_given() {
        let shown = [1 << 30, 3 << 29, 4096, 4097].map(|n| ByteSize(n).to_string());
        assert_eq!(shown, ["1GiB", "1536MiB", "4KiB", "4097B"]);
    }
}
