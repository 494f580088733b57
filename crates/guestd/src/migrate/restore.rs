//! Putting affinities back: at the agent's end, after its death, at its next start.

use super::inheritance::restore_inherited;
use super::records::{Changed, Record};
use crate::agent::{AgentError, Voice, failed};
use crate::events::Event;
use crate::procfs;
use crate::state::StateFile;
use crate::system::System;

/// Puts back an earlier agent's changes, if there are some. The caller holds the state's lock.
/// Changes that cannot be put back stay in the file, and are returned; `None` if there were no
/// changes.
///
/// # Errors
/// The state cannot be read, written or removed.
pub fn put_back(
    system: &impl System,
    file: &StateFile,
    voice: Voice,
) -> Result<Option<Vec<Record>>, AgentError> {
    // Threads of another boot are not these.
    let Some(changed) = file.load()?.filter(|changed: &Changed| changed.boot == procfs::boot_id())
    else {
        file.remove()?;
        return Ok(None);
    };
    if changed.unreadable > 0 {
        let n = changed.unreadable;
        voice.warn(format!(
            "{n} lines of the state cannot be read: tasks of which these tell keep their masks \
             (`taskset -p` shows and sets them)"
        ));
    }
    let online = procfs::online().map_err(failed("list vCPUs"))?;
    let (mut tasks, mut left) = (0, Vec::new());
    for mut record in changed.records.iter().cloned() {
        let Some(watched) = system.watch(record.tid).filter(|w| w.start == record.start) else {
            continue;
        };
        let Some(shown) = system.whole_affinity(record.tid) else { continue };
        let Some(mask) = record.affinity.restore(&shown, &online) else { continue };
        match system.set_affinity(record.tid, &mask) {
            Ok(()) => tasks += 1,
            Err(_) if !system.lives(&watched) => {}
            Err(_) => left.push(record),
        }
    }
    let mut ancestors = changed.records.clone();
    let descendants = restore_inherited(system, &mut ancestors).map_err(failed("list /proc"))?;
    if descendants.is_none() {
        voice.warn(
            "tasks that were moved start others faster than these can be found: run \
             `seekway-guest restore` when that is over",
        );
        // They are found by who started them.
        left = changed.records.clone();
    }
    let descendants = descendants.unwrap_or_default();
    voice.say(&Event::PutBack { tasks, inherited: descendants, failed: left.len() });
    let changed = Changed { records: left, ..changed };
    file.keep(Some(&changed).filter(|changed| !changed.records.is_empty()))?;
    Ok(Some(changed.records))
}
