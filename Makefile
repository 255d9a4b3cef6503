# Ebb. `make help` lists what there is.
CC      ?= gcc
BUILD   ?= build
CFLAGS  ?= -O2 -g
STD      = -std=c11 -D_GNU_SOURCE
WARN     = -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2 -Wundef
# -ffp-contract=off: gcc and clang must round alike (docs/design).
FLAGS    = $(STD) $(WARN) -ffp-contract=off -fno-strict-aliasing -I. -MMD -MP $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
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

clean:
	rm -rf build

-include $(OBJ:.o=.d)
.PHONY: all unit clean
