//! A process's tag as the I/O priority that carries it out of a guest.
//!
//! Linux's virtio_blk driver writes each request's priority into the request's
//! header, so the agent in a guest gives each I/O process a priority of its own
//! and the host reads it back (algorithms.md, section 6). Both sides take the
//! encoding from here.
//!
//! A priority has a class (bits 13 to 15), a hint (bits 3 to 12) and a level
//! (bits 0 to 2): `include/uapi/linux/ioprio.h`, Linux 6.5 and later. A tag is class
//! best-effort, level 4, with the tag as hint. Before 6.5 there are no hints, so such a
//! guest cannot send tags.

use crate::request::ProcessTag;

/// `IOPRIO_CLASS_NONE`: nobody has set a priority.
pub const CLASS_NONE: u16 = 0;
/// `IOPRIO_CLASS_RT`: real time, goes before all others.
pub const CLASS_REAL_TIME: u16 = 1;
/// `IOPRIO_CLASS_BE`: best effort, the default of every process.
pub const CLASS_BEST_EFFORT: u16 = 2;
/// `IOPRIO_BE_NORM`: the level that kernels send by themselves.
pub const LEVEL_NORM: u16 = 4;
/// The first tag. Hints 1 to 7 are duration limits (`IOPRIO_HINT_DEV_DURATION_LIMIT_1` …).
pub const HINT_MIN: u16 = 8;
/// The last tag: a hint has ten bits.
pub const HINT_MAX: u16 = 1023;

/// The priority that carries `tag`; `None` unless the tag is [`HINT_MIN`] to [`HINT_MAX`].
pub const fn priority(tag: ProcessTag) -> Option<u16> {
    match tag.get() {
        hint @ HINT_MIN..=HINT_MAX => Some(CLASS_BEST_EFFORT << 13 | hint << 3 | LEVEL_NORM),
        _ => None,
    }
}

/// The class of a priority.
pub const fn class(priority: u16) -> u16 {
    priority >> 13
}

/// The tag in a request's priority. All other values of kernels and users are no tags: 0, levels
/// without a hint, duration limits, and any class other than best effort.
pub fn tag(priority: u32) -> Option<ProcessTag> {
    let priority = u16::try_from(priority).ok()?;
    let (hint, level) = (priority >> 3 & HINT_MAX, priority & 7);
    match (class(priority), hint, level) {
        (CLASS_BEST_EFFORT, HINT_MIN.., LEVEL_NORM) => ProcessTag::new(hint),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_comes_back_as_it_was_written() {
        let tags = (0..=u16::MAX).filter_map(ProcessTag::new);
        let written: Vec<(ProcessTag, u16)> =
            tags.filter_map(|tag| Some((tag, priority(tag)?))).collect();
        assert_eq!(written.len(), 1016);
        for (wrote, priority) in written {
            assert_eq!(tag(priority.into()), Some(wrote), "{priority:#x}");
        }
    }

    #[test]
    fn other_priorities_are_no_tags() {
        let hinted = |hint: u32| 2 << 13 | hint << 3 | 4;
        let others = [1 << 13 | 100 << 3 | 4, 3 << 13, 0x1_4000, u32::MAX];
        let levels = 0x4000..0x4008;
        for untagged in [0, 4, hinted(1), hinted(7)].into_iter().chain(others).chain(levels) {
            assert_eq!(tag(untagged), None, "{untagged:#x}");
        }
        assert_eq!(tag(hinted(8)).map(ProcessTag::get), Some(8));
        assert_eq!(tag(hinted(1023)).map(ProcessTag::get), Some(1023));
    }
}
