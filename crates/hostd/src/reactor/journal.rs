//! The journal's way to its file: a thread of its own, so that the reactor does
//! not wait for a disk.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Text that is handed over at once, in bytes.
const CHUNK_BYTES: usize = 1 << 16;
/// Chunks under way. When the file's disk is slower than that the reactor
/// waits: a journal with gaps replays nothing.
const CHUNKS_MAX: usize = 256;

pub struct JournalWriter {
    pending: String,
    sender: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl JournalWriter {
    /// Start the thread that writes to `file`.
    pub fn start(file: File, name: &str) -> JournalWriter {
        let (sender, chunks) = sync_channel::<String>(CHUNKS_MAX);
        let name = name.to_string();
        let thread = std::thread::spawn(move || {
            let mut file = file;
            for chunk in chunks {
                if let Err(e) = file.write_all(chunk.as_bytes()) {
                    crate::log::say(&format!("the journal of device {name} ends here: {e}"));
                    return;
                }
            }
        });
        JournalWriter { pending: String::new(), sender: Some(sender), thread: Some(thread) }
    }

    /// Take text in; all of it goes to the file at the `last` call. False when
    /// the file can no longer be written.
    pub fn note(&mut self, text: String, last: bool) -> bool {
        self.pending.push_str(&text);
        if self.pending.len() < CHUNK_BYTES && !last {
            return true;
        }
        let chunk = std::mem::take(&mut self.pending);
        let sent = self.sender.as_ref().is_some_and(|s| s.send(chunk).is_ok());
        if last {
            self.sender = None;
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
        sent
    }
}
