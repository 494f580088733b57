"""A kernel that oopses is asked once more, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from seekway_lab.live.guest import GuestGone
from seekway_lab.live.process import LiveError

from .stage import once_more

OOPS = "[    6.878023] ---[ end trace 0000000000000000 ]---"


def tries(*errors: Exception) -> int:
    """Count the tries of a test that fails with these errors, in turn, and then passes."""
    folders: list[Path] = []

    def test(folder: Path) -> None:
        assert folder not in folders
        folders.append(folder)
        if len(folders) <= len(errors):
            raise errors[len(folders) - 1]

    once_more(test)
    return len(folders)


def test_a_kernel_that_oopses_is_asked_once_more() -> None:
    assert tries(GuestGone("a", OOPS)) == 2
    with pytest.raises(GuestGone):
        tries(GuestGone("a", OOPS), GuestGone("a", OOPS))


def test_nothing_else_is() -> None:
    for error in (GuestGone("a", "reboot: Restarting system"), LiveError(OOPS)):
        with pytest.raises(LiveError):
            tries(error)
