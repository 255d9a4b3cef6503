#include "runtime/engine/watch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cache/compact.h"
#include "merge/band.h"
#include "runtime/engine/rank.h"
#include "runtime/engine/watch_internal.h"
#include "runtime/model/probe.h"

static struct probe_options probe_options(const struct watches *ws,
                                          enum watch_kind kind)
{
    struct probe_options o = {.n_window = ws->o.options->n_window,
                              .parts = PROBE_BAND,
                              .max_tokens = ws->max_rows};
    if (kind == WATCH_COLUMNS) {
        o.parts = PROBE_COLUMNS;
        o.max_tokens = ws->o.max_columns;
    }
    return o;
}

static void make_free(struct watches *ws, struct watch *w)
{
    w->next_free = ws->free[w->kind];
    ws->free[w->kind] = w;
}

static enum err new_watch(struct watches *ws, enum watch_kind kind)
{
    const struct probe_options o = probe_options(ws, kind);
    struct watch *w = &ws->all[ws->n_all++];
    w->kind = kind;
    w->first = calloc(ws->n_lists, sizeof(*w->first));
    w->len = calloc(ws->n_lists, sizeof(*w->len));
    if (!w->first || !w->len)
        return ERR_NOMEM;
    make_free(ws, w);
    ws->bytes += probe_bytes(ws->o.lm->model, &o);
    return probe_new(&w->probe, ws->o.lm->model, &o, NULL);
}

enum err watches_new(struct watches **out, const struct watches_setup *o)
{
    struct watches *ws = calloc(1, sizeof(*ws));
    if (!ws)
        return ERR_NOMEM;
    ws->o = *o;
    ws->ops = ops_best();
    ws->o.max_prompts = o->lm->model ? o->max_prompts : 0;
    ws->n_lists = sessions_n_lists(o->sessions);
    ws->unit_bytes = pool_stats(o->sessions->pool).unit_bytes;
    /* The probe's rows are a ring of whole buckets. */
    ws->max_rows = (o->max_rows / BAND_CELLS + 1) * BAND_CELLS;
    ws->all =
        calloc(WATCH_N_KINDS * (size_t)ws->o.max_prompts + 1, sizeof(*ws->all));
    enum err rc = ws->all ? OK : ERR_NOMEM;
    for (uint32_t i = 0; rc == OK && i < ws->o.max_prompts; i++) {
        rc = new_watch(ws, WATCH_ROWS);
        if (rc == OK && o->max_columns > 0)
            rc = new_watch(ws, WATCH_COLUMNS);
    }
    if (rc != OK) {
        watches_free(ws);
        return rc;
    }
    *out = ws;
    return OK;
}

void watches_free(struct watches *ws)
{
    if (!ws)
        return;
    for (uint32_t i = 0; ws->all && i < ws->n_all; i++) {
        assert(!ws->all[i].order);
        probe_free(ws->all[i].probe);
        free(ws->all[i].first);
        free(ws->all[i].len);
    }
    free(ws->all);
    free(ws->scratch);
    free(ws);
}

uint64_t watches_bytes(const struct watches *ws)
{
    return ws->bytes;
}

/* ------------------------------------------------------------- the memory */

static enum watch_kind kind_of(enum forget_fate fate)
{
    return fate_at(fate)->needs & FATE_COLUMN ? WATCH_COLUMNS : WATCH_ROWS;
}

/* Bytes beside each entry. */
static uint64_t row_bytes(enum forget_fate fate)
{
    return fate_at(fate)->needs & FATE_BAND ? BAND_ORDER_BYTES : 0;
}

uint64_t watch_entries_in(const struct watches *ws, enum forget_fate fate,
                          uint64_t units)
{
    return units * ws->unit_bytes * KV_UNIT /
           (ws->unit_bytes + KV_UNIT * row_bytes(fate));
}

uint64_t watch_units_for(const struct watches *ws, enum forget_fate fate,
                         uint64_t entries)
{
    return (entries * row_bytes(fate) + ws->unit_bytes - 1) / ws->unit_bytes;
}

bool watches_have_free(const struct watches *ws, enum forget_fate fate)
{
    return ws->free[kind_of(fate)] != NULL;
}

bool watch_can_begin(const struct watches *ws, const struct session *s,
                     uint64_t entries)
{
    enum forget_fate fate = s->rules.admission.fate;
    return watches_have_free(ws, fate) &&
           (kind_of(fate) == WATCH_ROWS || s->n_known <= ws->o.max_columns) &&
           watch_units_for(ws, fate, entries) <= sessions_room(ws->o.sessions);
}

/* The entries that are there have no rows yet: nothing is known of them. */
static void lay_out(const struct watches *ws, struct watch *w,
                    const struct session *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < ws->n_lists; i++) {
        w->first[i] = n;
        w->len[i] = s->table->list[i].len;
        n += w->len[i];
    }
    memset(w->order, 0, n * BAND_ORDER_BYTES);
}

/* Room for rows of so many entries. */
static bool take_room(struct watches *ws, struct watch *w,
                      const struct session *s, uint64_t entries)
{
    uint64_t units = watch_units_for(ws, s->rules.admission.fate, entries);
    uint8_t *order = malloc(entries * BAND_ORDER_BYTES + 1);
    if (!order || pool_reserve(ws->o.sessions->pool, (uint32_t)units) != OK) {
        free(order);
        return false;
    }
    w->order = order;
    w->max_entries = entries;
    w->units = (uint32_t)units;
    ws->o.sessions->n_watch += units;
    lay_out(ws, w, s);
    return true;
}

