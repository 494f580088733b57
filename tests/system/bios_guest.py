"""A guest that needs no operating system: its disk's first sector is a program that reads and
writes the disk by the BIOS, again and again, and reports on QEMU's debug console."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from conftest import PATIENCE_S
from container import Container

# Sectors 2048 to 2111 in turn: write the number of the round, read it back, compare. A `.` for each
# round; an `E` for an error and an `X` for other data, after which it stands still.
PROGRAM = """
.code16
.globl _start
_start:
	cli
	xor %ax, %ax
	mov %ax, %ds
	mov %ax, %es
	mov %ax, %ss
	mov $0x7000, %sp
	mov %dl, drive
	sti
round:
	incl count
	mov count, %eax
	mov %eax, 0x8000
	and $63, %eax
	add $2048, %eax
	mov %eax, sector
	mov $0x4300, %ax
	call transfer
	movl $0, 0x8000
	mov $0x4200, %ax
	call transfer
	mov count, %eax
	cmp %eax, 0x8000
	jne other
	mov $'.', %al
	out %al, $0xe9
	jmp round
transfer:
	mov $packet, %si
	mov drive, %dl
	int $0x13
	jc error
	ret
error:
	mov $'E', %al
	jmp stop
other:
	mov $'X', %al
stop:
	out %al, $0xe9
	hlt
	jmp stop
drive:	.byte 0
count:	.long 0
packet:	.byte 16, 0
	.word 1, 0x8000, 0
sector:	.long 0, 0
.org 510
	.word 0xaa55
"""


def boot_image(image: Path) -> None:
    """Make a disk of 4 MiB that boots into the program."""
    with tempfile.TemporaryDirectory() as folder:
        source, thing, program = (Path(folder, name) for name in ("a.s", "a.o", "a.bin"))
        source.write_text(PROGRAM)
        subprocess.run(["as", "--32", "-o", thing, source], check=True)
        link = ["ld", "-m", "elf_i386", "-Ttext=0x7c00", "--oformat=binary"]
        subprocess.run([*link, "-o", program, thing], check=True)
        image.write_bytes(program.read_bytes().ljust(4 << 20, b"\0"))


class Guest:
    """QEMU in a container, with a disk by vhost-user. It reconnects when the daemon goes."""

    def __init__(self, container: Container, socket: str) -> None:
        self.console = container.path("/tmp/console")
        memory = "memory-backend-memfd,id=mem,size=64M,share=on"
        self.process = container.start(
            "qemu-system-x86_64",
            *("-accel", "tcg", "-m", "64M", "-machine", "q35,memory-backend=mem"),
            *("-object", memory, "-display", "none", "-nodefaults", "-no-reboot"),
            *("-chardev", f"socket,id=web,path={socket},reconnect=1"),
            *("-device", "vhost-user-blk-pci,chardev=web,bootindex=0"),
            *("-debugcon", "file:/tmp/console"),
        )

    def report(self) -> str:
        """The guest's output until now; its BIOS says some lines first."""
        said = self.console.read_text(errors="replace") if self.console.exists() else ""
        if self.process.poll() is not None:
            output = self.process.stdout.read() if self.process.stdout else ""
            raise AssertionError(f"QEMU has ended:\n{output}\n{said}")
        return said.rpartition("\n")[2]

    def rounds(self) -> int:
        """Count the rounds of writing, reading and comparing."""
        return self.report().count(".")

    def failures(self) -> int:
        """1 after an I/O error or other data."""
        return sum(self.report().count(letter) for letter in "EX")

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
