//! Logical block sizes: what guests are told, from what was asked for and what
//! the image can do.
//!
//! Guests can be told of two, 512 and 4096 bytes. A guest may read and write
//! whole blocks only, so its blocks must not be smaller than those of the image.

use super::ImageError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
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
        let size = text.parse().ok().and_then(|bytes: u32| BlockSize::try_from(bytes).ok());
        size.ok_or_else(|| format!("block_size={text}: expected 512 or 4096"))
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The block size for guests, in bytes, of an image that can read and write `least_bytes`.
/// A warning if guests get larger blocks than they had by default elsewhere.
///
/// # Errors
/// When smaller blocks were asked for.
pub(super) fn choose(
    asked: Option<BlockSize>,
    least_bytes: u32,
    is_block: bool,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<u32, ImageError> {
    let Some(asked) = asked.map(BlockSize::bytes) else {
        if !is_block && least_bytes > BlockSize::B512.bytes() {
            warnings.push(
                "direct I/O on this file system needs blocks of 4096 bytes, which is what the \
                 guest sees; an image that was partitioned for 512 needs the option buffered"
                    .to_owned(),
            );
        }
        return Ok(least_bytes);
    };
    if asked >= least_bytes {
        return Ok(asked);
    }
    let (why, hint) = match is_block {
        true => ("the device has blocks of", ""),
        false => (
            "direct I/O on this file system needs blocks of",
            ", or add the option buffered (the host's page cache)",
        ),
    };
    Err(ImageError::BlockSize { path: path.display().to_string(), asked, why, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        asked: Option<BlockSize>,
        least: u32,
        is_block: bool,
    ) -> (Result<u32, String>, usize) {
        let mut warnings = Vec::new();
        let chosen = choose(asked, least, is_block, Path::new("a.img"), &mut warnings);
        (chosen.map_err(|e| e.to_string()), warnings.len())
    }

    #[test]
    fn guests_get_what_was_asked_for_or_what_the_image_needs() {
        use BlockSize::*;
        for is_block in [false, true] {
            assert_eq!(chosen(None, 512, is_block), (Ok(512), 0));
            assert_eq!(chosen(Some(B512), 512, is_block), (Ok(512), 0));
            assert_eq!(chosen(Some(B4096), 512, is_block), (Ok(4096), 0));
            assert_eq!(chosen(Some(B4096), 4096, is_block), (Ok(4096), 0));
        }
        assert_eq!(chosen(None, 4096, true), (Ok(4096), 0));
        assert_eq!(chosen(None, 4096, false), (Ok(4096), 1));
    }

    #[test]
    fn smaller_blocks_than_the_image_has_are_refused() {
        let refused = |is_block| chosen(Some(BlockSize::B512), 4096, is_block).0.unwrap_err();
        assert_eq!(
            refused(true),
            "a.img: block_size=512 is not possible: the device has blocks of 4096 bytes; \
             leave block_size out"
        );
        assert!(refused(false).ends_with("or add the option buffered (the host's page cache)"));
    }

    #[test]
    fn sizes_are_512_or_4096() {
        assert_eq!("512".parse(), Ok(BlockSize::B512));
        assert_eq!("4096".parse(), Ok(BlockSize::B4096));
        for wrong in ["", "0", "1024", "4k", "-1", "99999999999"] {
            let error = wrong.parse::<BlockSize>().unwrap_err();
            assert_eq!(error, format!("block_size={wrong}: expected 512 or 4096"));
        }
    }
}
