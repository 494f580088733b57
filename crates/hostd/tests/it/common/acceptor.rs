//! Accepts connections for a server under test, each of which is served on a thread of its own.

use seekway_hostd::sandbox::{Kind, enter};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// When it is dropped, it accepts no more, and waits for the connections that there are.
pub struct Acceptor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    poke: Box<dyn Fn() + Send>,
}

impl Acceptor {
    /// `poke` connects once, so that `accept` returns and it is seen that no more are wanted.
    pub fn start<S: Send + 'static>(
        accept: impl Fn() -> io::Result<S> + Send + 'static,
        poke: impl Fn() + Send + 'static,
        serve: impl Fn(S) + Clone + Send + 'static,
    ) -> Acceptor {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut sessions = Vec::new();
            while let Ok(stream) = accept() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let serve = serve.clone();
                sessions.push(thread::spawn(move || {
                    enter(Kind::FrontEnd); // as in the daemon
                    serve(stream);
                }));
            }
            sessions.into_iter().for_each(|s| s.join().expect("a session ends well"));
        });
        Acceptor { stop, thread: Some(thread), poke: Box::new(poke) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        (self.poke)();
        if let Some(thread) = self.thread.take().filter(|_| !thread::panicking()) {
            thread.join().expect("the acceptor ends well");
        }
    }
}
