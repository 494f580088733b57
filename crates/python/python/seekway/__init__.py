"""Which disk scheduler for many virtual machines that share a disk?

`compare` puts traces or generated VMs through policies on a model of a disk. The figures are
those of the command ``seekway``, to the bit.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from seekway._errors import SeekwayError, TraceError
from seekway._native import VERSION as __version__
from seekway._policy import Completion, Device, Hold, Part, Policy, Request, Wait
from seekway.commands import (
    advise,
    calibrate,
    device,
    devices,
    fit_model,
    inspect,
    policies,
    policy,
    predict,
    read_ahead,
)
from seekway.comparison import Comparison, Requests, compare
from seekway.scenario import Outcome, run
from seekway.traces import Trace, read_trace, write_trace

if TYPE_CHECKING:
    from seekway import campaign as campaign
    from seekway.planning import plan as plan


def __getattr__(name: str) -> object:
    """Import the parts that need Dask on first use."""
    if name == "plan":
        return import_module("seekway.planning").plan
    if name == "campaign":
        return import_module("seekway.campaign")
    raise AttributeError(f"module 'seekway' has no attribute {name!r}")


__all__ = [
    "Comparison",
    "Completion",
    "Device",
    "Hold",
    "Outcome",
    "Part",
    "Policy",
    "Request",
    "Requests",
    "SeekwayError",
    "Trace",
    "TraceError",
    "Wait",
    "__version__",
    "advise",
    "calibrate",
    "compare",
    "device",
    "devices",
    "fit_model",
    "inspect",
    "policies",
    "policy",
    "predict",
    "read_ahead",
    "read_trace",
    "run",
    "write_trace",
]
