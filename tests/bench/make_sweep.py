"""`make_sweep.py ROOT`: a sweep of 100 runs of 200 evaluations each, for `status` and `report`."""

import json
import sys
from pathlib import Path

import synthetic

from rlsweep.store.layout import Root

VARY = ("loss=dapo,cispo,gspo,grpo", "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4")
root = Root(Path(sys.argv[1]))
synthetic.make(root, VARY, seeds=5, evaluations=200)
runs = [root.run(path.name) for path in root.runs.iterdir()]
print(json.dumps({"runs": len(runs), "bytes": sum(run.journal.stat().st_size for run in runs)}))
