# make            what there is
# make demo       build, run, show: three tables here and a page to open
# make test       every test
#
# Needs: cargo (rustup takes the toolchain from rust-toolchain.toml) and a C
# linker, which `install-deps` takes from Debian's packages when it is missing.

CARGO ?= cargo
OUT ?= out

.DEFAULT_GOAL := help
SWARM_SEEDS ?= 10000..1000000
.PHONY: help demo test check wheel swarm planted-faults kills powercuts fuzz miri soak lint coverage bench bench-host bench-check bench-web hostile bench-memory docs schemas site experiments arena mqsim install-deps build guest deb rpm release reproducible

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1#/p' $(MAKEFILE_LIST) | column -t -s '#' 2>/dev/null || \
	 sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' $(MAKEFILE_LIST)

build: install-deps ## the program, target/release/seekway
	$(CARGO) build --release --package seekway

# The agent sees more through BPF; with it the build needs clang and libelf's archive.
BPF = --features seekway-guestd/bpf

guest: ## the agent for guests, one static file, its licences, and its units for systemd: out/seekway-guest*
	@scripts/install-deps bpf
	@mkdir -p $(OUT)
	@cp "$$(scripts/build-release guest)" $(OUT)/seekway-guest
	@cp share/systemd/seekway-guest-*.service $(OUT)/
	@cp share/packaging/seekway-guest/copyright $(OUT)/seekway-guest.copyright
	@echo "$(OUT)/seekway-guest: $$(stat -c %s $(OUT)/seekway-guest) bytes, static; beside it its units for systemd"

deb: ## packages for Debian and Ubuntu: out/seekway_*.deb, out/seekway-guest_*.deb
	@scripts/install-deps packages
	@scripts/packages deb seekway "$$(scripts/build-release seekway)" $(OUT)
	@scripts/packages deb seekway-guest "$$(scripts/build-release guest)" $(OUT)

rpm: ## packages for Fedora and its kin: out/seekway-*.rpm, out/seekway-guest-*.rpm
	@scripts/install-deps packages
	@scripts/packages rpm seekway "$$(scripts/build-release seekway)" $(OUT)
	@scripts/packages rpm seekway-guest "$$(scripts/build-release guest)" $(OUT)

release: ## all that is published: sources, packages, what is in them (SBOM), checksums: out/release
	@scripts/install-deps packages
	@scripts/release $(OUT)/release

reproducible: ## `make release` in two folders gives the same bytes: two release builds, and a table
	@scripts/install-deps packages
	@scripts/reproducible

demo: ## three VMs simulated and as real guests, eight VMs beside private disks: three tables and a page
	@mkdir -p $(OUT)
	@scripts/install-deps lab >$(OUT)/demo-build.log 2>&1 || { tail -n 20 $(OUT)/demo-build.log >&2; exit 1; }
	@CARGO="$(CARGO)" OUT="$(OUT)" scripts/demo

test: ## all tests of all crates, of the Python package and of the whole system, real guests and clients included; says at the end what was skipped and why
	@scripts/install-deps test
	@CARGO="$(CARGO)" scripts/test-all

wheel: install-deps ## the Python package, a wheel for Python 3.10 and later: out/seekway-*.whl
	@mkdir -p $(OUT)
	@test -x target/wheel/bin/maturin || { python3 -m venv target/wheel && target/wheel/bin/pip install --quiet 'maturin>=1.9,<2'; }
	cd crates/python && ../../target/wheel/bin/maturin build --release --locked --out $(abspath $(OUT))

kills: ## 1,000 SIGKILLs of the daemon under verified load; KILLS=N, SEED=N
	@scripts/install-deps test
	SEEKWAY_KILLS=$(or $(KILLS),1000) SEEKWAY_SEED=$(or $(SEED),1) $(CARGO) test --package seekway --test kills -- --nocapture
	SEEKWAY_KILLS=$(or $(KILLS),1000) SEEKWAY_SEED=$(or $(SEED),1) "$$(scripts/python-env)/bin/python" -m pytest -q -s -p no:cacheprovider tests/system/vm/test_kills.py

