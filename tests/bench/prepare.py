"""`prepare.py ROOT`: the embedded model, made once for all that follows, and a run of the tiny scale to be trained."""

import json
import sys
from pathlib import Path

from setting import step_recipe

from rlsweep import load_recipe
from rlsweep.recipe.resolved import dump
from rlsweep.store.layout import Root
from rlsweep.train.warm_start import model_source

STEPS = 20
root = Root(Path(sys.argv[1]))
model, _ = model_source(step_recipe(), root.models)
run = root.run("0123456789ab")
run.path.mkdir(parents=True)
run.recipe.write_text(dump(load_recipe("scalerl", scale="tiny", overrides=[f"budget.steps={STEPS}"])))
print(json.dumps({"model": model, "run": str(run.path), "steps": STEPS}))
