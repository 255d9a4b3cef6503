# Ebb. `make help` lists what there is to do.

# ---------------------------------------------------------------- settings
ifeq ($(origin CC),default)
CC = gcc
endif
SAN     ?=
SAN_DIR  = $(subst $(comma),_,$(SAN))
comma   := ,
BUILD   ?= $(if $(SAN),build/$(or $(patsubst address_undefined,asan,$(filter address_undefined,$(SAN_DIR))),$(patsubst thread,tsan,$(filter thread,$(SAN_DIR))),$(SAN_DIR)),build)
CFLAGS  ?= $(if $(SAN),-O1,-O2) -g
PYTHON  ?= python3
MODEL   ?= smollm2-135m
ARGS    ?=
USE     ?= train
V       ?=
Q        = $(if $(V),,@)

# All cores, unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

STD      = -std=c11 -D_GNU_SOURCE
WARN     = -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2 -Wundef
# Under a sanitizer the compiler's flow analysis sees truncations and unset
# variables that are none, so warnings are not errors there.
# -ffp-contract=off: gcc and clang must round alike. No -march: the binary
# runs on any machine, and picks its kernels at the start.
FLAGS    = $(STD) $(WARN) -ffp-contract=off -fno-strict-aliasing -I. -MMD -MP \
           $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer \
             -Wno-error)
# The one place where an instruction set is named: files of kernels that are
# only called after the CPU was asked.
ISA      = $(if $(findstring avx2,$<),-mavx2 -mfma -mf16c) \
           $(if $(findstring avx512,$<),-mavx512f -mavx512bw -mavx512vl -mavx512dq \
             -mavx512vnni -mfma -mf16c)
LIBS     = -lmicrohttpd -lcjson -lpcre2-8 -lutf8proc -lcrypto -lm -lpthread
MALLOC   = $(if $(SAN),,-ljemalloc)

# ------------------------------------------------------------------- files
DIRS     = $(wildcard base config cache gates merge runtime server bench/eval)
SRC      = $(filter-out server/main.c base/malloc_conf.c,$(shell find $(DIRS) -name '*.c'))
OBJ      = $(SRC:%.c=$(BUILD)/obj/%.o)
MAIN     = $(BUILD)/obj/server/main.o $(BUILD)/obj/bench/speed.o $(if $(SAN),,$(BUILD)/obj/base/malloc_conf.o)
TESTS    = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(shell find tests/unit -name 'test_*.c'))

# --------------------------------------------------------------- the build
all: $(BUILD)/ebb ## build the program: build/ebb

# Other flags or another compiler: everything is built again.
FLAGS_NOW = $(CC) $(FLAGS) $(CFLAGS) $(LIBS) $(MALLOC)
$(BUILD)/flags: force
	@mkdir -p $(BUILD)
	@echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' > $@

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $<")
	$(Q)$(CC) $(FLAGS) $(CFLAGS) $(ISA) -c $< -o $@

