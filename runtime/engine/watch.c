#include "runtime/engine/watch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cache/compact.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/model/probe.h"

enum { ALIGN = 64 };

struct watch {
    struct watch *next_free;
    struct probe *probe;
    uint8_t *order; /* [max_entries][BAND_ORDER_BYTES], list after list */
    uint64_t max_entries;
    uint32_t units;  /* reserved for it */
    uint64_t *first; /* [n_lists] row of the first entry of a list */
    uint32_t *len;   /* [n_lists] entries that have one */
};

struct watches {
    struct watches_setup o;
    uint32_t n_lists;
    uint64_t unit_bytes;
    uint64_t bytes;
    uint32_t max_rows; /* of a probe */
    struct watch *all; /* [max_prompts] */
    struct watch *free;
    uint8_t *scratch; /* [n_threads][scratch_bytes] */
    size_t scratch_bytes;
};

static struct probe_options probe_options(const struct watches *ws)
{
    return (struct probe_options){.n_window = ws->o.options->n_window,
                                  .parts = PROBE_BAND,
                                  .max_tokens = ws->max_rows};
}

static enum err new_watch(struct watches *ws, struct watch *w)
{
    const struct probe_options o = probe_options(ws);
    w->first = calloc(ws->n_lists, sizeof(*w->first));
    w->len = calloc(ws->n_lists, sizeof(*w->len));
    if (!w->first || !w->len)
        return ERR_NOMEM;
    w->next_free = ws->free;
    ws->free = w;
    ws->bytes += probe_bytes(ws->o.lm->model, &o);
    return probe_new(&w->probe, ws->o.lm->model, &o, NULL);
}

