"""For all tests: is there a Docker engine, which skips CI accepts, and what the failure of a measurement is worth."""

from __future__ import annotations

import os
import signal
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import psutil
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from rig.measure import cpu_shares

# A shell that starts the tests in the background has SIGINT ignored, in all their children too; Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline for single examples would judge this machine's load.
settings.register_profile("rig", deadline=None)
settings.load_profile("rig")

EXPECTED = Path(__file__).with_name("expected_skips.txt")
CHANCES, MOST_REPEATED, REPEATED = 3, 12, "repeated"
_skipped: dict[str, str] = {}  # test → reason
_repeated: list[str] = []  # tests, and what each said


@cache
def docker_lack() -> str | None:
    """Why tests with a Docker engine cannot run here, None if they can."""
    from rig.lab.daemon import available

    return available()


@pytest.fixture
def with_docker() -> None:
    """A test that needs a Docker engine asks for this."""
    if reason := docker_lack():
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """A test that fails may have been disturbed, for most here run processes against the clock: by a neighbour that
    takes this machine's CPUs, which the kernel shows, or the bandwidth of its memory, which it does not. It gets two
    more chances, everything measured anew, and the summary names it with what it said; what is wrong stays wrong. Not
    so once many have failed, for that is no disturbance.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for chance in range(CHANCES):
        before = psutil.cpu_times()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failures = [report for report in reports if report.failed]
        if not failures or chance == CHANCES - 1 or len(_repeated) >= MOST_REPEATED:
            break
        stolen = cpu_shares(before, psutil.cpu_times())["cpu_stolen"]
        said = f"{item.nodeid} ({stolen:.1%} of the CPUs stolen): {_last_line(failures[0])}"
        item.user_properties.append((REPEATED, said))
        _afresh(item)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0][:200]


def _afresh(item: pytest.Item) -> None:
    """End every fixture, those of module and session too, and wind up the test's time-out, which its failure ended."""
    item.session._setupstate.teardown_exact(None)
    if limits := item.config.pluginmanager.get_plugin("timeout"):
        item.config.hook.pytest_timeout_set_timer(item=item, settings=limits._get_item_settings(item))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":  # here, where reports of all workers arrive
        _repeated.extend(str(said) for name, said in report.user_properties if name == REPEATED)
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped[report.nodeid] = reason


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, where an engine runs, a skip that nobody expected is a failure: else a broken set-up goes unseen."""
    if unexpected() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test in _repeated:
        terminalreporter.write_line(f"REPEATED {test}")
    for test, reason in unexpected().items():
        terminalreporter.write_line(
            f"UNEXPECTED SKIP {test}: {reason} (CI accepts only those in {EXPECTED.name})", red=True
        )


def unexpected() -> dict[str, str]:
    """Skipped tests that CI does not accept; none outside CI."""
    if os.environ.get("CI") != "true" or not _skipped:
        return {}
    lines = (line.partition("#")[0].strip() for line in EXPECTED.read_text(encoding="utf-8").splitlines())
    patterns = [line for line in lines if line]
    return {
        test: reason for test, reason in _skipped.items() if not any(fnmatch(test, pattern) for pattern in patterns)
    }
