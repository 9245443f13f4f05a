"""Every way the rig refuses or breaks, as one tree; the command line turns each into an exit code.

RigError                 where: what was attempted: what happened; what to do
├── UsageError           the caller asked for something impossible            exit 2
│   ├── ScenarioError    a scenario file is wrong: file, line, column         exit 2
│   └── UnitError        a quantity cannot be read ("1G", a bare number)      exit 2
├── LabError             the lab could not be built or broke                  exit 3
│   ├── LackError        the machine lacks something (engine, right, module)  exit 3
│   └── FabricError      the fabric refused, or applied something else        exit 3
├── WorkloadError        a rank died, hung or spoke nonsense                  exit 3
└── RecordError          a record cannot be written or read                   exit 3
"""

from __future__ import annotations


class RigError(Exception):
    """Root of everything the rig raises on purpose; its text is shown to people as it is."""

    exit_code = 3


class UsageError(RigError):
    """What was asked for cannot be done on any machine."""

    exit_code = 2


class ScenarioError(UsageError):
    """A scenario file is wrong; the text carries file, line and column."""


class UnitError(UsageError, ValueError):
    """A quantity cannot be read. Also a ValueError, so that pydantic collects it with its place."""


class LabError(RigError):
    """The lab could not be built, or broke while in use."""


class LackError(LabError):
    """This machine lacks something the lab needs; the text says how to get it."""


class FabricError(LabError):
    """The fabric refused a request, or the kernel holds something other than what was asked."""


class WorkloadError(RigError):
    """A rank died, hung, or broke its protocol."""


class RecordError(RigError):
    """A record cannot be written or read."""
