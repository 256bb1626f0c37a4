"""The process of one section: imports the module `section_NAME` and calls its `measure`.

    python benchmarks/gpu/section.py NAME OPTIONS_JSON

Standard output has the events of `report.py` and nothing else; everything that libraries print goes to standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import time
import traceback

from options import Options
from report import Report, describe, peak_memory

STACKS_BEFORE_SECONDS = 3.0
"""The stacks of all threads are printed as long before the section is stopped."""


def main(name: str, encoded: str) -> None:
    """Measure one section."""
    options = Options.decode(encoded)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(options.deadline - time.time() - STACKS_BEFORE_SECONDS, 0.1))
    report = Report(output, options.deadline)
    try:
        importlib.import_module(f"section_{name}").measure(report, options)
    except Exception as error:  # noqa: BLE001 - reported as the section's failure
        report.fail(name, describe(error), traceback.format_exc())
    report.memory(**peak_memory())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
