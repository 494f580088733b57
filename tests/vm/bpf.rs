//! `seekway-guest` sees by BPF in real guests: the programs load in this kernel, and name who
//! waits for I/O.

use crate::apart::{self, FIND_DISK};
use crate::world::{PATIENCE, expect};
use seekway_live::{Accelerator, GuestSpec, Kernel, LiveError, Result};
use serde_json::Value;
use std::path::Path;

/// Two readers, one that waits in read(2) and one that waits in io_getevents(2), beside a
/// process that computes.
const LOAD: &str = "
read_by() {
	fio --name=$1 --filename=$disk --direct=1 --rw=randread --bs=4k --ioengine=$1 --iodepth=1 \
		--thread --time_based --runtime=3600 >/dev/null 2>/tmp/$1.said &
	echo $! >/tmp/$1
}
read_by psync
read_by libaio
(while :; do :; done) & echo $! >/tmp/busy
for job in psync libaio; do
	n=0; until grep -h ^read_bytes /proc/$(cat /tmp/$job)/task/*/io | grep -qv ' 0$'; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/$job.said; exit 1; }; sleep 0.1; done
done
cat /tmp/psync /tmp/libaio /tmp/busy";

/// Boot a kernel, and have the agent look.
pub fn in_guest(kernel: Kernel, agent: &Path) -> Result<()> {
    let accelerator = Accelerator::TcgOneThread;
    let spec = GuestSpec { accelerator, ..GuestSpec::new("bpf") };
    let (mut guest, _dir) = apart::boot(kernel, agent, spec)?;
    let pids = guest.check(&format!("{FIND_DISK}{LOAD}"), PATIENCE)?;
    let pids: Vec<i64> = pids.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let [psync, libaio, busy] = pids[..] else {
        return Err(LiveError::Measured(format!("three processes were to start, not {pids:?}")));
    };
    let said = guest.check("seekway-guest migrate --probe=3s --format json", PATIENCE)?;
    let probed: Value = serde_json::from_str(&said).unwrap_or_default();
    expect(probed["loads"] == "bpf", || said.clone())?;
    sees_who_waits(&probed, &[psync, libaio], busy)?;
    // Under TCG there is no KVM that could tell of vCPUs.
    let missing = probed["passed_over"][0].as_str().unwrap_or_default();
    expect(missing.starts_with("steal-bpf: the host does not tell"), || said.clone())
}

fn sees_who_waits(probed: &Value, readers: &[i64], busy: i64) -> Result<()> {
    let waiting: &[Value] = probed["waiting"].as_array().map_or(&[], Vec::as_slice);
    eprintln!("          BPF sees {}", probed["waiting"]);
    let of = |pid: i64| waiting.iter().find(move |it| it["pid"] == pid && it["tid"] != pid);
    expect(of(busy).is_none(), || format!("{probed}"))?;
    for &pid in readers {
        let reader = of(pid).ok_or_else(|| LiveError::Measured(format!("no {pid}: {probed}")))?;
        // Of three seconds. On a busy host emulated readers compute for most of it.
        let waits = reader["waited_us"].as_u64() > Some(1000);
        expect(waits && reader["ios"].as_u64() > Some(0), || format!("{pid}: {probed}"))?;
    }
    Ok(())
}
