//! The journal's way to its file: a thread of its own, so that the reactor does
//! not wait for a disk.

use crate::sandbox;
use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Text that is handed over at once, in bytes.
const CHUNK_BYTES: usize = 1 << 16;
/// Chunks under way. When the file's disk is slower than that the journal ends:
/// guests do not wait for it, and one with gaps would replay nothing.
const CHUNKS_MAX: usize = 256;

pub struct JournalWriter {
    /// Name of the device, for the message that the journal ends.
    name: String,
    pending: String,
    sender: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl JournalWriter {
    /// Start the thread that writes to `file`.
    ///
    /// # Errors
    /// The system has no more threads, or no memory for one.
    pub fn start(mut file: impl Write + Send + 'static, name: &str) -> io::Result<JournalWriter> {
        let (sender, chunks) = sync_channel::<String>(CHUNKS_MAX);
        let (name, of_thread) = (name.to_string(), name.to_string());
        let thread = Builder::new().name("journal".into()).spawn(move || {
            sandbox::enter(sandbox::Kind::Helper);
            for chunk in chunks {
                if let Err(e) = file.write_all(chunk.as_bytes()) {
                    return say_end(&of_thread, &e.to_string());
                }
            }
        })?;
        let (sender, thread) = (Some(sender), Some(thread));
        Ok(JournalWriter { name, pending: String::new(), sender, thread })
    }

    /// Take text in; all of it goes to the file at the `last` call, which waits for that. False
    /// when the file can no longer be written, or not as fast as the text comes.
    pub fn note(&mut self, text: String, last: bool) -> bool {
        self.pending.push_str(&text);
        if self.pending.len() < CHUNK_BYTES && !last {
            return true;
        }
        let chunk = std::mem::take(&mut self.pending);
        let Some(sender) = &self.sender else { return false };
        let sent = match last {
            true => sender.send(chunk).is_ok(),
            false => match sender.try_send(chunk) {
                Err(TrySendError::Full(_)) => {
                    say_end(&self.name, "its disk is too slow");
                    false
                }
                sent => sent.is_ok(),
            },
        };
        if last {
            self.sender = None;
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
        sent
    }
}

/// Says that a device's journal is over, and that nothing else is.
fn say_end(name: &str, why: &str) {
    crate::log::say(&format!(
        "the journal of device {name} ends here: {why}; its guests are served on, and the next \
         start of the daemon begins another journal"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A file on a disk that hangs until the test lets it go on.
    struct Slow(Receiver<()>, Sender<usize>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_journal_whose_disk_is_too_slow_ends_and_nobody_waits() {
        let ((allow, go_on), (written, bytes)) = (channel(), channel());
        let mut journal = JournalWriter::start(Slow(go_on, written), "test").unwrap();
        let chunk = || "x".repeat(CHUNK_BYTES);
        let taken = (0..2 * CHUNKS_MAX).take_while(|_| journal.note(chunk(), false)).count();
        // The thread may have taken one.
        assert!((CHUNKS_MAX..=CHUNKS_MAX + 1).contains(&taken), "{taken}");
        drop((allow, journal));
        assert_eq!(bytes.iter().sum::<usize>(), taken * CHUNK_BYTES, "what was taken is written");
    }

    #[test]
    fn the_last_text_is_waited_for() {
        let ((allow, go_on), (written, bytes)) = (channel(), channel());
        drop(allow);
        let mut journal = JournalWriter::start(Slow(go_on, written), "test").unwrap();
        assert!(journal.note("some".into(), false) && journal.note(" text".into(), true));
        assert_eq!(bytes.try_iter().sum::<usize>(), 9);
    }
}
