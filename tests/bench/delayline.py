"""What the delay line can do on this machine, as a table on stdout: `python -m tests.bench.delayline`.

Run it on a quiet machine. RTTs are medians of UDP round trips one at a time; goodput is one TCP stream's, cubic.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.fabric.wire import Wire, transit

MS = 10**6
DELAYS = (0, 1, 10, 50)  # ms each way
RATES = ("1gbit", "2.5gbit", "")  # as tc counts; none: unshaped
SECONDS = 5
FULL_FRAME = 1514  # bytes, and the payload of it that TCP carries
PAYLOAD = 1448


def round_trips() -> None:
    """RTT by delay, and what it is off from 2 × delay + the RTT without delay."""
    print("| delay each way, ms | RTT median, ms | best tenth | worst tenth | error, ms | latency foreseen, ms |")
    print("|---|---|---|---|---|---|")
    least = 0.0
    for delay in DELAYS:
        asked = transit(delay=delay * MS)
        with Wire(asked, asked) as wire:
            found = wire.traffic("rtt", 300 if delay < 50 else 60, 0.005)["rtt"]
            foreseen = wire.ask(do="counters")["latency"] * 1e3
        tenths = [found[len(found) * share // 10] * 1e3 for share in (1, 5, 9)]
        least = least or tenths[1]
        error = tenths[1] - least - 2 * delay
        best, middle, worst = tenths
        print(f"| {delay} | {middle:.3f} | {best:.3f} | {worst:.3f} | {error:+.3f} | {foreseen:.3f} |")


def goodput() -> None:
    """TCP through a token bucket, or none, with no delay and with 10 ms each way."""
    print("\n| rate | delay each way, ms | goodput, Gb/s | of the rate's | sent again | late, ms | CPU | µs a frame |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in RATES:
        for delay in (0, 10):
            asked = transit(delay=delay * MS)
            with Wire(asked, asked) as wire:
                shape(wire, rate)
                found, used = measured(wire, "bulk", SECONDS, "cubic")
            share = f"{found['goodput'] / nominal(rate):.4f}" if rate else ""
            print(
                f"| {rate or 'none'} | {delay} | {found['goodput'] / 1e9:.3f} | {share} | {found['resent']} | {used} |"
            )


def small_packets() -> None:
    """Packets of the MTU's size, as many as one sender can."""
    print("\n| delay each way, ms | packets a second | late, ms | CPU | µs a frame |")
    print("|---|---|---|---|---|")
    for delay in (0, 10):
        with Wire(transit(delay=delay * MS)) as wire:
            found, used = measured(wire, "flood", SECONDS)
        print(f"| {delay} | {found['arrived']:.0f} | {used} |")


def shape(wire: Wire, rate: str) -> None:
    """A token bucket on what each end sends."""
    for end in "ab" if rate else "":
        wire.run(end, *f"tc qdisc replace dev {end} root tbf rate {rate} burst 512kb limit 8mb".split())


def nominal(rate: str) -> float:
    """TCP payload that fits the rate (bit/s)."""
    return float(rate.removesuffix("gbit")) * 1e9 * PAYLOAD / FULL_FRAME


def measured(wire: Wire, kind: str, *arguments: object) -> tuple[dict[str, Any], str]:
    """What traffic found, and three columns: the mean lateness of packets, the delay line's CPU share, its CPU time."""
    began, used = time.monotonic(), wire.cpu()
    found = wire.traffic(kind, *arguments)
    used, took = wire.cpu() - used, time.monotonic() - began
    lines = [wire.counters(way) for way in ("up", "down")]
    frames = sum(line["taken"] for line in lines)
    late = max(line["late_mean"] for line in lines) * 1e3
    return found, f"{late:.3f} | {used / took:.0%} | {used / max(1, frames) * 1e6:.1f}"


def main() -> None:
    """Everything: about a minute and a half."""
    print(f"load before: {os.getloadavg()[0]:.2f}, processors: {os.cpu_count()}\n", file=sys.stderr)
    round_trips()
    goodput()
    small_packets()


if __name__ == "__main__":
    main()