powercuts: install-deps ## 1,000 power failures each of a block device, with kills and failing writes, of NBD with FUA, of ext4 and of xfs below the daemon, and disks that fail, are late, and hang for five minutes; CUTS=N, SEED=N
	SEEKWAY_CUTS=$(or $(CUTS),1000) SEEKWAY_FS_CUTS=$(or $(CUTS),1000) SEEKWAY_SEED=$(or $(SEED),1) SEEKWAY_HANG_SECONDS=300 $(CARGO) test --package seekway --test powercuts -- --nocapture

swarm: ## the reactor on a simulated host, a million seeds (an hour and a half); SWARM_SEEDS=FROM..TO for others
	SEEKWAY_SEEDS=$(SWARM_SEEDS) $(CARGO) test --release --package seekway-hostd --lib --locked swarm::

planted-faults: ## does that simulation find faults that are planted by hand? A patch each, a table
	@scripts/planted-faults

fuzz: install-deps ## each fuzz target for FUZZ_SECONDS (3600); ARGS='chain vring' for some of them
	@CARGO="$(CARGO)" OUT="$(OUT)" scripts/fuzz $(ARGS)

miri: ## pure code and races of memory under Miri; MIRI_SEEDS=32 schedules of each race
	@scripts/miri

# Rounds of ten connections each; SOAK_SECONDS=0 for the rounds alone.
SOAK_ROUNDS ?= 1000
SOAK_SECONDS ?= 3600
soak: install-deps ## one daemon for SOAK_SECONDS (3600) and SOAK_ROUNDS (1000): memory and descriptors stay flat
	SOAK_ROUNDS=$(SOAK_ROUNDS) SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release --package seekway --test it soak:: -- --nocapture

check: ## before a commit: formatting, plain language, and clippy and unit tests of the crates that changed (no root; SINCE=COMMIT)
	@scripts/check $(SINCE)

lint: ## formatting, clippy, plain language, cargo-deny (licences, banned crates, sources), and whether planted faults apply
	@scripts/install-deps packages
	@for fault in crates/hostd/src/reactor/tests/swarm/planted/*.patch; do git apply --check $$fault || exit 1; done
	$(CARGO) fmt --all --check
	scripts/plain
	$(CARGO) clippy --workspace --all-targets $(BPF) --locked -- -D warnings
	$(CARGO) clippy --package seekway --no-default-features --locked -- -D warnings
	"$$(scripts/install-tools cargo-deny)/cargo-deny" --workspace --all-features --locked check --hide-inclusion-graph licenses bans sources

coverage: install-deps ## every test with counting builds: share of lines run, by crate (an hour)
	@scripts/install-deps test
	@scripts/coverage

bench: install-deps ## what one table shows: each figure, its target, and whether it is met
	@scripts/bench

bench-host: build ## the host daemon beside its peers; ARGS=--quick in a third of the time
	@scripts/install-deps test
	@scripts/bench-host $(ARGS)

hostile: build ## an innocent reader beside each hostile load, on processors of their own; ARGS='--seconds 20 --only NBD'
	@scripts/hostile $(ARGS)

bench-check: build ## instructions a request, against the last line of docs/bench-history.csv; ARGS=--record adds to it
	@scripts/install-deps bench
	@scripts/bench-check $(ARGS)

bench-web: build ## the web page's first paint with 80 disks, ten loads
	@scripts/install-deps test
	@SEEKWAY=$(abspath target/release/seekway) SEEKWAY_PAINTS=10 "$$(scripts/python-env)/bin/python" -m pytest -q -s -p no:cacheprovider tests/system/test_web.py -k painted

bench-memory: build ## a hundred million requests through a pipe in under 200 MB
	@scripts/bench-memory

docs: install-deps ## rewrite what is generated in docs/
	UPDATE_EXPECT=1 $(CARGO) test --quiet --package seekway --test it docs::

schemas: install-deps ## JSON schemas of what all commands print, made of the types: out/schema
	@scripts/schemas $(OUT)/schema

site: install-deps ## the documentation as a site: out/site/index.html
	@scripts/site

experiments: install-deps ## run the papers' experiments; rewrite their rows, and the verdicts in docs/experiments
	@scripts/lab run all --write

arena: install-deps ## run the arena with five seeds and drawn scenes; rewrite its tables in docs/arena.md
	@scripts/lab arena --write --seeds 5

mqsim: build ## the flash model beside MQSim, of which FOLDER is a copy (docs/experiments/mqsim.md)
	@scripts/mqsim "$(FOLDER)" $(ARGS)

install-deps: ## what is missing, from Debian's packages
	@scripts/install-deps
