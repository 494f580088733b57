from collections.abc import Callable
from pathlib import Path
from typing import Any

from seekway._policy import Policy

VERSION: str

_Own = list[tuple[str, Callable[[], Policy]]]
_Progress = Callable[[int, int | None], None] | None

def compare(
    arguments: list[str], policies: _Own = ..., progress: _Progress = None
) -> tuple[str, str, Records, str, list[str]]: ...
def requests(
    arguments: list[str], run: int, policies: _Own = ..., progress: _Progress = None
) -> Records: ...
def run(arguments: list[str]) -> tuple[str, bool]: ...
def scenario(
    file: str | None,
    json: str,
    jobs: int | None = None,
    policies: _Own = ...,
    progress: _Progress = None,
) -> tuple[list[tuple[str, Records]], list[str]]: ...

class Records:
    columns: list[str]
    def __arrow_c_stream__(self, requested_schema: object = None) -> Any: ...
    def __len__(self) -> int: ...

class TraceBatches:
    def __init__(self, path: str, arguments: list[str]) -> None: ...
    def next_batch(self) -> Records | None: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> Any: ...

def fit_model(profile: str, averaged: bool, reads: int, seed: int) -> dict[str, Any]: ...
def read_ahead(profile: str) -> tuple[int, bool, bool]: ...
def duration_ms(text: str) -> float | None: ...
def check_trace(path: Path, shown: str) -> int: ...

class Request:
    id: int
    vm: int
    process: int | None
    write: bool
    sync: bool
    start_sector: int
    sectors: int
    arrived_ns: int

class Completion:
    request: Request
    dispatched_ns: int
    service_ns: int
    last: bool

class Device:
    head_sector: int
    capacity_sectors: int
    rotation_ns: int | None
    depth: int
    in_flight: int
    commands: int

class Part:
    id: int
    sectors: int
    def __init__(self, request: Request, sectors: int) -> None: ...

class Hold:
    until_ns: int
    why: str
    def __init__(self, until_ns: int, why: str = "hold") -> None: ...

class Wait:
    until_ns: int | None
    why: str
    def __init__(self, until_ns: int | None = None, why: str = "wait") -> None: ...
