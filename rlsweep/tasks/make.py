"""From the recipe's task section to the task."""

from rlsweep.errors import RecipeError
from rlsweep.recipe import task as sections
from rlsweep.tasks.protocol import Task
from rlsweep.tasks.registers import RegisterTask


def make_task(section: sections.Task) -> Task:
    """The task of a recipe; RecipeError for one that this version can plan but not train."""
    if isinstance(section, sections.Registers):
        return RegisterTask(section)
    raise RecipeError(f"task: '{section.type}' can be planned but not trained by this version; valid here: registers")
