"""Public models, from the folders that `transformers` writes: one file per family. Importing this registers them."""

from nmtkit.huggingface import bart as bart
from nmtkit.huggingface import bert as bert
from nmtkit.huggingface import exporting as exporting
from nmtkit.huggingface import gpt2 as gpt2
from nmtkit.huggingface import marian as marian
from nmtkit.huggingface import reading as reading
from nmtkit.huggingface import t5 as t5
