"""Settings for those who bring only text: tokenizer, model and schedule by the size of the corpus.

`Counts` measures a corpus, `choose` picks the settings and says why, `recipe_text` writes them as a recipe. Nothing
here reads a file or needs torch. What the choices rest on is told in `plans.py`.
"""

from nmtkit.experiment.presets.choice import Preset, Reason, choose, smaller
from nmtkit.experiment.presets.plans import MEANING, NAMES, TASKS, Name, Task
from nmtkit.experiment.presets.size import CorpusSize, Counts, Text
from nmtkit.experiment.presets.writing import recipe_text

__all__ = [
    "MEANING",
    "NAMES",
    "TASKS",
    "CorpusSize",
    "Counts",
    "Name",
    "Preset",
    "Reason",
    "Task",
    "Text",
    "choose",
    "recipe_text",
    "smaller",
]
