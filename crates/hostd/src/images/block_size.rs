//! Logical block sizes: what guests are told, from what was asked for and what
//! the image is.
//!
//! Guests can be told of two, 512 and 4096 bytes.

use seekway_core::params::parse_bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A logical block size, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum BlockSize {
    B512,
    B4096,
}

impl BlockSize {
    /// The size in bytes: 512 or 4096.
    pub const fn bytes(self) -> u32 {
        match self {
            BlockSize::B512 => 512,
            BlockSize::B4096 => 4096,
        }
    }
}

impl From<BlockSize> for u32 {
    fn from(size: BlockSize) -> u32 {
        size.bytes()
    }
}

impl TryFrom<u32> for BlockSize {
    type Error = String;

    fn try_from(bytes: u32) -> Result<BlockSize, String> {
        match bytes {
            512 => Ok(BlockSize::B512),
            4096 => Ok(BlockSize::B4096),
            _ => Err(format!("block_size={bytes}: expected 512 or 4096")),
        }
    }
}

impl FromStr for BlockSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockSize, String> {
        let bytes = parse_bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
        let size = bytes.and_then(|bytes| BlockSize::try_from(bytes).ok());
        size.ok_or_else(|| format!("{text}: expected 512 or 4096"))
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The block size for guests, in bytes, as it was asked for; else that of a block device, and of a
/// file 512, unless it was partitioned for 4096. What direct I/O on a file takes is no reason: that
/// changes with a snapshot or when the file moves, and a guest must not see another block size then.
/// A warning if less than `least_bytes`, which is what can be written without reading before.
pub(super) fn choose(
    asked: Option<BlockSize>,
    is_block: bool,
    least_bytes: u32,
    partitioned_for: Option<u32>,
    warnings: &mut Vec<String>,
) -> u32 {
    let chosen = match (asked, is_block) {
        (Some(asked), _) => asked.bytes(),
        (None, true) => least_bytes,
        (None, false) => partitioned_for.unwrap_or(512),
    };
    if chosen < least_bytes {
        warnings.push(format!(
            "guests see blocks of {chosen} bytes, and I/O on this image takes {least_bytes}: {RMW}"
        ));
    }
    chosen
}

/// Cost of a write to a part of a block.
pub(super) const RMW: &str =
    "a write to a part of such a block reads it before, which costs a read, and waits for others";

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        asked: Option<BlockSize>,
        is_block: bool,
        least: u32,
        partitioned_for: Option<u32>,
    ) -> (u32, usize) {
        let mut warnings = Vec::new();
        let chosen = choose(asked, is_block, least, partitioned_for, &mut warnings);
        (chosen, warnings.len())
    }

    #[test]
    fn guests_get_what_was_asked_for() {
        use BlockSize::*;
        for is_block in [false, true] {
            for least in [512, 4096] {
                assert_eq!(chosen(Some(B4096), is_block, least, Some(512)), (4096, 0));
                let warned = usize::from(least > 512);
                assert_eq!(chosen(Some(B512), is_block, least, Some(4096)), (512, warned));
            }
        }
    }

    #[test]
    fn a_device_has_its_own_blocks_and_a_file_those_of_its_partition_table() {
        assert_eq!(chosen(None, true, 512, Some(4096)), (512, 0));
        assert_eq!(chosen(None, true, 4096, Some(512)), (4096, 0));
        // Whatever direct I/O needs now.
        for (least, warned) in [(1, 0), (512, 0), (4096, 1)] {
            assert_eq!(chosen(None, false, least, None), (512, warned));
            assert_eq!(chosen(None, false, least, Some(512)), (512, warned));
            assert_eq!(chosen(None, false, least, Some(4096)), (4096, 0));
        }
    }

    #[test]
    fn sizes_are_512_or_4096() {
        assert_eq!("512".parse(), Ok(BlockSize::B512));
        assert_eq!("4KiB".parse(), Ok(BlockSize::B4096));
        assert_eq!("4096".parse(), Ok(BlockSize::B4096));
        assert_eq!("4k".parse(), Ok(BlockSize::B4096));
        for wrong in ["", "0", "1024", "-1", "99999999999"] {
            let error = wrong.parse::<BlockSize>().unwrap_err();
            assert_eq!(error, format!("{wrong}: expected 512 or 4096"));
        }
    }
}
