# Every target sets up what it needs: a virtual environment in .venv with torch and this package.
# Another torch:  make TORCH=torch==VERSION demo      Another Python:  make PYTHON=python3.11 test

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
READY := .venv/.ready-$(TORCH)
TRITON := "triton>=3.3; sys_platform == 'linux' and platform_machine == 'x86_64'"
SENTENCE := "The young woman does not give him the red book."

.PHONY: demo compare tour test quick test-all test-kernels test-machines test-hostile test-kills test-memory check format bench bench-peers data clean

# The demo: trains RNNsearch on the embedded English-French corpus, translates its test set, draws what it looked at.
demo: $(READY)
	$(BIN)/nmtkit train demo --overwrite
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE)
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE) -o runs/demo/attention.png
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE) -o runs/demo/attention.html

# Six models of equal size on the same corpus: what attention is worth, in one table and one figure; about 20 minutes.
compare: $(READY)
	$(BIN)/nmtkit compare compare-rnn-encdec compare-rnnsearch compare-luong-global compare-luong-local-m \
		compare-luong-local-p compare-transformer --plot runs/compare-length.png

# All that `nmtkit guide tour` says, one command after the other, in runs/tour, where the pictures stay; 25 to 45 minutes.
# Its last ones only:  python -m tests.tools.guide_pages tour --begin 40
tour: $(READY)
	rm -rf runs/tour
	$(BIN)/python -m tests.tools.guide_pages tour $(ARGS)

# One thread a process and one process a core: tests use small tensors, which more threads only slow down. Each process
# begins with tests that stand together, which share what is trained for them, and takes from the others at the end.
# Compiled modules are kept even where the environment says not to: without them every process compiles everything anew.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

test: $(READY)
	$(PYTEST) -m "not slow"

# What one runs while writing: one model of each kind, no trainings, no commands in processes of their own. Under a minute.
quick: $(READY)
	$(PYTEST) --quick tests/contracts/test_models.py tests/data tests/decoding tests/layers tests/metrics tests/models

# Every test, the slow ones too.   A part of them:  make ARGS='-m slow --part 3/8' test-all
# Those that compile the kernels for CUDA are skipped where Triton cannot be installed.
test-all: $(READY)
	-$(BIN)/python -m pip install --quiet $(TRITON)
	$(PYTEST) $(ARGS)

# The kernels for CUDA in Triton's interpreter, and compiled for several GPUs: neither needs one. `make test` runs the
# first as well, where Triton is; it is not among what this package needs, having a gigabyte, so that it is installed into
# .venv here.
test-kernels: $(READY)
	$(BIN)/python -m pip install --quiet $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/layers/test_kernels.py tests/layers/test_compiled_kernels.py

# The tests that compute with tensors, as other processors would run them.   More:  make ARGS=--help test-machines
test-machines: $(READY)
	$(BIN)/python -m tests.tools.machines $(ARGS)

# Ten thousand hostile cases: recipes, options, text, JSON lines, alignments, damaged runs. Ends with what was not answered
# well, by family.   The same cases again:  make ARGS='--seed N' test-hostile
test-hostile: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.hunt $(ARGS)

# A hundred trainings and preprocessings ended by signals at random moments, each gone on with to bit-equal tensors.
# Others:  make ARGS='--kills 200 --seed 2' test-kills
test-kills: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.kills $(ARGS)

# Memory of translate (its workers too), summarize, rescore and align over a million lines each.   Fewer:  make ARGS='--lines 100000' test-memory
test-memory: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.memory $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Training speed beside bare torch, the pointer-generator's training and decoding; needs a quiet machine.   More:  make ARGS=--help bench
# On a GPU:  make ARGS='--device cuda --shape base --batch-tokens 25000' bench;  all that a GPU must show:  tests/tools/gpu/slot.sh
bench: $(READY)
	$(BIN)/python -m tests.tools.bench $(ARGS)

# Decoding of a run beside CTranslate2 and Hugging Face, which are installed into .venv.   make ARGS='-m RUN' bench-peers
bench-peers: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[peers]"
	$(BIN)/python -m tests.tools.bench decode --against ctranslate2,huggingface $(ARGS)

data: $(READY)
	$(BIN)/python data/generate.py

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev,tensorboard,fast]"
	rm -f .venv/.ready-*
	touch "$(READY)"

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