enum err watches_new(struct watches **out, const struct watches_setup *o)
{
    struct watches *ws = calloc(1, sizeof(*ws));
    if (!ws)
        return ERR_NOMEM;
    ws->o = *o;
    ws->o.max_prompts = o->lm->model ? o->max_prompts : 0;
    ws->n_lists = sessions_n_lists(o->sessions);
    ws->unit_bytes = pool_stats(o->sessions->pool).unit_bytes;
    /* The probe's rows are a ring of whole buckets. */
    ws->max_rows = (o->max_rows / BAND_CELLS + 1) * BAND_CELLS;
    ws->all = calloc(ws->o.max_prompts + 1, sizeof(*ws->all));
    enum err rc = ws->all ? OK : ERR_NOMEM;
    for (uint32_t i = 0; rc == OK && i < ws->o.max_prompts; i++)
        rc = new_watch(ws, &ws->all[i]);
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
    for (uint32_t i = 0; ws->all && i < ws->o.max_prompts; i++) {
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

uint64_t watch_entries_in(const struct watches *ws, uint64_t units)
{
    return units * ws->unit_bytes * KV_UNIT /
           (ws->unit_bytes + KV_UNIT * BAND_ORDER_BYTES);
}

uint64_t watch_units_for(const struct watches *ws, uint64_t entries)
{
    return (entries * BAND_ORDER_BYTES + ws->unit_bytes - 1) / ws->unit_bytes;
}

bool watches_have_free(const struct watches *ws)
{
    return ws->free != NULL;
}

bool watch_can_begin(const struct watches *ws, uint64_t entries)
{
    return ws->free &&
           watch_units_for(ws, entries) <= sessions_room(ws->o.sessions);
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

bool watch_begin(struct watches *ws, struct session *s, uint64_t entries)
{
    struct watch *w = ws->free;
    uint64_t units = watch_units_for(ws, entries);
    assert(!s->watch);
    if (!watch_can_begin(ws, entries) || table_n_entries(s->table) > entries)
        return false;
    uint8_t *order = malloc(entries * BAND_ORDER_BYTES + 1);
    if (!order || pool_reserve(ws->o.sessions->pool, (uint32_t)units) != OK) {
        free(order);
        return false;
    }
    ws->free = w->next_free;
    w->order = order;
    w->max_entries = entries;
    w->units = (uint32_t)units;
    ws->o.sessions->n_watch += units;
    probe_reset(w->probe);
    lay_out(ws, w, s);
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
    w->next_free = ws->free;
    ws->free = w;
    s->watch = NULL;
}

uint64_t watch_max_entries(const struct watch *w)
{
    return w->max_entries;
}

struct probe *watch_probe(const struct watch *w)
{
    return w->probe;
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
    assert(entry < w->len[i_list]);
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

void watch_take(struct watches *ws, struct session *s, uint32_t n)
{
    struct watch *w = s->watch;
    if (!w)
        return;
    if (table_n_entries(s->table) > w->max_entries) {
        watch_end(ws, s);
        return;
    }
    spread(ws, w, n);
    for (uint32_t i = 0; i < ws->n_lists; i++) {
        const uint16_t *ring = probe_band(w->probe, i);
        uint64_t to = w->first[i] + w->len[i];
        for (uint32_t k = 0; k < n; k++) {
            uint32_t pos = s->n_stored - n + k;
            band_pack(ring + (size_t)(pos % ws->max_rows) * BAND_CELLS,
                      (int32_t)pos, row_of(w, to + k));
        }
        w->len[i] += n;
        assert(w->len[i] == s->table->list[i].len);
    }
}

/* ------------------------------------------------------------ the merging */

/* Of one thread and one list. */
struct parts {
    float *ratio;
    uint8_t **unit;
    const struct kv_meta **meta;
    uint16_t *leaves, *fixed, *band;
    void *apply;
    size_t bytes;
};

static size_t cut(size_t *at, size_t bytes)
{
    size_t from = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return from;
}

static struct parts carve(const struct watches *ws, uint32_t n, uint8_t *base)
{
    const struct fate *fate = fate_find("selkv");
    size_t at = 0, units = n / KV_UNIT + 1;
    size_t ratio = cut(&at, n * sizeof(float));
    size_t unit = cut(&at, units * sizeof(uint8_t *));
    size_t meta = cut(&at, units * sizeof(struct kv_meta *));
    size_t leaves = cut(&at, units * sizeof(uint16_t));
    size_t fixed = cut(&at, units * sizeof(uint16_t));
    size_t band = cut(&at, (size_t)n * BAND_BYTES);
    size_t apply = cut(&at, apply_scratch_bytes(fate, n, ws->o.lm->head_dim));
    if (!base)
        return (struct parts){.bytes = at};
    return (struct parts){
        .ratio = (float *)(void *)(base + ratio),
        .unit = (uint8_t **)(void *)(base + unit),
        .meta = (const struct kv_meta **)(void *)(base + meta),
        .leaves = (uint16_t *)(void *)(base + leaves),
        .fixed = (uint16_t *)(void *)(base + fixed),
        .band = (uint16_t *)(void *)(base + band),
        .apply = base + apply,
        .bytes = at,
    };
}

bool watches_make_scratch(struct watches *ws, uint32_t n_entries)
{
    if (ws->o.max_prompts == 0)
        return false;
    size_t bytes = carve(ws, n_entries, NULL).bytes;
    if (bytes <= ws->scratch_bytes)
        return true;
    free(ws->scratch);
    ws->scratch = aligned_alloc(ALIGN, bytes * (size_t)ws->o.n_threads);
    ws->scratch_bytes = ws->scratch ? bytes : 0;
    return ws->scratch != NULL;
}

/* The list as merge/apply.h reads it. */
static void gather(const struct watches *ws, const struct session *s,
                   uint32_t i_list, const uint16_t *gone, const struct parts *p)
{
    const struct kv_list *l = &s->table->list[i_list];
    const struct pool *pool = ws->o.sessions->pool;
    for (uint32_t u = 0; u < l->n_units; u++) {
        bool is_shared = pool_refs(pool, l->unit[u]) > 1;
        p->unit[u] = pool_data(pool, l->unit[u]);
        p->meta[u] = pool_meta(pool, l->unit[u]);
        p->leaves[u] = is_shared ? 0 : gone[l->unit[u]];
        p->fixed[u] = is_shared ? UINT16_MAX : 0;
    }
    for (uint32_t e = 0; e < l->len; e++)
        band_unpack(watch_row(s->watch, i_list, e),
                    p->band + (size_t)e * BAND_CELLS);
}

struct place {
    const struct session *s;
    uint32_t i_list;
};

/* As the paper has it: the attention of the prefill itself. */
static float mass_of(void *user, uint32_t entry)
{
    const struct place *p = user;
    return probe_mass(p->s->watch->probe, p->s->table, p->i_list, entry);
}

void watch_merge(const struct watches *ws, const struct session *s,
                 uint32_t i_list, const uint16_t *gone, int thread,
                 struct merge_counts *c)
{
    const struct watch *w = s->watch;
    const struct kv_list *l = &s->table->list[i_list];
    const struct parts p =
        carve(ws, l->len, ws->scratch + (size_t)thread * ws->scratch_bytes);
    struct place place = {s, i_list};
    const struct apply_how how = {fate_find("selkv"), ws->o.options,
                                  ops_best()};
    const struct apply_list list = {
        .layout = pool_layout(ws->o.sessions->pool),
        .unit = p.unit,
        .meta = p.meta,
        .n = l->len,
        .id = i_list,
        .n_seen = s->n_stored,
        .leaves = p.leaves,
        .fixed = p.fixed,
        .mass_of = mass_of,
        .mass_user = &place,
        .band = p.band,
    };
    assert(w->len[i_list] == l->len);
    gather(ws, s, i_list, gone, &p);
    apply_values(&list, &how, p.ratio, c, p.apply);
    apply_bias(&list, ws->o.options, p.ratio);
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
    if (!w)
        return compact_move(s->table, i_list, gone);
    struct rows r = {w, w->first[i_list]};
    uint32_t n = compact_move_told(s->table, i_list, gone, follow, &r);
    w->len[i_list] -= n;
    return n;
}
