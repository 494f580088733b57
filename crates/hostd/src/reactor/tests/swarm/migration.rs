//! A guest that moves to another VMM while it runs. The next VMM gets what the guest's memory was
//! when the move began, what the guest has written since, and the pages that the device's log
//! names: nothing else may be missing.

use crate::frontends::vhost_user::memory_file;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes for which a bit of the log stands.
const PAGE_BYTES: usize = 4096;

pub struct Migration {
    log: File,
    log_bytes: usize,
    /// The memory as the next VMM has it; empty until the first copy.
    copy: RefCell<Vec<u8>>,
}

impl Migration {
    /// A log for this number of bytes of memory, of which nothing is copied yet.
    pub fn new(bytes: usize) -> Migration {
        let log_bytes = bytes.div_ceil(8 * PAGE_BYTES);
        Migration { log: memory_file(log_bytes as u64), log_bytes, copy: RefCell::default() }
    }

    /// The log and its bytes.
    pub fn log(&self) -> (File, u64) {
        (self.log.try_clone().expect("a descriptor"), self.log_bytes as u64)
    }

    /// Has the first copy been made?
    pub fn has_begun(&self) -> bool {
        !self.copy.borrow().is_empty()
    }

    /// The first copy of all.
    pub fn copy_all(&mut self, memory: Vec<u8>) {
        self.copy = RefCell::new(memory);
    }

    /// The guest has written: its VMM knows of that itself.
    pub fn wrote(&self, at: usize, bytes: &[u8]) {
        if self.has_begun() {
            self.copy.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Copy what the log names, and clear it.
    pub fn copy_logged(&self, memory: &[u8]) {
        let mut bits = vec![0; self.log_bytes];
        self.log.read_exact_at(&mut bits, 0).expect("the log");
        self.log.write_all_at(&vec![0; self.log_bytes], 0).expect("the log");
        let mut copy = self.copy.borrow_mut();
        for (page, new) in memory.chunks(PAGE_BYTES).enumerate() {
            if bits[page / 8] >> (page % 8) & 1 == 1 {
                copy[page * PAGE_BYTES..][..new.len()].copy_from_slice(new);
            }
        }
    }

    /// The memory for the next VMM.
    ///
    /// # Errors
    /// A page of it is not what it is here.
    pub fn end(self, memory: &[u8]) -> Result<Vec<u8>, String> {
        let copy = self.copy.into_inner();
        match copy.iter().zip(memory).position(|(copy, here)| copy != here) {
            None => Ok(copy),
            Some(at) => Err(format!("moving: the device wrote byte {at:#x} and did not log it")),
        }
    }
}
