//! Messages for the operator, on standard error.
//!
//! Whoever reads standard error may stop, and each write then waits. No thread of the daemon must:
//! from [`start`] on, messages go through a queue with an end to a thread of its own. Lines that
//! find the queue full are lost and counted. The file description is shared with other programs,
//! so its flags are left alone.

use crate::sandbox;
use crate::stream::{interest, poll};
use crate::threads::{lock, whole};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Lines that wait to be written.
const LINES_MAX: usize = 1024;
/// Longest wait of the program's end for each of the last lines.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Say something. A standard error that is closed is no reason to stop.
pub fn say(text: &str) {
    match QUEUE.get() {
        Some(queue) => queue.push(text.to_owned()),
        None => write(&mut io::stderr().lock(), text),
    }
}

/// Lines about one peer, which can cause as many as it likes.
#[derive(Default)]
pub struct LineLimit {
    /// In the minute that began with the first: when, and how many lines there were.
    minute: Mutex<Option<(Instant, u32)>>,
}

/// Lines about one peer in a minute.
pub const PEER_LINES_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

impl LineLimit {
    /// Say something, unless enough was said.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if let Some(lost) = self.next(Instant::now()) {
            let more = match lost {
                0 => String::new(),
                lost => format!(" ({lost} more lines about it were left out before)"),
            };
            say(&format!("{}{more}", text()));
        }
    }

    /// Lines of the minute, those included that were left out.
    #[cfg(test)]
    pub fn of_minute(&self) -> u32 {
        lock(&self.minute).map_or(0, |(_, lines)| lines)
    }

    /// May a line be said now? How many were not, if so.
    fn next(&self, now: Instant) -> Option<u32> {
        let mut minute = lock(&self.minute);
        match &mut *minute {
            Some((began, lines)) if now - *began < MINUTE => {
                *lines = lines.saturating_add(1);
                (*lines <= PEER_LINES_MAX).then_some(0)
            }
            other => {
                let before = other.replace((now, 1));
                Some(before.map_or(0, |(_, lines)| lines.saturating_sub(PEER_LINES_MAX)))
            }
        }
    }
}

/// From now on messages wait for nobody. Called by a thread that may start others.
pub fn start() {
    QUEUE.get_or_init(|| Queue::start(standard_error()));
}

/// Before the program ends: wait until what was said is written, as long as somebody reads it.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_PATIENCE);
    }
}

/// Standard error without the lock of [`io::stderr`]: who waits for a reader must not hold it.
fn standard_error() -> impl Write + Send + 'static {
    // SAFETY: the descriptor is open for as long as the process lives, and is not closed here.
    StandardError(ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDERR_FILENO) }))
}

struct StandardError(ManuallyDrop<File>);

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Somebody with whom it is shared does not wait: then wait here.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [interest(&*self.0, libc::POLLOUT)], -1); // or write again
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In one write, so that lines of several programs do not mix.
fn write(out: &mut impl Write, text: &str) {
    let _ = out.write_all(format!("seekway: {text}\n").as_bytes());
}

/// Lines on their way to a thread that writes them.
struct Queue {
    sender: SyncSender<String>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Lines that found room.
    pushed: AtomicU64,
    /// Lines that found none, and that have not been told of.
    lost: AtomicU64,
    /// Lines that are written.
    written: Mutex<u64>,
    wrote: Condvar,
}

impl Queue {
    fn start(out: impl Write + Send + 'static) -> Queue {
        let (sender, lines) = sync_channel(LINES_MAX);
        let counts = Arc::new(Counts::default());
        let queue = Queue { sender, counts: counts.clone() };
        // Without a thread all lines are lost: there is nowhere to say so.
        let _ = Builder::new().name("log".into()).spawn(move || {
            sandbox::enter(sandbox::Kind::Helper);
            write_lines(out, &lines, &counts);
        });
        queue
    }

    fn push(&self, text: String) {
        match self.sender.try_send(text) {
            Ok(()) => _ = self.counts.pushed.fetch_add(1, Ordering::Relaxed),
            Err(TrySendError::Full(_)) => _ = self.counts.lost.fetch_add(1, Ordering::Relaxed),
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Wait until all lines that were pushed are written, and no longer than `patience` for one.
    fn flush(&self, patience: Duration) {
        let pushed = self.counts.pushed.load(Ordering::Relaxed);
        let mut written = lock(&self.counts.written);
        while *written < pushed {
            let before = *written;
            let waited = self.counts.wrote.wait_timeout(written, patience);
            let (now, timeout) = whole(waited);
            if timeout.timed_out() && *now == before {
                return;
            }
            written = now;
        }
    }
}

fn write_lines(mut out: impl Write, lines: &Receiver<String>, counts: &Counts) {
    for text in lines {
        write(&mut out, &text);
        match counts.lost.swap(0, Ordering::Relaxed) {
            0 => {}
            1 => write(&mut out, "1 line was lost: standard error was not read in time"),
            lost => write(
                &mut out,
                &format!("{lost} lines were lost: standard error was not read in time"),
            ),
        }
        *lock(&counts.written) += 1;
        counts.wrote.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Says that it is written to, and waits until it may go on.
    struct Slow {
        began: SyncSender<()>,
        go_on: Receiver<()>,
        written: std::sync::mpsc::Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.began.send(());
            // An error once the test lets it run.
            let _ = self.go_on.recv();
            let _ = self.written.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_nobody_waits() {
        let ((began, begins), (allow, go_on)) = (sync_channel(0), channel());
        let (written, lines) = channel();
        let queue = Queue::start(Slow { began, go_on, written });
        queue.push("first".into());
        begins.recv().unwrap();
        // The first is being written; the queue takes as many as it holds, and no more.
        (0..LINES_MAX + 5).for_each(|n| queue.push(n.to_string()));
        assert_eq!(queue.counts.lost.load(Ordering::Relaxed), 5);
        drop((allow, begins));
        queue.sender.send("last".into()).unwrap();
        drop(queue);
        let text: String = lines.iter().collect();
        let expected =
            "seekway: first\nseekway: 5 lines were lost: standard error was not read in time\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with(&format!("seekway: {}\nseekway: last\n", LINES_MAX - 1)), "{text}");
    }

    #[test]
    fn lines_about_one_peer_are_limited_and_what_is_left_out_is_counted() {
        let (limit, now) = (LineLimit::default(), Instant::now());
        let said = (0..50).filter_map(|_| limit.next(now)).count();
        assert_eq!(said, PEER_LINES_MAX as usize);
        assert_eq!(limit.next(now + MINUTE), Some(50 - PEER_LINES_MAX));
        assert_eq!(limit.next(now + MINUTE), Some(0));
    }

    #[test]
    fn flush_waits_for_what_was_said_before() {
        let (written, lines) = channel();
        let ((began, begins), (allow, go_on)) = (sync_channel(9), channel());
        drop((allow, begins));
        let queue = Queue::start(Slow { began, go_on, written });
        queue.push("text".into());
        queue.flush(Duration::from_secs(30));
        assert_eq!(lines.try_iter().collect::<String>(), "seekway: text\n");
    }

    #[test]
    fn flush_gives_up_when_nobody_reads() {
        let ((began, begins), (_allow, go_on)) = (sync_channel(9), channel());
        let queue = Queue::start(Slow { began, go_on, written: channel().0 });
        queue.push("text".into());
        begins.recv().unwrap();
        queue.flush(Duration::from_millis(1));
    }
}
