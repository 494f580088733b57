#!/bin/busybox sh
# /init of Seekway's test guests: loads the virtio modules and runs what the host
# sends over the virtio-serial port "seekway.control", one command a line:
#     ID SECONDS COMMAND, the command in base64
# and answers each with a line "done ID STATUS BYTES" and that many bytes of output.
# A command sees the port "seekway.events" as /dev/events: lines written to it
# reach the host at once.
# A guest with a file /script runs that instead.

/bin/busybox mkdir -p /proc /sys /dev /run /tmp /mnt /usr/bin /usr/sbin /sbin
/bin/busybox --install -s
export PATH=/bin:/usr/bin:/sbin:/usr/sbin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
for module in $(cat /lib/modules/order); do
	insmod "/lib/modules/$module.ko" || echo "init: cannot load $module" >/dev/console
done
if [ -e /script ]; then exec sh /script; fi

# Print the device of a virtio-serial port, once it is there.
port() {
	while true; do
		for class in /sys/class/virtio-ports/*; do
			if [ "$(cat "$class/name" 2>/dev/null)" = "$1" ]; then
				echo "/dev/${class##*/}"
				return
			fi
		done
		sleep 0.1
	done
}
control=$(port seekway.control)
ln -s "$(port seekway.events)" /dev/events
exec 3<>"$control"
echo "ready $(cat /proc/uptime)" >&3

# More than this of a command's output is not sent.
limit=1048576
cd /tmp || exit 1
while read -r id seconds command; do
	echo "$command" | base64 -d >"/tmp/command.$id"
	timeout -s KILL "$seconds" sh "/tmp/command.$id" >"/tmp/output.$id" 2>&1 </dev/null 3<&-
	status=$?
	size=$(stat -c %s "/tmp/output.$id")
	if [ "$size" -gt "$limit" ]; then size=$limit; fi
	{
		echo "done $id $status $size"
		head -c "$size" "/tmp/output.$id"
	} >&3
	rm -f "/tmp/command.$id" "/tmp/output.$id"
done <&3
echo "init: the host has closed the channel" >/dev/console
poweroff -f
