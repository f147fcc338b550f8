# Two commands that need nothing but Python 3.10+: `make demo` and `make test`. They make their own .venv.
# PYTHON=python3.12 chooses the interpreter, VENV=DIR the environment, PYTEST_ARGS adds to pytest's arguments.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# A test that hangs fails, with the line where it does, and not the whole run.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile --timeout 600
TYPED := -p tenon_platforms -p tenon_core -p tenon_plugin_sdk -p tenon_cpu -p tenon_cuda -p tenon_triton -p tenon_sim
WHEELS := platforms core plugin_sdk plugins/cpu plugins/triton plugins/cuda plugins/sim

.PHONY: demo test full clients setup lint types imports wheels surfaces native native-test sim clean help

help:
	@echo "make demo      serve SmolLM2 on this CPU and ask it a question"
	@echo "make test      run the tests (quick profile); make full runs the long ones"
	@echo "make clients   run the tests of evaluation and load clients (lm-eval, guidellm, LiteLLM), which it installs"
	@echo "make lint types imports   ruff, mypy --strict, import-linter"
	@echo "make wheels    build every package into dist/"
	@echo "make native    build the CPU platform's library into this checkout; native-test runs its tests under sanitizers"
	@echo "make sim       build the simulated accelerator's library, where it is not built yet"
	@echo "make surfaces  write the frozen surfaces anew (tests/surfaces)"
	@echo "make clean     remove what was built; the environment stays"

demo:
	$(PYTHON) scripts/bootstrap.py demo --venv $(VENV)
	$(BIN)/python scripts/demo.py

setup:
	$(PYTHON) scripts/bootstrap.py test --venv $(VENV)

test: setup sim
	$(BIN)/python -m pytest -m "not full" $(PARALLEL) $(PYTEST_ARGS)

full: setup sim
	$(BIN)/python -m pytest -m full $(PYTEST_ARGS)

clients: setup
	$(BIN)/python -m pip install --quiet -r requirements/clients.txt
	$(BIN)/python -m pytest core/tests/serving/test_clients.py core/tests/serving/test_eval_clients.py $(PYTEST_ARGS)

lint: setup
	$(BIN)/python -m ruff check .

types: setup
	$(BIN)/python -m mypy --strict $(TYPED)

imports: setup
	$(BIN)/lint-imports

surfaces: setup
	$(BIN)/python scripts/write_surfaces.py

wheels: setup
	for one in $(WHEELS); do $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./$$one || exit 1; done

native:
	cmake -S plugins/cpu/native -B build/native
	cmake --build build/native --parallel 2

# Before the tests, so that none of them waits for a compiler; free where it is built already.
sim: setup
	$(BIN)/python -m tenon_sim.build

native-test:
	for one in address thread; do \
		cmake -S plugins/cpu/native -B build/native-$$one -DTENON_TESTS=ON -DTENON_SANITIZE=$$one -DTENON_OUTPUT=$(CURDIR)/build/native-$$one || exit 1; \
		cmake --build build/native-$$one --parallel 2 && build/native-$$one/tenon_cpu_tests || exit 1; \
	done

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
