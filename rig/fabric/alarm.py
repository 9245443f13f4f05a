"""Being woken on time: a timer that an event loop can wait for, and short turns on the processor.

The timer is timerfd_create(2), which Python has from 3.13 on. It is exact to the microsecond and knows no slack.
`epoll.poll` rounds its own time-out up to whole milliseconds (1.08 ms for 0.1); `select.select` is as fine, but looks
at every descriptor every time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import struct
from time import CLOCK_MONOTONIC, monotonic_ns

_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC  # TFD_NONBLOCK, TFD_CLOEXEC
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_STEP, _MOST = 1_000, 120_000  # ns by which `lateness` follows, and beyond which the host is busy, and not foreseen
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # by machine; the C library has it only from glibc 2.41 on
_TURN = 100_000  # ns, the shortest turn that the kernel grants
_libc = ctypes.CDLL(None, use_errno=True)


class _Times(ctypes.Structure):
    """struct itimerspec: not repeated."""

    _fields_ = (("every_s", ctypes.c_long), ("every_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class Alarm:
    """Readable from the moment it was set to until it is set again. Raises OSError where there is no timerfd."""

    def __init__(self) -> None:
        self.descriptor = _libc.timerfd_create(CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.lateness = 0  # ns from the moment set until the process acts on it: a running median
        self._moment = 0
        self._times = _Times()
        self._pointer = ctypes.byref(self._times)
        self._none = ctypes.c_void_p()

    def set(self, moment: int) -> None:
        """Ring at this moment (CLOCK_MONOTONIC, ns), at once if it is past; 0 is never."""
        if moment != self._moment:
            self._moment = moment
            self._times.s, self._times.ns = divmod(moment, 10**9)
            _libc.timerfd_settime(self.descriptor, _ABSOLUTE, self._pointer, self._none)

    def note(self, late: int) -> None:
        """Follow the median: half of what is noted is more than `lateness`, half of it less (ns)."""
        self.lateness = min(_MOST, self.lateness + _STEP) if late > self.lateness else self.lateness - _STEP

    def learn(self, rounds: int = 25, sleep: int = 1_000_000) -> None:
        """Find this machine's lateness by sleeping a few times (ns)."""
        late = []
        with select.epoll() as poll:
            poll.register(self.descriptor, select.EPOLLIN)
            for _ in range(rounds):
                self.set(monotonic_ns() + sleep)
                poll.poll()
                late.append(monotonic_ns() - self._moment)
        self.set(0)
        self.lateness = min(_MOST, sorted(late)[rounds // 2])


def ask_for_short_turns() -> None:
    """Ask the scheduler for short turns on the processor, and so for early ones: sched_setattr(2), Linux 6.12.

    With two others computing on two processors it takes a third off the mean lateness. Needs no privilege; a kernel
    that knows nothing of it does nothing.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, _TURN, 0, 0)  # struct sched_attr
        _libc.syscall(number, 0, attributes, 0)
