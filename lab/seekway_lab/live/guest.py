"""A QEMU guest: its process, its console, and the channel over which it runs commands.

Guests are emulated (TCG) unless KVM is asked for: a KVM that opens may hang all the same.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self, TypeVar

from seekway_lab.live import image
from seekway_lab.live.process import LiveError, Process, tail, wait_for

T = TypeVar("T")
#: A boot takes five seconds on an idle machine, and minutes beside much other work.
BOOT_S = 600.0
#: How much longer than the guest's own time-out the host waits for an answer.
GRACE_S = 120.0
#: QEMU's main loop does not wait, but the host may be busy.
QMP_S = 300.0
#: A move copies the memory while the guest changes it.
MOVE_S = 180.0
#: The guest's init sends no more output than this.
OUTPUT_BYTES_MAX = 1 << 20
#: Starts of one guest at most.
STARTS_MAX = 3
#: To copy a program of some 100 MB into a guest.
INSTALL_S = 180.0


class GuestLost(LiveError):
    """A guest that stopped answering, or answers wrongly: a new one may work."""


class GuestGone(GuestLost):
    """QEMU ended, or the guest did, when neither should have."""

    def __init__(self, what: str, console: str) -> None:
        super().__init__(f"{what}\nconsole, its end:\n{console}")
        self.console = console


class GuestTimeout(GuestLost):
    """Nothing came in time."""


class CommandFailed(LiveError):
    """A command in a guest that had to succeed did not."""

    def __init__(self, what: str, ran: Ran) -> None:
        super().__init__(f"{what} ended with {ran.status}:\n{ran.text}")
        self.ran = ran


class Ran(NamedTuple):
    """Outcome of a command in a guest."""

    #: Its exit status; 137 when it was killed after its time.
    status: int
    #: Standard output and error, at most 1 MiB.
    text: str


@dataclass(frozen=True)
class Disk:
    """A virtio-blk disk of a guest, which another process serves."""

    #: The vhost-user socket; its server has to listen when the guest starts.
    socket: Path
    #: Virtqueues, at most one for each vCPU; None: one for each.
    queues: int | None = None
    #: Entries of each virtqueue, a power of two: requests outstanding at most; None: QEMU's choice.
    entries: int | None = None
    #: Connect again, once a second, when the server goes away. The guest waits.
    reconnect: bool = False


class Guest:
    """A guest. It ends with its `with` block, by `close`, and with the process that started it.

    `Guest(…)` starts QEMU and returns at once, so that several boot side by side; `wait_ready`
    returns when the guest takes commands. Use one thread at a time.
    """

    def __init__(
        self,
        name: str,
        disks: Sequence[Disk] = (),
        *,
        kernel: str = "current",
        memory_mib: int = 384,
        vcpus: int = 2,
        kvm: bool = False,
        one_thread: bool = False,
        reboots: bool = False,
        programs: Mapping[str, Path] | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        """Starts QEMU.

        Args:
            name: for messages, and QEMU's `-name`.
            disks: `/dev/vda`, `/dev/vdb`, …
            kernel: one of `image.KERNELS`.
            memory_mib: 90 of them hold the tools.
            vcpus: QEMU's `-smp`.
            kvm: the processor's own virtualisation instead of emulation.
            one_thread: emulates all vCPUs in one thread. For guests that load BPF programs while
                they work: a program changes the kernel's code, and with several threads QEMU 7.2
                may run the old code, so that the guest dies (`Oops: int3`).
            reboots: a reboot boots again; else it ends QEMU, and so does a panic.
            programs: programs of the host, by their names in the guest's /usr/bin (at most 20
                letters, digits and dashes: a disk's serial number).
            extra: further arguments for QEMU.
        """
        self.name, self.disks, self.vcpus = name, list(disks), vcpus
        self.memory_mib, self.kvm, self.one_thread = memory_mib, kvm, one_thread
        self.reboots, self.programs, self.extra = reboots, dict(programs or {}), list(extra)
        for path in self.programs.values():
            if not path.exists():
                raise LiveError(f"{path}: not there: a guest runs it; build it, or name another")
        self.image = image.prepare(kernel)
        self._next_id, self._starts = 0, 1
        self._machine = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills it, and removes its sockets and logs."""
        self._machine.end()

    @property
    def pid(self) -> int:
        """Process id of QEMU on the host."""
        return self._machine.process.pid

    @property
    def folder(self) -> Path:
        """Of QEMU's sockets and logs."""
        return self._machine.folder

    def wait_ready(self) -> Self:
        """Waits until the guest takes commands, after its start or `reset`, and installs its
        programs. A guest whose kernel dies of QEMU's emulation in its first boot is started again.
        """
        first = not self._machine.is_connected
        while True:
            try:
                self._machine.connect()
                # Lines from before a reset of the guest are passed over.
                while not self._machine.line("boot", BOOT_S).startswith("ready"):
                    pass
                break
            except GuestGone as gone:
                # The kernel stopped at a breakpoint that it had set itself, to change its own
                # code: QEMU with several threads may run it when it has already gone.
                if not first or "Oops: int3:" not in gone.console or self._starts == STARTS_MAX:
                    raise
                self._starts += 1
                self._machine.end()
                self._machine = self._start()
        for name in self.programs:
            self._install(name)
        return self

    def run(self, command: str, patience_s: float = 60) -> Ran:
        """Runs a shell command in the guest, at most for some seconds (whole ones).

        What it leaves running in the background goes on: `"(exec fio …) >/tmp/fio 2>&1 &"`.
        """
        number, self._next_id = self._next_id, self._next_id + 1
        coded = base64.b64encode(command.encode()).decode()
        patience = max(1, int(patience_s))
        self._machine.send(f"{number} {patience} {coded}\n", command)
        answer = self._machine.line(command, patience + GRACE_S)
        done = parse_done(answer, number)
        if done is None:
            raise GuestLost(f"guest {self.name}: answered '{answer}' to `{command}`")
        status, length = done
        text = self._machine.bytes(length, command, GRACE_S)
        return Ran(status, text.decode(errors="replace"))

    def check(self, command: str, patience_s: float = 60) -> str:
        """Runs a command that has to succeed; returns its output."""
        ran = self.run(command, patience_s)
        if ran.status != 0:
            raise CommandFailed(f"guest {self.name}: `{command}`", ran)
        return ran.text

    def event(self, patience_s: float) -> str:
        """The next line that something in the guest writes to `/dev/events`."""
        return self._machine.event(patience_s)

    def reset(self) -> None:
        """Resets the machine. It needs `reboots`, and `wait_ready` afterwards."""
        self.qmp("system_reset")

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Sends QEMU itself a command; returns its answer. `max_bandwidth` is `max-bandwidth`."""
        return self._machine.qmp(command, arguments)

    def kill(self) -> None:
        """SIGKILL to QEMU; its sockets and logs stay until the block's end."""
        self._machine.process.kill()

    def console(self) -> str:
        """The end of the guest's console."""
        return self._machine.console()

    def migrate(self, sockets: Sequence[Path]) -> None:
        """Moves to a new QEMU on this host, whose disks are at these sockets, one for each.

        No command may run; what runs in the background goes on. The guest stays where it is when
        the move fails before it ends.
        """
        before, disks = self._machine, self.disks
        self.disks = [replace(d, socket=s) for d, s in zip(disks, sockets, strict=True)]
        uri = f"unix:{before.folder / 'migration'}"
        after = self._start("-incoming", uri)
        try:
            after.connect()
            _reaches(after, "query-status", "inmigrate")
            # Else a guest that writes much is never caught up with.
            limits = {"max_bandwidth": 4 << 30, "downtime_limit": 2000}
            before.qmp("migrate-set-parameters", limits)
            before.qmp("migrate", {"uri": uri})
            _reaches(before, "query-migrate", "completed")
            _reaches(after, "query-status", "running")
        except BaseException:
            self.disks = disks
            after.end()
            raise
        self._machine = after
        before.end()

    def _install(self, name: str) -> None:
        """Copies a program from its disk into the guest's memory."""
        self.check(
            f'for d in /sys/block/vd*; do if [ "$(cat $d/serial)" = {name} ]; then '
            f"disk=/dev/${{d##*/}}; fi; done; "
            f"cat $disk >/usr/bin/{name} && chmod +x /usr/bin/{name} && {name} --version",
            INSTALL_S,
        )

    def _start(self, *more: str) -> _Machine:
        """Starts a QEMU for this guest."""
        return _Machine(self.name, lambda folder: [*self._command(folder), *more])

    def _command(self, folder: Path) -> list[str]:
        """QEMU's command line, with sockets and logs in a folder."""
        # mitigations=off: these guests have no secrets, and under TCG the barriers cost time.
        kernel = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check"
        accelerator = ["-accel", "kvm", "-cpu", "host"]
        if not self.kvm:
            threads = "single" if self.one_thread else "multi"
            # QEMU 7.2's cmpxchg16b breaks the flags now and then, and with them the allocator of
            # Linux 6.12: it does without where there is none.
            accelerator = ["-accel", f"tcg,thread={threads}", "-cpu", "max,-cx16"]
            # The clock of a busy host is no reason to look for another.
            kernel += " tsc=reliable"
        memory = f"memory-backend-memfd,id=mem,size={self.memory_mib}M,share=on"
        command = ["qemu-system-x86_64", "-name", f"{_escaped(self.name)},debug-threads=on"]
        command += [*accelerator, "-nodefaults", "-display", "none"]
        command += ["-machine", "pc,memory-backend=mem", "-smp", str(self.vcpus)]
        # The server of a vhost-user disk maps the guest's memory.
        command += ["-object", memory, "-m", f"{self.memory_mib}M"]
        command += ["-serial", f"file:{_escaped(folder / 'console.log')}"]
        command += ["-chardev", f"socket,id=qmp,path={_escaped(folder / 'qmp')}"]
        command += ["-mon", "chardev=qmp,mode=control", "-device", "virtio-serial-pci"]
        for port in ("control", "events"):
            command += ["-chardev", f"socket,id={port},path={_escaped(folder / port)}"]
            command += ["-device", f"virtserialport,chardev={port},name=seekway.{port}"]
        for n, disk in enumerate(self.disks):
            reconnect = ",reconnect=1" if disk.reconnect else ""
            command += ["-chardev", f"socket,id=disk{n},path={_escaped(disk.socket)}{reconnect}"]
            queues = f"num-queues={disk.queues or self.vcpus}"
            queues += f",queue-size={disk.entries}" if disk.entries else ""
            command += ["-device", f"vhost-user-blk-pci,chardev=disk{n},{queues}"]
        # After the guest's own disks: their letters stay.
        for name, path in self.programs.items():
            drive = f"file={_escaped(path)},format=raw,if=none,id={name},readonly=on"
            command += ["-drive", f"{drive},file.locking=off"]
            command += ["-device", f"virtio-blk-pci,drive={name},serial={name}"]
        if not self.reboots:
            command += ["-no-reboot"]
        command += ["-append", kernel, "-kernel", str(self.image.kernel)]
        return [*command, "-initrd", str(self.image.initramfs), *self.extra]


