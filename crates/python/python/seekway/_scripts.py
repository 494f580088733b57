"""The commands ``seekway-campaign`` and ``seekway-plan``."""

from __future__ import annotations

import sys
from importlib import import_module


def campaign() -> int:
    """``seekway-campaign``."""
    return _run("campaign", "seekway.campaign.cli")


def plan() -> int:
    """``seekway-plan``."""
    return _run("plan", "seekway.planning")


def _run(name: str, module: str) -> int:
    try:
        main = import_module(module).main
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'seekway[campaign]'"
        print(f"seekway {name}: {text}", file=sys.stderr)
        return 2
    status: int = main()
    return status
