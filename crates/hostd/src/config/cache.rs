//! Size of the caches.

use super::Config;
use super::amounts::Amount;
use seekway_core::params::parse_bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The smallest cache of a device, and the largest, in bytes.
pub const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The largest cache of a device, in bytes: 8 TiB.
pub const CACHE_BYTES_MAX: u64 = 8 << 40;
/// Prefetcher of a cache if none is named.
pub const PREFETCHER_DEFAULT: &str = "vio:interval=continuous";

/// Size of the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Amount")]
pub enum CacheSize {
    /// No caches; a daemon that is started with this cannot get any later.
    Off,
    /// A tenth of the available memory for all devices together, less under pressure.
    Auto,
    /// This number of bytes for each device.
    Bytes(u64),
}

impl CacheSize {
    /// Parse `off`, `auto` or a size.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<CacheSize, String> {
        match text {
            "off" => Ok(CacheSize::Off),
            "auto" => Ok(CacheSize::Auto),
            _ => {
                let allowed = CACHE_BYTES_MIN..=CACHE_BYTES_MAX;
                match parse_bytes(text) {
                    Ok(bytes) if allowed.contains(&bytes) => Ok(CacheSize::Bytes(bytes)),
                    Ok(_) => Err(format!("{text}: expected auto, off, or 1MiB to 8TiB")),
                    Err(e) => Err(format!("{text}: {e}; or auto, or off")),
                }
            }
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheSize::Off => f.write_str("off"),
            CacheSize::Auto => f.write_str("auto"),
            CacheSize::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl From<CacheSize> for String {
    fn from(size: CacheSize) -> String {
        size.to_string()
    }
}

impl TryFrom<Amount> for CacheSize {
    type Error = String;
    fn try_from(amount: Amount) -> Result<CacheSize, String> {
        CacheSize::parse(&amount.text())
    }
}

impl Config {
    /// Size of the caches: `auto` by default. An emulated device has no cache by default, because
    /// it is there to be seen as it is.
    pub fn cache_size(&self) -> CacheSize {
        match (self.cache, &self.emulate) {
            (Some(size), _) => size,
            (None, Some(_)) => CacheSize::Off,
            (None, None) => CacheSize::Auto,
        }
    }

    /// The prefetcher of devices with a cache.
    pub fn prefetcher(&self) -> &str {
        self.prefetch.as_deref().unwrap_or(PREFETCHER_DEFAULT)
    }
}
