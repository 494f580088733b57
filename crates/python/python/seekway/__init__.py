"""Which disk scheduler for many virtual machines that share a disk?

`compare` puts traces or generated VMs through policies on a model of a disk. The figures are
those of the command ``seekway``, to the bit.
"""

from seekway._errors import SeekwayError, TraceError
from seekway._native import VERSION as __version__
from seekway._policy import Completion, Device, Hold, Part, Policy, Request, Wait
from seekway.commands import (
    advise,
    calibrate,
    device,
    devices,
    experiment,
    experiments,
    policies,
    policy,
    predict,
)
from seekway.comparison import Comparison, Requests, compare
from seekway.traces import Trace, read_trace, write_trace

__all__ = [
    "Comparison",
    "Completion",
    "Device",
    "Hold",
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
    "experiment",
    "experiments",
    "policies",
    "policy",
    "predict",
    "read_trace",
    "write_trace",
]
