"""What the fates make of a tiny model's cache, by numpy.

    make_fate_golden.py MODEL.gguf POLICY.golden OUT.golden

The model runs in float64 over the tokens of POLICY.golden
(make_policy_golden.py); the entries that selkv-window keeps there stay, and the
others meet the fates of make_merge_golden.py, with the settings of the server.
Writes for each list (layer, KV head) what the entries that stay hold
afterwards, in order of position, every STEP-th component:

    <fate>.value, <fate>.key   [list][kept][d / STEP]; keys where they change
    <fate>.bias                [list][kept], of selkv and unguarded
    counts                     [fate][evicted, routed], over the lists; fates
                               in the order of FATES

Needs: pip install numpy gguf tokenizers.
"""

import sys

import numpy as np

import golden_file
import make_merge_golden as merge
from make_policy_golden import BUCKET, N, WINDOW, Watched, grouped

SELKV_WINDOW = 12  # the case of POLICY.golden
STEP, ALPHA, MAX_RATIO = 8, 0.5, 4.0


def unguarded(c, i):
    return merge.selkv(c, i)


FATES = {"selkv": merge.guarded, "unguarded": unguarded, "lookm": merge.lookm,
         "kvmerger": merge.kvmerger, "weightedkv": merge.weightedkv,
         "cam": merge.cam}


def lists(model, layers, masks):
    """One case of make_merge_golden for each list."""
    for i, layer in enumerate(layers):
        a = grouped(model, layer["a"]).sum(1)
        for h in range(model.n_kv):
            band = np.zeros((N, BUCKET))
            for j in range(N):
                start = j - j % BUCKET
                band[j, :j - start + 1] = a[h, j, start:j + 1]
            stays = masks[i * model.n_kv + h] == 1
            yield {"pos": np.arange(N), "n_seen": N,
                   "state": np.where(stays, merge.STAYS, merge.LEAVES),
                   "value": layer["v"][h], "key": layer["k"][h],
                   "mass": a[h, -WINDOW:].sum(0), "column": a[h].sum(0),
                   "band": band.astype(np.float16)}


def main():
    path, policies, out = sys.argv[1:]
    given = golden_file.read(policies)
    model = Watched(path)
    layers = model.run(given["tokens"])
    cases = list(lists(model, layers, given["masks"][SELKV_WINDOW]))
    merge.N, merge.N_NEXT, merge.SEED = N, 32, 0
    arrays = {"masks": ("i32", given["masks"][SELKV_WINDOW]),
              "tokens": ("i32", given["tokens"])}
    all_counts = []
    for name, fate in FATES.items():
        value, key, bias, counts = [], [], [], np.zeros(2)
        for i, c in enumerate(cases):
            stays = c["state"] == merge.STAYS
            v, k, ratio, (routed, _) = fate(c, i)
            value.append(v[stays, ::STEP])
            key.append(k[stays, ::STEP])
            most = MAX_RATIO if name == "selkv" else np.inf
            bias.append(ALPHA * np.log(np.minimum(ratio[stays], most)))
            counts += np.array([np.sum(~stays), routed])
        arrays[f"{name}.value"] = ("f32", value)
        if name in ("lookm", "kvmerger"):
            arrays[f"{name}.key"] = ("f32", key)
        if name in ("selkv", "unguarded"):
            arrays[f"{name}.bias"] = ("f32", bias)
        all_counts.append(counts)
    arrays["counts"] = ("i32", all_counts)
    golden_file.write(out, arrays)
    print(f"{out}: {len(cases)} lists")


if __name__ == "__main__":
    main()
