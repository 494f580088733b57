//! The thread that keeps the size of the caches where the host's memory wants it. There is one
//! only while the size is `auto`.

use super::Host;
use crate::log::say;
use crate::sandbox::{self, Kind, Places};
use crate::threads::{STACK_BYTES, spawn};
use seekway_core::units::Nanos;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// The token of what ends it. Others are of files that tell of pressure.
const END: u64 = u64::MAX;

/// Why the thread looks at the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Tasks waited for memory.
    Pressure,
    /// The usual time between two looks has passed.
    Time,
}

/// The thread. It ends when this is dropped.
pub struct Sizer {
    end: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Sizer {
    /// Start it. It looks at the memory every `look_after`, and when a trigger says so, and opens
    /// files in `places` only.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn start(
        host: Weak<Host>,
        triggers: Vec<std::fs::File>,
        look_after: Nanos,
        places: Places,
    ) -> io::Result<Sizer> {
        let (end, ended) = UnixStream::pair()?;
        let epoll = Epoll::new()?;
        let watch = |fd, events, token| {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, token))
        };
        watch(ended.as_raw_fd(), EventSet::IN, END)?;
        for (trigger, token) in triggers.iter().zip(0..) {
            watch(trigger.as_raw_fd(), EventSet::PRIORITY, token)?;
        }
        let look_after = Duration::from_nanos(look_after.get());
        let thread = spawn("cache-size", STACK_BYTES, move || {
            let _open = ended;
            sandbox::enter_with(Kind::Helper, &places);
            watch_memory(&host, &epoll, &triggers, look_after);
        })?;
        Ok(Sizer { end, thread: Some(thread) })
    }
}

impl Drop for Sizer {
    fn drop(&mut self) {
        let _ = self.end.write_all(&[1]); // it has ended already when this fails
        let Some(thread) = self.thread.take() else { return };
        // The thread itself may be the last to let go of the host.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn watch_memory(
    host: &Weak<Host>,
    epoll: &Epoll,
    triggers: &[std::fs::File],
    look_after: Duration,
) {
    let mut events = [EpollEvent::default(); 8];
    let mut due = Instant::now() + look_after;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        // Up to the next whole millisecond, or it would look too early again and again.
        let left_ms = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let ready = match epoll.wait(left_ms, &mut events) {
            Ok(ready) => ready,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return say(&format!("cache: the size stays as it is: epoll: {e}")),
        };
        let ready = &events[..ready];
        if ready.iter().any(|event| event.data() == END) {
            return;
        }
        for event in ready.iter().filter(|e| e.event_set().contains(EventSet::ERROR)) {
            // A control group that has gone. It would be ready for ever.
            if let Some(trigger) = triggers.get(event.data() as usize) {
                let gone = EpollEvent::default();
                let _ = epoll.ctl(ControlOperation::Delete, trigger.as_raw_fd(), gone);
            }
        }
        let is_pressed = ready.iter().any(|e| e.event_set().contains(EventSet::PRIORITY));
        let is_due = Instant::now() >= due;
        if !is_pressed && !is_due {
            continue;
        }
        if is_due {
            due = Instant::now() + look_after;
        }
        let Some(host) = host.upgrade() else { return };
        host.follow_memory(if is_pressed { Cause::Pressure } else { Cause::Time });
    }
}
