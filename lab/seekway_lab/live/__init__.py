"""Experiments on real QEMU guests and real servers, beside the simulator (docs/live.md).

1. `image.prepare` makes a kernel and an initramfs of Debian's packages, once a machine.
2. `daemon.Daemon` is a `seekway serve`; `guest.Guest` runs QEMU with disks on its sockets.
3. `Guest.run` has the guest run a shell command, and returns its status and output.
4. `runs` has what all experiments share: counters over a window, void rules, tables, and the
   command `seekway-lab live`.

Tests use the first three too: these modules need neither the wheel nor pandas. Guests and daemons
end with the process that started them, also if it is killed.
"""
