"""Load of a guest that verifies its disk in the background."""

#: fio writes with flushes, reads back and checks each block, with new data in each round; beside
#: it, blocks are written, discarded, and have to read as zeroes.
LOAD = r"""
rm -f /tmp/stop /tmp/failed /tmp/rounds
(
while [ ! -e /tmp/stop ]; do
    fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 \
        --rw=randwrite --bsrange=4k-32k --blockalign=4k --size=2M --offset_increment=4M \
        --numjobs=$(nproc) --randrepeat=0 --fdatasync=16 --verify=crc32c --verify_fatal=1 \
        --group_reporting --output=/tmp/fio.log || { cp /tmp/fio.log /tmp/failed; exit 1; }
    echo >>/tmp/rounds
done
) >/dev/null 2>&1 &
echo $! >/tmp/load
(
while [ ! -e /tmp/stop ]; do
    dd if=/dev/urandom of=/dev/vda bs=64k count=8 seek=2048 oflag=direct 2>/dev/null &&
    blkdiscard -o 134217728 -l 524288 /dev/vda &&
    dd if=/dev/vda bs=64k count=8 skip=2048 iflag=direct of=/tmp/discarded 2>/dev/null &&
    [ "$(tr -d '\0' </tmp/discarded | wc -c)" = 0 ] ||
    { echo 'a discarded block is not zero, or a command failed' >/tmp/failed; exit 1; }
done
) >/dev/null 2>&1 &
echo $! >/tmp/discards
"""

#: Lets both loops end, and says what failed; else the number of rounds.
END = r"""
touch /tmp/stop
for pid in $(cat /tmp/load) $(cat /tmp/discards); do
    while [ -d /proc/$pid ]; do sleep 0.1; done
done
[ -e /tmp/failed ] && { tail -n 40 /tmp/failed; dmesg | tail -n 20; exit 1; }
dmesg | grep 'I/O error' && exit 1
wc -l </tmp/rounds
"""
