"""Public models, from the folders that `transformers` writes: one file per family. Importing this registers them."""

from nmtkit.convert.huggingface import bart as bart
from nmtkit.convert.huggingface import bert as bert
from nmtkit.convert.huggingface import exporting as exporting
from nmtkit.convert.huggingface import gpt2 as gpt2
from nmtkit.convert.huggingface import marian as marian
from nmtkit.convert.huggingface import reading as reading
from nmtkit.convert.huggingface import t5 as t5
