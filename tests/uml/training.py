"""What a guest runs for test_training.py: a real training over netem through the rig's pipeline; its record as a line.

Only the case of two nodes: the one-node case it would be compared with sends nothing, and torch takes long to start.
A case that is `invalid` was disturbed from outside the guest, as its reason says; it gets two more chances.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from rig import pipeline, progress, record, scenario
from rig.node.stream import Stream

SCENARIO, REPORTS = Path(__file__).with_name("training.yaml"), Path(gettempdir(), "reports")
CHANCES = 3


def main() -> None:
    """As `rig run` does, without a report."""
    stream = Stream()
    with progress.watch(live=False) as watch:
        work = pipeline.prepare(scenario.load(SCENARIO), pipeline.Request("netns", REPORTS), watch)
        work = replace(work, cases=tuple(case for case in work.cases if case.size > 1))
        for _ in range(CHANCES):
            pipeline.run(work, watch)
            document = record.plain(work.book.document)
            if document["cases"][0]["status"] != "invalid":
                break
    stream.emit("run", record=document)


if __name__ == "__main__":
    main()
