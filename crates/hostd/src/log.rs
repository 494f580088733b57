//! Messages for the operator, on standard error.
//!
//! Whoever reads standard error may stop, and each write then waits. A reactor must not: what its
//! thread says goes through a queue with an end to a thread of its own, and what finds the queue
//! full is dropped and counted.

use crate::sandbox;
use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::Duration;

/// Messages that wait to be written.
const LINES_MAX: usize = 1024;
/// How long the end of a reactor waits for its last messages.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Say something. A standard error that is closed is no reason to stop.
pub fn say(text: &str) {
    match NEVER_WAITS.get() {
        true => queue().push(text.to_owned()),
        false => write(&mut io::stderr().lock(), text),
    }
}

/// From now on this thread's messages wait for nobody.
pub fn never_wait() {
    NEVER_WAITS.set(true);
    queue();
}

/// Wait until the messages of threads that never wait are written, for a moment at most.
pub fn flush() {
    queue().flush(FLUSH_PATIENCE);
}

fn write(out: &mut impl Write, text: &str) {
    let _ = writeln!(out, "seekway: {text}");
}

fn queue() -> &'static Queue {
    static QUEUE: OnceLock<Queue> = OnceLock::new();
    QUEUE.get_or_init(|| Queue::start(io::stderr()))
}

enum Line {
    Text(String),
    /// Answer when all before this is written.
    Flush(SyncSender<()>),
}

/// Messages on their way to a thread that writes them.
struct Queue {
    sender: SyncSender<Line>,
    /// Messages that found it full and have not been told of.
    dropped: Arc<AtomicU64>,
}

impl Queue {
    fn start(out: impl Write + Send + 'static) -> Queue {
        let (sender, lines) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let queue = Queue { sender, dropped: dropped.clone() };
        // Without a thread all messages are dropped: there is nowhere to say so.
        let _ = Builder::new().name("log".into()).spawn(move || {
            sandbox::enter(sandbox::Kind::Helper);
            write_lines(out, &lines, &dropped);
        });
        queue
    }

    fn push(&self, text: String) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Line::Text(text)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, patience: Duration) {
        let (reply, written) = sync_channel(1);
        if self.sender.try_send(Line::Flush(reply)).is_ok() {
            let _ = written.recv_timeout(patience);
        }
    }
}

fn write_lines(mut out: impl Write, lines: &Receiver<Line>, dropped: &AtomicU64) {
    for line in lines {
        match line {
            Line::Text(text) => write(&mut out, &text),
            Line::Flush(reply) => _ = reply.send(()),
        }
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            count => write(&mut out, &format!("{count} messages were dropped: too many at once")),
        }
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
    fn what_nobody_reads_is_dropped_and_counted_and_nobody_waits() {
        let ((began, begins), (allow, go_on)) = (sync_channel(0), channel());
        let (written, lines) = channel();
        let queue = Queue::start(Slow { began, go_on, written });
        queue.push("first".into());
        begins.recv().unwrap();
        // The first is being written; the queue takes as many as it holds, and no more.
        (0..LINES_MAX + 5).for_each(|n| queue.push(n.to_string()));
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 5);
        drop((allow, begins));
        queue.sender.send(Line::Text("last".into())).unwrap();
        drop(queue);
        let text: String = lines.iter().collect();
        let expected = "seekway: first\nseekway: 5 messages were dropped: too many at once\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with(&format!("seekway: {}\nseekway: last\n", LINES_MAX - 1)), "{text}");
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
}
