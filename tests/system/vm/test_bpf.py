"""`seekway-guest` sees by BPF in real guests: the programs load in this kernel, and name who waits
for I/O."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .stage import FIND_DISK, KERNELS, PATIENCE_S, Programs, apart, once_more, say

#: Two readers, one that waits in read(2) and one that waits in io_getevents(2), beside a process
#: that computes.
LOAD = r"""
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
cat /tmp/psync /tmp/libaio /tmp/busy"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_bpf_sees_who_waits(programs: Programs, kernel: str) -> None:
    def test(folder: Path) -> None:
        with apart(programs, kernel, folder, one_thread=True) as guest:
            *readers, busy = map(int, guest.check(FIND_DISK + LOAD, PATIENCE_S).split())
            assert len(readers) == 2
            said = guest.check("seekway-guest migrate --probe=3s --format json", PATIENCE_S)
        probed = json.loads(said)
        say(f"          BPF sees {probed.get('waiting')}")
        assert probed["loads"] == "bpf", said
        assert not any(it["pid"] == busy for it in probed["waiting"]), said
        for pid in readers:
            of = (it for it in probed["waiting"] if it["pid"] == pid and it["tid"] != pid)
            reader = next(of)
            # Of three seconds. On a busy host emulated readers compute for most of it.
            assert reader["waited_us"] > 1000 and reader["ios"] > 0, said
        # Under TCG there is no KVM that could tell of vCPUs.
        assert probed["passed_over"][0].startswith("steal-bpf: the host does not tell"), said

    once_more(test)
