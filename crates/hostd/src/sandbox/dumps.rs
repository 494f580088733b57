//! Core dumps without guests' data.

use std::sync::atomic::{AtomicBool, Ordering};

static FAILED: AtomicBool = AtomicBool::new(false);

/// Leave memory out of core dumps: it holds guests' data.
pub fn leave_out(start: *mut u8, bytes: usize) {
    // SAFETY: advice; memory that is not mapped is an error and no more.
    if unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTDUMP) } != 0 {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Is all of it left out?
pub fn are_clean() -> bool {
    !FAILED.load(Ordering::Relaxed)
}

/// Is the mapping at this address left out, as the kernel tells (`dd` among its flags)?
#[cfg(test)]
pub fn is_left_out(address: *const u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
    let number = |text| usize::from_str_radix(text, 16).ok();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((first, last)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            inside = (first..last).contains(&(address as usize));
        } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            return flags.split_whitespace().any(|flag| flag == "dd");
        }
    }
    panic!("nothing is mapped at {address:p}")
}