/* A prompt that is ranked by its columns has them already, from its first token
 * on: nobody measures them twice. */
static void find_columns(struct watch *w, const struct session *s)
{
    const struct probe *p = ranking_probe(s);
    bool is_there = w->kind == WATCH_COLUMNS && p &&
                    (probe_parts(p) & PROBE_COLUMNS) &&
                    probe_n_seen(p) == s->n_stored;
    w->columns = is_there ? p : w->probe;
    w->from = is_there ? 0 : s->n_stored;
}

bool watch_begin(struct watches *ws, struct session *s, uint64_t entries)
{
    enum watch_kind kind = kind_of(s->rules.admission.fate);
    struct watch *w = ws->free[kind];
    assert(!s->watch && s->rules.admission.fate != FORGET_DROP);
    if (!watch_can_begin(ws, s, entries) || table_n_entries(s->table) > entries)
        return false;
    w->max_entries = UINT64_MAX;
    w->units = 0;
    if (kind == WATCH_ROWS && !take_room(ws, w, s, entries))
        return false;
    ws->free[kind] = w->next_free;
    find_columns(w, s);
    probe_reset(w->probe);
    s->watch = w;
    return true;
}

void watch_end(struct watches *ws, struct session *s)
{
    struct watch *w = s->watch;
    if (!w)
        return;
    free(w->order);
    w->order = NULL;
    pool_unreserve(ws->o.sessions->pool, w->units);
    ws->o.sessions->n_watch -= w->units;
    make_free(ws, w);
    s->watch = NULL;
}

uint64_t watch_max_entries(const struct watch *w)
{
    return w->max_entries;
}

struct probe *watch_probe(const struct watch *w)
{
    return w->columns == w->probe ? w->probe : NULL;
}

void watch_moved(struct session *s)
{
    if (s->watch)
        probe_reset(s->watch->probe);
}

static uint8_t *row_of(const struct watch *w, uint64_t i)
{
    return w->order + i * BAND_ORDER_BYTES;
}

const uint8_t *watch_row(const struct watch *w, uint32_t i_list, uint32_t entry)
{
    assert(w->order && entry < w->len[i_list]);
    return row_of(w, w->first[i_list] + entry);
}

/* Moves the rows of a list to where they are to begin. */
static void move_list(struct watch *w, uint32_t i, uint64_t first)
{
    memmove(row_of(w, first), row_of(w, w->first[i]),
            (size_t)w->len[i] * BAND_ORDER_BYTES);
    w->first[i] = first;
}

/* Room for n more entries behind those of each list: everything together to
 * the left, then apart from the right, so that no row is written over. */
static void spread(const struct watches *ws, struct watch *w, uint32_t n)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < ws->n_lists; i++) {
        move_list(w, i, at);
        at += w->len[i];
    }
    for (uint32_t i = ws->n_lists; i-- > 0;)
        move_list(w, i, w->first[i] + (uint64_t)i * n);
}

/* The rows of one list that a step has added. */
struct taking {
    const struct watches *ws;
    const struct session *s;
    uint32_t n;
};

static void take_list(void *ctx, int task, int thread)
{
    const struct taking *t = ctx;
    struct watch *w = t->s->watch;
    uint32_t i = (uint32_t)task, max_rows = t->ws->max_rows;
    const uint16_t *ring = probe_band(w->probe, i);
    uint64_t to = w->first[i] + w->len[i];
    (void)thread;
    for (uint32_t k = 0; k < t->n; k++) {
        uint32_t pos = t->s->n_stored - t->n + k;
        band_pack(ring + (size_t)(pos % max_rows) * BAND_CELLS, (int32_t)pos,
                  row_of(w, to + k));
    }
    w->len[i] += t->n;
    assert(w->len[i] == t->s->table->list[i].len);
}

void watch_take(struct watches *ws, struct session *s, uint32_t n)
{
    struct watch *w = s->watch;
    if (!w || w->kind != WATCH_ROWS)
        return;
    if (table_n_entries(s->table) > w->max_entries) {
        watch_end(ws, s);
        return;
    }
    spread(ws, w, n);
    struct taking t = {ws, s, n};
    if (ws->o.workers)
        workers_run(ws->o.workers, (int)ws->n_lists, take_list, &t);
    else
        for (uint32_t i = 0; i < ws->n_lists; i++)
            take_list(&t, (int)i, 0);
}

/* The rows of one list. */
struct rows {
    struct watch *w;
    uint64_t first;
};

static void follow(void *user, uint32_t to, uint32_t from)
{
    const struct rows *r = user;
    memcpy(row_of(r->w, r->first + to), row_of(r->w, r->first + from),
           BAND_ORDER_BYTES);
}

uint32_t watch_compact(struct session *s, uint32_t i_list, const uint16_t *gone)
{
    struct watch *w = s->watch;
    if (!w || w->kind != WATCH_ROWS)
        return compact_move(s->table, i_list, gone);
    struct rows r = {w, w->first[i_list]};
    uint32_t n = compact_move_told(s->table, i_list, gone, follow, &r);
    w->len[i_list] -= n;
    return n;
}
