#include "config/option.h"

#define FIELD(f) offsetof(struct config, f)

/* In the order of enum kv_type, enum log_format and enum log_level. */
static const char *const kv_types[] = {"f16", "q8_0", "f32", NULL};
static const char *const log_formats[] = {"text", "json", NULL};
static const char *const log_levels[] = {"debug", "info", "warn",
                                         "error", "off",  NULL};

static const struct option table[] = {
    {
        .name = "config",
        .type = OPT_STRING,
        .field = FIELD(config),
        .dflt = "",
        .word = "FILE",
        .is_flag_only = true,
        .shown_dflt = "none",
        .help = "Settings in JSON; // starts a comment. Keys are the names of "
                "the options with underscores. An unknown key stops the "
                "start.",
    },
    {
        .name = "model",
        .type = OPT_STRING,
        .field = FIELD(model),
        .dflt = "",
        .word = "PATH",
        .shown_dflt = "the default model's file in the user's cache folder",
        .help = "The model, a GGUF file. It is mapped into memory, not "
                "copied, and must not be changed while the server runs.",
    },
    {
        .name = "alias",
        .type = OPT_LIST,
        .field = FIELD(alias),
        .dflt = "default",
        .word = "NAME",
        .help = "One more name that requests may use for the model. Its own "
                "and `default` always work. Repeat it for more; in a variable, "
                "separate them by commas.",
    },
    {
        .name = "any_model",
        .type = OPT_BOOL,
        .field = FIELD(any_model),
        .dflt = "false",
        .help = "Accept any model name in a request, and a missing one, "
                "instead of answering 404.",
    },
    {
        .name = "host",
        .type = OPT_STRING,
        .field = FIELD(host),
        .dflt = "127.0.0.1",
        .word = "ADDRESS",
        .help = "The address to listen on. 0.0.0.0 or :: lets everybody who "
                "can reach this machine use the model: there are no keys "
                "yet.",
    },
    {
        .name = "port",
        .type = OPT_INT,
        .field = FIELD(port),
        .dflt = "8080",
        .max = 65535,
        .word = "N",
        .help = "The port to listen on; 0 picks a free one. The line "
                "'listening on http://HOST:PORT' on stdout says which, once "
                "requests are accepted.",
    },
    {
        .name = "threads",
        .type = OPT_INT,
        .field = FIELD(threads),
        .dflt = "0",
        .max = 256,
        .word = "N",
        .shown_dflt = "the CPUs that affinity and cgroup allow",
        .help = "Threads that compute. 0 means the default. Answers do not "
                "depend on it where nothing was forgotten, or with "
                "--deterministic.",
    },
    {
        .name = "kv_memory",
        .type = OPT_BYTES,
        .field = FIELD(kv_memory),
        .dflt = "40%",
        .min = 64 * 1024,
        .max = 1ull << 50,
        .word = "SIZE",
        .help = "Bytes of cached keys and values, with their bookkeeping, of "
                "all requests and of all finished conversations together. "
                "Never exceeded: when it is full, entries leave as --policy "
                "says, and a request that finds no room waits. Weights, "
                "activations and network "
                "buffers are not part of it; the start prints their sizes. A "
                "percentage is of the memory that is available at the start.",
    },
    {
        .name = "kv_type",
        .type = OPT_CHOICE,
        .field = FIELD(kv_type),
        .dflt = "f16",
        .choices = kv_types,
        .help = "How cached keys and values are stored. f32 takes twice the "
                "bytes of f16 and is for tests of exactness; q8_0 takes "
                "about half and costs a little accuracy.",
    },
    {
        .name = "max_context",
        .type = OPT_INT,
        .field = FIELD(max_context),
        .dflt = "0",
        .max = 1 << 24,
        .word = "N",
        .shown_dflt = "the length the model was trained for",
        .help = "Tokens of one conversation, prompt and answer together. A "
                "prompt beyond it is refused with context_length_exceeded. 0 "
                "means the default.",
    },
    {
        .name = "max_running",
        .type = OPT_INT,
        .field = FIELD(max_running),
        .dflt = "64",
        .min = 1,
        .max = 1024,
        .word = "N",
        .help = "Answers computed at the same time.",
    },
    {
        .name = "max_queue",
        .type = OPT_INT,
        .field = FIELD(max_queue),
        .dflt = "256",
        .max = 65536,
        .word = "N",
        .help = "Requests that may wait for their turn. One more is refused "
                "with 429 and a Retry-After header.",
    },
    {
        .name = "queue_timeout",
        .type = OPT_TIME,
        .field = FIELD(queue_timeout),
        .dflt = "5m",
        .max = 24ull * 3600 * 1000,
        .word = "TIME",
        .help = "How long a request may wait, for its turn or for room in "
                "the KV memory, before it is refused with the reason: 429 "
                "where all answers that may run are running, 503 where all "
                "memory is promised to them, both with Retry-After. Running "
                "answers always go on. 0s: as long as its client waits.",
    },
    {
        .name = "gates",
        .type = OPT_STRING,
        .field = FIELD(gates),
        .dflt = "auto",
        .word = "FILE|auto|none",
        .help = "Retention gates: how long each cached entry stays useful. "
                "auto takes the first file in gates/pretrained that was made "
                "for this model, beside the program's folder, then in the "
                "working directory; without one the server runs without "
                "gates. A file that does not fit the model stops the start. "
                "docs/gates.md says more.",
    },
    {
        .name = "policy",
        .type = OPT_STRING,
        .field = FIELD(policy),
        .dflt = "",
        .word = "NAME",
        .shown_dflt = "dbtrimkv with gates (rg: trimkv), else selkv-window",
        .help = "Who leaves when memory is short. dbtrimkv: the entries that "
                "the gates value least, over all conversations. trimkv: the "
                "same gates, every head of a conversation gives alike. "
                "selkv-window: what the last 32 tokens attend to least. "
                "exact (or none): nobody; requests wait, or are refused with "
                "the numbers. To compare with, also snapkv, adakv, pyramidkv, "
                "tova, r-kv, keydiff, knorm, streamingllm and random "
                "(docs/policies.md). A request may ask for another one "
                "(kv.policy).",
    },
    {
        .name = "admission",
        .type = OPT_STRING,
        .field = FIELD(admission),
        .dflt = "",
        .word = "RANKING+FATE",
        .shown_dflt = "retention+drop with gates (rg: trimkv's), else "
                      "selkv+drop",
        .help = "What happens to a prompt that is larger than its share of "
                "the memory. The ranking says what leaves between two chunks "
                "of it: retention (the gates), selkv (what its last tokens "
                "attend to), or any policy, h2o, expected-attention and fastv "
                "too. "
                "The fate is drop, or merge: the value of what leaves lives "
                "on in an entry nearby that stays. For comparison also lookm, "
                "kvmerger, weightedkv and cam (docs/policies.md). none: a "
                "prompt is never cut, but waits for room.",
    },
    {
        .name = "merge_alpha",
        .type = OPT_REAL,
        .field = FIELD(merge_alpha),
        .dflt = "0.5",
        .max = 1,
        .word = "X",
        .help = "How much of the attention of merged entries their host "
                "gets, by logarithm: 0 none, 1 all of it.",
    },
    {
        .name = "merge_min_mass",
        .type = OPT_REAL,
        .field = FIELD(merge_min_mass),
        .dflt = "1",
        .max = 1000000,
        .word = "X",
        .help = "An entry is merged only into one that the end of the prompt "
                "looks at at least so many times as much. 0: into any.",
    },
    {
        .name = "merge_max_ratio",
        .type = OPT_REAL,
        .field = FIELD(merge_max_ratio),
        .dflt = "4",
        .min = 1,
        .or_zero = true,
        .max = 1000000,
        .word = "X",
        .help = "Merging makes an entry count as at most so many of its "
                "kind, 1 or more; 0: no bound.",
    },
    {
        .name = "merge_mean_ratio",
        .type = OPT_BOOL,
        .field = FIELD(merge_mean_ratio),
        .dflt = "false",
        .help = "The heads of a layer share how much more an entry counts for "
                "what was merged into it: each gets the mean over those that "
                "keep the token, as in the paper. Off: each head its own.",
    },
    {
        .name = "merge_min_cosine",
        .type = OPT_REAL,
        .field = FIELD(merge_min_cosine),
        .dflt = "0.75",
        .max = 1,
        .word = "X",
        .help = "By the fate kvmerger neighbours whose keys are more alike "
                "than this, by the cosine of the angle between them, become "
                "one.",
    },
    {
        .name = "watch_columns",
        .type = OPT_BOOL,
        .field = FIELD(watch_columns),
        .dflt = "false",
        .help = "Requests may ask for the fates kvmerger, weightedkv and cam, "
                "which need the attention that all tokens of a prompt give to "
                "each entry. It is watched for prompts with these fates only, "
                "which then take a fifth longer; its memory is allocated at "
                "the start and grows with --max-context. On where "
                "--admission names one of them; off beside that is refused.",
    },
    {
        .name = "per_head_sets",
        .type = OPT_BOOL,
        .field = FIELD(per_head_sets),
        .dflt = "false",
        .help = "By selkv-window each head keeps tokens of its own, instead "
                "of one set for all heads of a layer as in the paper. Where "
                "every query head has its own keys it always does.",
    },
    {
        .name = "reposition",
        .type = OPT_BOOL,
        .field = FIELD(reposition),
        .dflt = "false",
        .help = "When a prompt has been cut, what stays of it is moved "
                "together: keys are turned to positions without gaps, and the "
                "answer goes on behind them.",
    },
    {
        .name = "session_tokens",
        .type = OPT_INT,
        .field = FIELD(session_tokens),
        .dflt = "0",
        .max = CONFIG_SESSION_TOKENS_MAX,
        .word = "N",
        .shown_dflt = "0, no cap",
        .help = "The most that one conversation keeps, in entries per layer "
                "and KV head on average. It is passed by at most one entry "
                "per head, between two steps, and by a prompt until it is "
                "read where there is room for all of it.",
    },
    {
        .name = "min_tokens_per_head",
        .type = OPT_INT,
        .field = FIELD(min_tokens_per_head),
        .dflt = "20",
        .min = 1,
        .max = 4096,
        .word = "N",
        .help = "Entries that every layer and KV head of a conversation "
                "keeps, whatever they are worth. The protected first and "
                "newest tokens count, and raise the default where they are "
                "more.",
    },
    {
        .name = "protect_sinks",
        .type = OPT_INT,
        .field = FIELD(protect_sinks),
        .dflt = "4",
        .max = 1024,
        .word = "N",
        .help = "First tokens of a conversation that never leave.",
    },
    {
        .name = "protect_recent",
        .type = OPT_INT,
        .field = FIELD(protect_recent),
        .dflt = "16",
        .min = 1,
        .max = 1024,
        .word = "N",
        .help = "Newest tokens of a conversation that never leave.",
    },
    {
        .name = "idle_decay",
        .type = OPT_REAL,
        .field = FIELD(idle_decay),
        .dflt = "0.05",
        .max = 1000000,
        .word = "X",
        .help = "How fast a conversation at rest loses rank: its scores fall "
                "by this for every 1000 tokens that the server computes "
                "meanwhile. 0: not at all.",
    },
    {
        .name = "unbounded_context",
        .type = OPT_BOOL,
        .field = FIELD(unbounded_context),
        .dflt = "false",
        .help = "Let a conversation go on beyond the context: what it still "
                "keeps is moved to new positions. Its --session-tokens must "
                "be below the context, unless all of --kv-memory holds less "
                "than that; kv.session_tokens 0 in a request turns it off.",
    },
    {
        .name = "deterministic",
        .type = OPT_BOOL,
        .field = FIELD(deterministic),
        .dflt = "false",
        .help = "Plan each step from constants instead of measured times, so "
                "that the same requests in the same order are computed in "
                "the same steps, and forget the same. Without it answers "
                "repeat only where nothing was forgotten.",
    },
    {
        .name = "max_body",
        .type = OPT_BYTES,
        .field = FIELD(max_body),
        .dflt = "16MiB",
        .min = 1024,
        .max = 1ull << 30,
        .word = "SIZE",
        .help = "The largest request body. A larger one is refused with 413.",
    },
    {
        .name = "drain_timeout",
        .type = OPT_TIME,
        .field = FIELD(drain_timeout),
        .dflt = "30s",
        .max = 24ull * 3600 * 1000,
        .word = "TIME",
        .help = "After SIGTERM no new request is accepted, and running "
                "answers may finish for this long; what is left then ends "
                "with an error in its stream.",
    },
    {
        .name = "cors_origin",
        .type = OPT_LIST,
        .field = FIELD(cors_origin),
        .dflt = "",
        .word = "ORIGIN",
        .shown_dflt = "origins on this machine: localhost, 127.0.0.1, [::1]",
        .help = "A web page's origin, such as https://chat.example, whose "
                "scripts may call the server; * allows every page. Repeat it "
                "for more; in a variable, separate them by commas.",
    },
    {
        .name = "log_format",
        .type = OPT_CHOICE,
        .field = FIELD(log_format),
        .dflt = "text",
        .choices = log_formats,
        .help = "How records on stderr look, one line each.",
    },
    {
        .name = "log_level",
        .type = OPT_CHOICE,
        .field = FIELD(log_level),
        .dflt = "info",
        .choices = log_levels,
        .help = "The least important records that are still written.",
    },
};

const struct option *option_table(size_t *n)
{
    *n = sizeof(table) / sizeof(table[0]);
    return table;
}
