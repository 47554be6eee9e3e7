"""`reporting.py ROOT`: `rlsweep report`, and the CPU seconds of its parts."""

import json
import sys

from phases import Phases

from rlsweep.cli import main
from rlsweep.report import build, write

phases = Phases()
phases.book(build, "read_run", "reading")
phases.book(build, "fit", "fitting")
phases.book(build, "compare", "comparing")
phases.book(write, "to_html", "drawing")
sys.stdout, answers = sys.stderr, sys.stdout
main(["report", "--root", sys.argv[1]], standalone_mode=False)
print(json.dumps(phases.complete()), file=answers)
