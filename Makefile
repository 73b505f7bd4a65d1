# Every target first installs what it needs: a virtual environment in .venv with torch and this package.
# Other versions of torch:  make TORCH=torch==VERSION demo      and of Python:  make PYTHON=python3.11 test

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
READY := .venv/.ready-$(TORCH)
TRITON := "triton>=3.3; sys_platform == 'linux' and platform_machine == 'x86_64'"
SENTENCE := "The young woman does not give him the red book."

.PHONY: demo compare tour test quick test-all test-kernels test-machines test-hostile test-kills test-memory check format bench bench-peers data clean

# The demo: trains RNNsearch on the bundled English-French corpus, translates the test set and draws the attention.
demo: $(READY)
	$(BIN)/nmtkit train demo --overwrite
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE)
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE) -o runs/demo/attention.png
	$(BIN)/nmtkit plot-attention -m runs/demo $(SENTENCE) -o runs/demo/attention.html

# Shows the benefit of attention: six models of equal size on the same corpus, in a table and a figure; about 20 minutes.
compare: $(READY)
	$(BIN)/nmtkit compare compare-rnn-encdec compare-rnnsearch compare-luong-global compare-luong-local-m \
		compare-luong-local-p compare-transformer --plot runs/compare-length.png

# Runs all commands of `nmtkit guide tour` in runs/tour, where the figures are kept; 25 to 45 minutes.
# To start at command 40:  python -m tests.tools.guide_pages tour --begin 40
tour: $(READY)
	rm -rf runs/tour
	$(BIN)/python -m tests.tools.guide_pages tour $(ARGS)

# One process per core and one thread per process: tests use small tensors, for which more threads are only slower. Each
# process starts with a block of consecutive tests, which share trained models, and takes over tests from other processes
# when it has finished its own. PYTHONDONTWRITEBYTECODE is cleared, because otherwise every process compiles all modules.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

test: $(READY)
	$(PYTEST) -m "not slow"

# Quick tests to run while you edit: one model of each kind, no training, no subprocesses. Under a minute.
quick: $(READY)
	$(PYTEST) --quick tests/contracts/test_models.py tests/data tests/decoding tests/layers tests/metrics tests/models

# All tests, including the slow ones.   A part of them:  make ARGS='-m slow --part 3/8' test-all
# Tests that compile CUDA kernels are skipped if Triton cannot be installed.
test-all: $(READY)
	-$(BIN)/python -m pip install --quiet $(TRITON)
	$(PYTEST) $(ARGS)

# Runs the CUDA kernels in Triton's interpreter, and compiles them for several GPUs; neither needs a GPU. `make test` also
# runs the interpreter tests if Triton is installed. Triton takes up a gigabyte, so nmtkit does not depend on it, and this
# target installs it into .venv.
test-kernels: $(READY)
	$(BIN)/python -m pip install --quiet $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/layers/test_kernels.py tests/layers/test_compiled_kernels.py

# The tests that compute with tensors, as other processors would run them.   Options:  make ARGS=--help test-machines
test-machines: $(READY)
	$(BIN)/python -m tests.tools.machines $(ARGS)

# Ten thousand malformed inputs: recipes, options, text, JSON lines, alignments, damaged runs. At the end it prints the
# inputs that were not handled well, by category.   To repeat the cases of a seed:  make ARGS='--seed N' test-hostile
test-hostile: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.hunt $(ARGS)

# Kills a hundred preprocessing and training processes at random moments, and checks that each resumes to bit-identical
# tensors.   More kills, or other moments:  make ARGS='--kills 200 --seed 2' test-kills
test-kills: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.kills $(ARGS)

# Checks that the memory of translate (including its workers), summarize, rescore and align does not grow over a million
# lines each.   Fewer lines:  make ARGS='--lines 100000' test-memory
test-memory: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.tools.hostile.memory $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Compares the training speed with bare torch, and measures training and decoding with the pointer-generator. Needs an idle
# machine.   Options:  make ARGS=--help bench
# On a GPU:  make ARGS='--device cuda --shape base --batch-tokens 25000' bench;  all GPU checks:  tests/tools/gpu/slot.sh
bench: $(READY)
	$(BIN)/python -m tests.tools.bench $(ARGS)

# Compares the decoding speed of a run with CTranslate2 and Hugging Face, and installs both into .venv.
#   make ARGS='-m RUN' bench-peers
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