def boot_all(guests: Iterable[Guest]) -> list[Guest]:
    """Waits until all these guests, which have been started, take commands."""
    return [guest.wait_ready() for guest in guests]


def parse_done(line: str, number: int) -> tuple[int, int] | None:
    """Status and bytes of `done ID STATUS BYTES`; None if it is something else."""
    match line.split(" "):
        case ["done", text, status, length] if text == str(number):
            if status.isdecimal() and length.isdecimal() and int(length) <= OUTPUT_BYTES_MAX:
                return int(status), int(length)
    return None


def _escaped(value: str | Path) -> str:
    """In QEMU's option lists a comma within a value is written twice."""
    return str(value).replace(",", ",,")


def _reaches(machine: _Machine, command: str, wanted: str) -> None:
    """Waits until QEMU answers this command with this status."""

    def there() -> bool:
        answer = machine.qmp(command, {})
        if answer.get("status") in ("failed", "cancelled"):
            raise LiveError(f"guest {machine.name}: does not move: {answer}")
        return bool(answer.get("status") == wanted)

    wait_for(f"guest {machine.name}: {command}: {wanted}", there, MOVE_S)


class _Machine:
    """One QEMU process with the sockets that it connects to when it starts."""

    def __init__(self, name: str, command: Callable[[Path], list[str]]) -> None:
        self.name = name
        self._directory = TemporaryDirectory(prefix="seekway-guest-")
        self.folder = Path(self._directory.name)
        self._listeners = {}
        for port in ("control", "events", "qmp"):
            self._listeners[port] = socket.socket(socket.AF_UNIX)
            self._listeners[port].bind(str(self.folder / port))
            self._listeners[port].listen(1)
        self._streams: dict[str, _Stream] = {}
        log = self.folder / "qemu.log"
        self.process = Process(command(self.folder), log, package="qemu-system-x86")

    @property
    def is_connected(self) -> bool:
        return bool(self._streams)

    def connect(self) -> None:
        """Takes the connections that QEMU makes."""
        until = time.monotonic() + BOOT_S
        for port, listener in self._listeners.items():
            if port in self._streams:
                continue
            while not select.select([listener], [], [], 0.1)[0]:
                if self.process.ended() is not None:
                    raise self._gone()
                if time.monotonic() > until:
                    raise self._late("QEMU", BOOT_S)
            self._streams[port] = _Stream(listener.accept()[0])
            if port == "qmp":
                self._read("qmp", lambda s: s.line(QMP_S), "QMP", QMP_S)
                self.qmp("qmp_capabilities", {})

    def end(self) -> None:
        """Kills QEMU, and removes its folder."""
        self.process.kill()
        for one in [*self._listeners.values(), *(s.socket for s in self._streams.values())]:
            one.close()
        self._directory.cleanup()

    def console(self) -> str:
        return tail(self.folder / "console.log")

    def send(self, text: str, what: str) -> None:
        self._read("control", lambda s: s.socket.sendall(text.encode()), what, GRACE_S)

    def line(self, what: str, patience_s: float) -> str:
        return self._read("control", lambda s: s.line(patience_s), what, patience_s)

    def bytes(self, length: int, what: str, patience_s: float) -> bytes:
        return self._read("control", lambda s: s.bytes(length, patience_s), what, patience_s)

    def event(self, patience_s: float) -> str:
        return self._read("events", lambda s: s.line(patience_s), "event", patience_s)

    def qmp(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a command of QMP. Events are passed over."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        request = json.dumps({"execute": command, "arguments": named})
        self._read("qmp", lambda s: s.socket.sendall(f"{request}\n".encode()), command, QMP_S)
        while True:
            answer = json.loads(self._read("qmp", lambda s: s.line(QMP_S), command, QMP_S))
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise LiveError(f"guest {self.name}: QMP {command}: {answer['error']}")

    def _read(self, port: str, use: Callable[[_Stream], T], what: str, patience_s: float) -> T:
        """Uses a stream; its errors explain their effect on the guest."""
        stream = self._streams.get(port)
        if stream is None:
            raise LiveError(f"guest {self.name}: is used before it is ready")
        try:
            return use(stream)
        except TimeoutError as error:
            raise self._late(what, patience_s) from error
        except OSError as error:
            # The socket closes a moment before QEMU can be reaped.
            until = time.monotonic() + 2
            while self.process.ended() is None and time.monotonic() < until:
                time.sleep(0.01)
            if self.process.ended() is not None:
                raise self._gone() from error
            raise GuestLost(f"guest {self.name}: {what}: {error}") from error

    def _gone(self) -> GuestGone:
        text = f"guest {self.name} is gone ({self.process.ended()})\nqemu: {self.process.said()}"
        return GuestGone(text, self.console())

    def _late(self, what: str, patience_s: float) -> GuestTimeout:
        text = f"guest {self.name}: no answer within {patience_s:.0f} s: {what}"
        return GuestTimeout(f"{text}\nconsole, its end:\n{self.console()}")


class _Stream:
    """A socket that is read line by line against a deadline."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = b""

    def line(self, patience_s: float) -> str:
        """The next line, without its end."""
        until = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > OUTPUT_BYTES_MAX:
                raise OSError("a line without an end")
            self._fill(until)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def bytes(self, length: int, patience_s: float) -> bytes:
        """The next bytes."""
        until = time.monotonic() + patience_s
        while len(self._buffer) < length:
            self._fill(until)
        found, self._buffer = self._buffer[:length], self._buffer[length:]
        return found

    def _fill(self, until: float) -> None:
        self.socket.settimeout(max(0.001, until - time.monotonic()))
        try:
            found = self.socket.recv(1 << 16)
        finally:
            self.socket.settimeout(None)
        if not found:
            raise ConnectionResetError("QEMU has closed the connection")
        self._buffer += found
