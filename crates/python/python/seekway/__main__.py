"""``python -m seekway campaign`` and ``python -m seekway plan``."""

from __future__ import annotations

import sys
from importlib import import_module

_COMMANDS = {"campaign": "seekway.campaign.cli", "plan": "seekway.planning"}
_USAGE = "usage: python -m seekway {campaign,plan} …; each has --help"


def main(arguments: list[str]) -> int:
    """Run a command; its exit status."""
    name, rest = (arguments or [""])[0], arguments[1:]
    if name in ("-h", "--help"):
        print(_USAGE)
        return 0
    if name not in _COMMANDS:
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        command = import_module(_COMMANDS[name]).main
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'seekway[campaign]'"
        print(f"python -m seekway {name}: {text}", file=sys.stderr)
        return 2
    status: int = command(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
