# Ebb. `make help` lists what there is.
CC      ?= gcc
BUILD   ?= build
CFLAGS  ?= -O2 -g
STD      = -std=c11 -D_GNU_SOURCE
WARN     = -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2 -Wundef
# -ffp-contract=off: gcc and clang must round alike (docs/design).
FLAGS    = $(STD) $(WARN) -ffp-contract=off -fno-strict-aliasing -I. -MMD -MP $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
LIBS     = -lmicrohttpd -lcjson -lpcre2-8 -lutf8proc -lcrypto -lm -lpthread
DIRS     = base config cache gates merge runtime server
SRC      = $(filter-out server/main.c,$(shell find $(DIRS) -name '*.c' 2>/dev/null))
OBJ      = $(SRC:%.c=$(BUILD)/obj/%.o)
TESTS    = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(shell find tests/unit -name 'test_*.c' 2>/dev/null))

all: $(BUILD)/ebb

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(CFLAGS) $(if $(findstring avx2,$<),-mavx2 -mfma -mf16c) -c $< -o $@

$(BUILD)/libebb.a: $(OBJ)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/ebb: $(BUILD)/obj/server/main.o $(BUILD)/libebb.a
	$(CC) $(FLAGS) $(CFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tests/%: tests/unit/%.c $(BUILD)/libebb.a
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(CFLAGS) $< $(BUILD)/libebb.a $(LIBS) -lcmocka -o $@

unit: $(TESTS)
	@for t in $(TESTS); do $$t || exit 1; done

# Fuzzing: `make fuzz` runs every tests/fuzz/fuzz_*.c for FUZZ_SECONDS on its
# corpus. Finds land in $(FUZZ_DIR); seeds are only read.
FUZZ_SECONDS ?= 60
FUZZ_DIR = $(BUILD)/fuzz
FUZZERS  = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

fuzz-build:
	$(MAKE) CC=clang BUILD=$(FUZZ_DIR) SAN=fuzzer-no-link,address,undefined $(FUZZ_DIR)/libebb.a
	@for t in $(FUZZERS); do \
	    clang $(FLAGS) -MF $(FUZZ_DIR)/$$t.d $(CFLAGS) -fsanitize=fuzzer,address,undefined \
	        -fno-sanitize-recover=all tests/fuzz/fuzz_$$t.c $(FUZZ_DIR)/libebb.a $(LIBS) \
	        -o $(FUZZ_DIR)/$$t || exit 1; done

fuzz: fuzz-build
	@for t in $(FUZZERS); do mkdir -p $(FUZZ_DIR)/found/$$t; \
	    $(FUZZ_DIR)/$$t -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	        -print_final_stats=1 -artifact_prefix=$(FUZZ_DIR)/$$t- \
	        $(FUZZ_DIR)/found/$$t tests/fuzz/corpus/$$t || exit 1; done

clean:
	rm -rf build

-include $(OBJ:.o=.d)
.PHONY: all unit clean fuzz fuzz-build
