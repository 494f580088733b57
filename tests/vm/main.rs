//! Real QEMU guests on the real daemon (`seekway serve`).
//!
//! Boots are what costs: one test boots its guests once and takes them through
//! all steps. Each step says on standard error what it does and how long it took
//! (`cargo test --package seekway --test vm -- --nocapture`). Every guest has a
//! disk of its own, and what it writes there carries its own byte, so that data
//! of one in another's image would be seen.

mod common {
    use std::time::Duration;

    /// For the raw client: a failing test says so after this long.
    pub const PATIENCE: Duration = Duration::from_secs(600);
}
mod apart;
mod bpf;
#[path = "../storage/load.rs"]
mod load;
mod migrate;
mod moves;
#[path = "../../crates/hostd/tests/it/vhost/raw.rs"]
#[allow(dead_code)] // of which this uses a part
mod raw;
mod steps;
mod tags;
mod ticks;
mod together;
mod world;

use seekway_live::schedule::Recorder;
use seekway_live::turns::{Slices, Turns};
use seekway_live::vcpus;
use seekway_live::{Kernel, LiveError};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use world::World;

/// Tests that hold vCPUs do so on the same processors: one at a time.
static HOLDING: Mutex<()> = Mutex::new(());

/// Whether this process may hold its own children's threads, as every user may unless the
/// computer forbids ptrace. Skips if not.
fn may_hold() -> bool {
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    let slices = Slices { mean: Duration::from_millis(1), jitter: Duration::ZERO, seed: 1 };
    // Let go at once: who holds a child that ends is told of it in its parent's place.
    let held = Turns::hold(vec![vec![sleeper.id().cast_signed()]], slices).map(drop);
    sleeper.kill().and_then(|()| sleeper.wait()).expect("it is a child");
    held.map_err(|e| seekway_testing::skip(format_args!("ptrace: {e}"))).is_ok()
}

#[test]
fn guests_live_on_the_daemon() {
    let mut world = World::new().expect("a daemon serves");
    world.step("two guests boot", |w| w.boot(&["a", "b"]));
    world.step("fio verifies what it writes", steps::verify);
    world.step("a flush arrives", steps::flush);
    world.step("a discard frees blocks of the host", steps::discard);
    world.step("a guest sees its disk grow", steps::resize);
    world.step("two guests verify at once", |w| steps::verify_together(w, &["a", "b"]));
    world.step("the policy changes under load", steps::policies);
    world.step("a hostile neighbour", steps::hostile_neighbour);
    world.step("a reboot", steps::reboot);
    world.step("QEMU dies in mid-write", steps::killed_guest);
    world.step("the journal replays", steps::journal);
    world.step("writes are seen through the host's cache", steps::cached);
    world.step("the daemon dies in mid-write", steps::killed_daemon);
    world.step("two more guests boot", |w| w.boot(&["c", "d"]));
    world.step("guests see the block sizes of their disks", steps::block_sizes);
    world.step("four guests verify at once", |w| steps::verify_together(w, &["a", "b", "c", "d"]));
    world.step("the daemon ends when asked", World::stop);
}

/// Linux 6.1 as Debian has it now, the release before it took hints, and the
/// backport.
#[test]
fn tags_name_processes() {
    let agent = tags::agent();
    apart::for_each(&[Kernel::Current, Kernel::Released, Kernel::Backport], |kernel| {
        tags::in_guest(kernel, &agent)
    });
}

/// The kernels of Debian 12 and of its backports.
#[test]
fn bpf_sees_who_waits() {
    let agent = tags::agent();
    apart::for_each(&[Kernel::Current, Kernel::Backport], |kernel| bpf::in_guest(kernel, &agent));
}

/// The kernels of Debian 12 and of its backports.
#[test]
fn tasks_are_moved_and_left_as_they_were() {
    if !may_hold() {
        return;
    }
    let agent = tags::agent();
    let _held = HOLDING.lock().unwrap_or_else(PoisonError::into_inner);
    apart::for_each(&[Kernel::Current, Kernel::Backport], |kernel| {
        migrate::in_guest(kernel, &agent)
    });
}

/// The kernels of Debian 12 and of its backports.
#[test]
fn ticks_show_who_was_away() {
    if !may_hold() {
        return;
    }
    if let Err(e) = Recorder::new(&[]) {
        return seekway_testing::skip(e);
    }
    let agent = tags::agent();
    let _held = HOLDING.lock().unwrap_or_else(PoisonError::into_inner);
    apart::for_each(&[Kernel::Current, Kernel::Backport], |kernel| {
        match ticks::in_guest(kernel, &agent) {
            // Under TCG a vCPU that stood still can lose its timer, and then its kernel stands still.
            Err(e @ LiveError::Timeout { .. }) => {
                eprintln!("{kernel:?}: {e}; once more");
                ticks::in_guest(kernel, &agent)
            }
            looked => looked,
        }
    });
}

#[test]
fn everything_runs_together() {
    if !may_hold() {
        return;
    }
    if vcpus::processors().expect("known").len() < 2 {
        return seekway_testing::skip("two processors");
    }
    let agent = tags::agent();
    let _held = HOLDING.lock().unwrap_or_else(PoisonError::into_inner);
    together::one_round(agent);
}
