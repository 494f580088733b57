//! A guest moves to another QEMU on this host while it runs.

use super::{BOOT, Guest};
use crate::error::{LiveError, Result};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a move may take: the memory is copied while the guest changes it.
const MOVE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(20);
/// What QEMU may copy a second, so that a guest that writes much is caught up with.
const BYTES_PER_S: u64 = 4 << 30;
/// How long the guest may stand still.
const DOWNTIME: Duration = Duration::from_secs(2);

impl Guest {
    /// Move to a new QEMU, whose disks are served at these sockets: one for each disk. No
    /// command may run; what runs in the background goes on.
    ///
    /// # Errors
    /// The guest stays where it is when the move fails before it ends.
    pub fn migrate(&mut self, sockets: &[PathBuf]) -> Result<()> {
        let mut spec = self.spec.clone();
        for (disk, socket) in spec.disks.iter_mut().zip(sockets) {
            disk.socket.clone_from(socket);
        }
        let uri = format!("unix:{}", self.dir.path().join("migration").display());
        let mut incoming = spec.clone();
        incoming.extra.extend(["-incoming".into(), uri.clone()]);
        let mut next = Guest::start(&self.image, &incoming)?;
        next.connect(Instant::now() + BOOT)?;
        next.wait_state("query-status", "inmigrate")?;

        let downtime_ms = DOWNTIME.as_millis() as u64;
        let limits = json!({ "max-bandwidth": BYTES_PER_S, "downtime-limit": downtime_ms });
        self.qmp("migrate-set-parameters", limits)?;
        self.qmp("migrate", json!({ "uri": uri }))?;
        self.wait_state("query-migrate", "completed")?;
        next.wait_state("query-status", "running")?;
        (next.spec, next.next_id, next.starts) = (spec, self.next_id, self.starts);
        *self = next;
        Ok(())
    }

    /// Wait until QEMU answers this command with this status.
    fn wait_state(&mut self, command: &str, wanted: &str) -> Result<()> {
        let deadline = Instant::now() + MOVE;
        loop {
            let answer = self.qmp(command, json!({}))?;
            match answer["status"].as_str() {
                Some(status) if status == wanted => return Ok(()),
                Some("failed" | "cancelled") => return Err(self.did_not_move(&answer)),
                _ if Instant::now() >= deadline => return Err(self.did_not_move(&answer)),
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    fn did_not_move(&self, answer: &Value) -> LiveError {
        LiveError::Protocol { guest: self.name.clone(), why: format!("does not move: {answer}") }
    }
}
