//! Support for the tests of the program itself.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_seekway-guest");
/// A failing test says so after this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Ends with its owner.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn ended_in_order(&mut self) {
        self.signal(libc::SIGTERM);
        assert!(self.ended().success());
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes no pointers, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the program ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
