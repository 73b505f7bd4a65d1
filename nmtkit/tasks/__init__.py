"""Tasks: what a recipe can train a model for, one file each. Importing this registers them."""

from nmtkit.tasks import translation as translation  # isort: split

from nmtkit.tasks import captioning as captioning
from nmtkit.tasks import classification as classification
from nmtkit.tasks import language_modelling as language_modelling
from nmtkit.tasks import parsing as parsing
from nmtkit.tasks import summarization as summarization
