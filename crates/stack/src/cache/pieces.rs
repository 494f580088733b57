//! A guest's read, cut by how each part of it is come by.

use super::blocks::BLOCK_SECTORS;
use super::fetches::FetchId;
use seekway_core::request::Extent;
use seekway_core::units::{Lba, Sectors};

/// A part of a guest's read, and how to come by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// The cache has the data already.
    Cached(Extent),
    /// Brought by a fetch under way.
    Wait(FetchId, Extent),
    /// Brought by a fetch that begins with this piece.
    Fetch(FetchId, Extent),
    /// To be read past the cache.
    Direct(Extent),
}

/// The blocks that an extent touches: the first, and the one after the last.
pub(crate) fn blocks_of(extent: Extent) -> (u64, u64) {
    (extent.start().get() / BLOCK_SECTORS, extent.end().get().div_ceil(BLOCK_SECTORS))
}

/// Clips a block to the extent that overlaps it.
pub(super) fn clip(block: u64, extent: Extent) -> Extent {
    let start = extent.start().get().max(block * BLOCK_SECTORS);
    let end = extent.end().get().min((block + 1).saturating_mul(BLOCK_SECTORS));
    Extent::new(Lba::new(start), Sectors::new(end - start)).expect("the extent touches the block")
}

/// Cuts an extent to at most `most`, and to before `capacity`.
pub(super) fn cut(extent: Extent, most: Sectors, capacity: Sectors) -> Option<Extent> {
    let inside = capacity.get().saturating_sub(extent.start().get());
    Extent::new(extent.start(), extent.len().min(most).min(Sectors::new(inside)))
}

/// Append a piece, or make the last one since `before` longer by it when both
/// are to be had in the same way.
pub(super) fn push(pieces: &mut Vec<Piece>, before: usize, next: Piece) {
    let longer =
        |a: Extent, b: Extent| Extent::new(a.start(), a.len() + b.len()).expect("two neighbours");
    if let Some(last) = pieces[before..].last_mut() {
        let joined = match (*last, next) {
            (Piece::Cached(a), Piece::Cached(b)) => Some(Piece::Cached(longer(a, b))),
            (Piece::Direct(a), Piece::Direct(b)) => Some(Piece::Direct(longer(a, b))),
            (Piece::Wait(id, a), Piece::Wait(other, b)) if id == other => {
                Some(Piece::Wait(id, longer(a, b)))
            }
            (Piece::Fetch(id, a), Piece::Fetch(other, b)) if id == other => {
                Some(Piece::Fetch(id, longer(a, b)))
            }
            _ => None,
        };
        if let Some(joined) = joined {
            *last = joined;
            return;
        }
    }
    pieces.push(next);
}
