//! A process's tag as the I/O priority that carries it out of a guest.
//!
//! Linux's virtio_blk driver writes each request's priority into the request's
//! header, so the agent in a guest gives each I/O process a priority of its own
//! and the host reads it back (algorithms.md, section 6). Both sides take the
//! encoding from here.
//!
//! A priority has a class (bits 13 to 15), a hint (bits 3 to 12) and a level
//! (bits 0 to 2): `include/uapi/linux/ioprio.h`, Linux 6.5 and later. Before
//! 6.5 there are no hints, and a level above 7 is refused.

use crate::request::ProcessTag;

/// `IOPRIO_CLASS_NONE`: nobody has set a priority.
pub const CLASS_NONE: u16 = 0;
/// `IOPRIO_CLASS_RT`: real time, goes before all others.
pub const CLASS_REAL_TIME: u16 = 1;
/// `IOPRIO_CLASS_BE`: best effort, what every process is by default.
pub const CLASS_BEST_EFFORT: u16 = 2;
/// `IOPRIO_BE_NORM`: the level that kernels send by themselves.
pub const LEVEL_NORM: u16 = 4;
/// Hints 1 to 7 are duration limits (`IOPRIO_HINT_DEV_DURATION_LIMIT_1` …).
pub const HINT_MIN: u16 = 8;
/// Ten bits.
pub const HINT_MAX: u16 = 1023;

/// How tags are written, which the guest's kernel decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// Class best-effort, level 4, the tag as hint: tags 8 to 1023.
    Hints,
    /// The best-effort levels other than 4, without a hint: tags 1 to 7. Level
    /// 0 takes the number 4, which level 4 (untagged) leaves free.
    Levels,
}

impl Encoding {
    /// The tags that can be written, the first and the last.
    pub const fn tags(self) -> (u16, u16) {
        match self {
            Encoding::Hints => (HINT_MIN, HINT_MAX),
            Encoding::Levels => (1, 7),
        }
    }

    /// The priority that carries `tag`; `None` when this encoding has no such tag.
    pub const fn priority(self, tag: ProcessTag) -> Option<u16> {
        let (first, last) = self.tags();
        let tag = tag.get();
        if tag < first || tag > last {
            return None;
        }
        Some(match self {
            Encoding::Hints => priority(CLASS_BEST_EFFORT, tag, LEVEL_NORM),
            Encoding::Levels if tag == LEVEL_NORM => priority(CLASS_BEST_EFFORT, 0, 0),
            Encoding::Levels => priority(CLASS_BEST_EFFORT, 0, tag),
        })
    }
}

const fn priority(class: u16, hint: u16, level: u16) -> u16 {
    class << 13 | hint << 3 | level
}

/// The class of a priority.
pub const fn class(priority: u16) -> u16 {
    priority >> 13
}

/// The tag in the priority of a request, by whichever encoding it came. What
/// kernels send by themselves is no tag: 0, best effort at level 4, and any
/// other class.
pub fn tag(priority: u32) -> Option<ProcessTag> {
    let priority = u16::try_from(priority).ok()?;
    let (hint, level) = (priority >> 3 & HINT_MAX, priority & 7);
    match (class(priority), hint, level) {
        (CLASS_BEST_EFFORT, HINT_MIN.., LEVEL_NORM) => ProcessTag::new(hint),
        (CLASS_BEST_EFFORT, 0, LEVEL_NORM) => None,
        (CLASS_BEST_EFFORT, 0, 0) => ProcessTag::new(LEVEL_NORM),
        (CLASS_BEST_EFFORT, 0, level) => ProcessTag::new(level),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_comes_back_as_it_was_written() {
        for (encoding, count) in [(Encoding::Hints, 1016), (Encoding::Levels, 7)] {
            let tags = (0..=u16::MAX).filter_map(ProcessTag::new);
            let written: Vec<(ProcessTag, u16)> =
                tags.filter_map(|t| Some((t, encoding.priority(t)?))).collect();
            assert_eq!(written.len(), count);
            for (wrote, priority) in written {
                assert_eq!(tag(priority.into()), Some(wrote), "{encoding:?} {priority:#x}");
            }
        }
    }

    #[test]
    fn what_kernels_send_by_themselves_is_no_tag() {
        let hinted = |hint: u32| 2 << 13 | hint << 3 | 4;
        let others = [1 << 13 | 100 << 3 | 4, 3 << 13, 0x1_4000, u32::MAX];
        for untagged in [0, 4, 0x4004, hinted(1), hinted(7)].into_iter().chain(others) {
            assert_eq!(tag(untagged), None, "{untagged:#x}");
        }
        let levels: Vec<_> = (0x4000..0x4008).map(|p| tag(p).map_or(0, ProcessTag::get)).collect();
        assert_eq!(levels, [4, 1, 2, 3, 0, 5, 6, 7]);
        assert_eq!(tag(hinted(8)).map(ProcessTag::get), Some(8));
        assert_eq!(tag(hinted(1023)).map(ProcessTag::get), Some(1023));
    }
}