$(BUILD)/libebb.a: $(OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/ebb: $(MAIN) $(BUILD)/libebb.a
	$(if $(V),,@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(CFLAGS) $^ $(LIBS) $(MALLOC) -o $@

$(BUILD)/tests/%: tests/unit/%.c $(BUILD)/libebb.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  TEST  $<")
	$(Q)$(CC) $(FLAGS) $(CFLAGS) $(ISA) $< $(BUILD)/libebb.a $(LIBS) -lcmocka -o $@

# Programs that tests and generators run.
$(BUILD)/tools/%: tests/tools/%.c $(BUILD)/libebb.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(CFLAGS) $< $(BUILD)/libebb.a $(LIBS) -o $@

# --------------------------------------------------- what a user calls first
setup: ## install the Debian packages that are missing, fetch the default model
	$(Q)deploy/setup.sh run
	$(Q)$(PYTHON) deploy/fetch_model.py smollm2-135m

run: ## build and serve MODEL (a name of deploy/models.tsv, a file or a URL) with ARGS
	$(Q)deploy/setup.sh run
	$(Q)$(MAKE) --no-print-directory all
	$(Q)model=$$($(PYTHON) deploy/fetch_model.py '$(MODEL)') && \
	    exec $(BUILD)/ebb serve --model "$$model" $(ARGS)

test: ## every test; the last line is "N passed, N failed, N skipped"
	$(Q)deploy/setup.sh test || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
	$(Q)$(PYTHON) tests/run.py

test-packages:
	$(Q)deploy/setup.sh test

unit: unit-build ## the unit tests alone (SAN=address,undefined or thread too)
	@for t in $(TESTS); do $$t || exit 1; done
unit-build: $(TESTS)
$(TESTS): | test-packages

lint: test-packages $(BUILD)/tools/put_options ## the rules of the house: layers, format, lengths, fresh files
	$(Q)$(PYTHON) tests/lint/lint.py

docs: $(BUILD)/tools/put_options ## write docs/options.md, deploy/ebb.conf and README's table
	$(Q)mkdir -p docs
	$(Q)$< page > docs/options.md
	$(Q)$< example > deploy/ebb.conf
	$(Q)$(PYTHON) tests/lint/lint.py --write-readme

bench: all ## tokens per second by prompt length and batch, for MODEL, with ARGS
	$(Q)model=$$($(PYTHON) deploy/fetch_model.py '$(MODEL)') && \
	    $(BUILD)/ebb bench --model "$$model" $(ARGS)

quality: all ## what policies cost MODEL in quality (ARGS: stages of bench/quality.py): hours; goes on where it was
	$(Q)model=$$($(PYTHON) deploy/fetch_model.py '$(MODEL)') && \
	    deploy/fetch_texts.py dev test >/dev/null && \
	    bench/quality.py --model "$$model" $(or $(ARGS),screening)

# One kernel at a time, on one thread: for whoever tunes them.
$(BUILD)/bench/%: bench/%.c $(BUILD)/libebb.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(CFLAGS) $< $(BUILD)/libebb.a $(LIBS) -o $@
bench-kernels bench-units bench-select bench-merge bench-evict bench-sessions: bench-%: $(BUILD)/bench/%
	$(Q)$<
bench-policies: $(BUILD)/bench/policies
	$(Q)model=$$($(PYTHON) deploy/fetch_model.py '$(MODEL)') && $< "$$model" $(ARGS)

# Over HTTP, with the tests' packages (tests/run.py python).
bench-turns: all
	$(Q)model=$$($(PYTHON) deploy/fetch_model.py '$(MODEL)') && \
	    PYTHONDONTWRITEBYTECODE=1 $(BUILD)/venv/bin/python bench/turns.py $(BUILD)/ebb "$$model" $(ARGS)

texts: ## fetch the texts that gates learn from (USE: train dev test)
	$(Q)deploy/fetch_texts.py $(USE)

# No part of `make test`: PyTorch is large, and only whoever changes the trainer
# needs it. Without it this fails and says so.
gradients: $(BUILD)/tools/dump_gate_gradient ## the gate trainer's gradients against PyTorch autograd (PYTHON: one that has torch, gguf, numpy)
	$(Q)PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/tools/check_gate_gradients.py $(ARGS)

# Fuzzing: `make fuzz` runs every tests/fuzz/fuzz_*.c for FUZZ_SECONDS on its
# corpus. Finds land in $(FUZZ_DIR); seeds are only read.
FUZZ_SECONDS ?= 60
FUZZ_DIR = $(BUILD)/fuzz
FUZZERS  = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

fuzz-build: test-packages
	$(MAKE) CC=clang BUILD=$(FUZZ_DIR) SAN=fuzzer-no-link,address,undefined $(FUZZ_DIR)/libebb.a
	@for t in $(FUZZERS); do \
	    clang $(FLAGS) -MF $(FUZZ_DIR)/$$t.d $(CFLAGS) -fsanitize=fuzzer,address,undefined \
	        -fno-sanitize-recover=all tests/fuzz/fuzz_$$t.c $(FUZZ_DIR)/libebb.a $(LIBS) \
	        -o $(FUZZ_DIR)/$$t || exit 1; done

fuzz: fuzz-build ## run the fuzz targets, each for FUZZ_SECONDS
	@for t in $(FUZZERS); do mkdir -p $(FUZZ_DIR)/found/$$t; \
	    $(FUZZ_DIR)/$$t -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	        -print_final_stats=1 -artifact_prefix=$(FUZZ_DIR)/$$t- \
	        $(FUZZ_DIR)/found/$$t tests/fuzz/corpus/$$t || exit 1; done

clean: ## remove everything that was built (models stay in the cache folder)
	rm -rf build

help: ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | \
	    while IFS="$$(printf '\t')" read -r name text; do \
	        printf '  make %-9s %s\n' "$$name" "$$text"; done

-include $(OBJ:.o=.d) $(MAIN:.o=.d) $(TESTS:=.d) $(wildcard $(BUILD)/bench/*.d)
.DELETE_ON_ERROR:
.PHONY: all setup run test test-packages unit unit-build lint docs bench quality bench-kernels bench-units bench-select bench-merge bench-evict bench-sessions bench-policies bench-turns gradients fuzz fuzz-build clean help force
