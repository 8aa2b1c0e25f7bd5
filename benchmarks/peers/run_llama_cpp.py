"""llama.cpp on the loads of bench_cpu: `python run_llama_cpp.py MODEL.gguf THREADS CASES`.

Greedy streams of made-up tokens through `llama_decode`, as llama.cpp's own batched benchmark runs them: all prompts first, then
one token of every stream in each call, argmax of its logits by numpy. CASES is JSON, {name: [streams, prompt tokens, output
tokens]}; output tokens 0 is a prefill. A line [name, salt] on its input is one round, with a prompt of its own; it answers
`figure: TOKENS PER SECOND`.
"""

import json
import sys
import time
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np

MAX_BATCH = 512
SILENCE = llama_cpp.llama_log_callback(lambda *_: None)


def open_model(path: str, threads: int, streams: int, length: int) -> tuple[Any, int]:
    """A context with room for `streams` sequences of `length` tokens; returns it and the vocabulary's size."""
    llama_cpp.llama_log_set(SILENCE, None)
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max = streams * (length + 8), streams
    params.n_batch = params.n_ubatch = MAX_BATCH
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = True
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return llama_cpp.llama_init_from_model(model, params), vocabulary


def decode(context: Any, batch: Any, rows: list[tuple[int, int, int, bool]]) -> None:
    """One call; a row is (token, position, sequence, whether its logits are wanted)."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.logits[i] = wanted
    assert llama_cpp.llama_decode(context, batch) == 0, "llama_decode failed"


def best_token(context: Any, row: int, vocabulary: int) -> int:
    logits = llama_cpp.llama_get_logits_ith(context, row)
    return int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())


def run(context: Any, vocabulary: int, case: tuple[int, int, int], salt: int) -> float:
    """Output tokens (or prompt tokens, of a prefill) a second over all of it."""
    streams, num_prompt, num_output = case
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(MAX_BATCH, 0, 1)
    started = time.perf_counter()
    rows = [
        ((salt * 7919 + stream * 104_729 + t * 31) % 40_000 + 100, t, stream, t == num_prompt - 1)
        for stream in range(streams)
        for t in range(num_prompt)
    ]
    tokens = []
    for first in range(0, len(rows), MAX_BATCH):
        part = rows[first : first + MAX_BATCH]
        decode(context, batch, part)
        tokens += [best_token(context, i, vocabulary) for i, row in enumerate(part) if row[3]]
    for position in range(num_prompt, num_prompt + num_output - 1):
        decode(context, batch, [(t, position, s, True) for s, t in enumerate(tokens)])
        tokens = [best_token(context, row, vocabulary) for row in range(streams)]
    elapsed = time.perf_counter() - started
    llama_cpp.llama_batch_free(batch)
    return streams * (num_output or num_prompt) / elapsed


def main() -> None:
    path, threads, cases = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    opened = {
        name: open_model(path, threads, case[0], case[1] + case[2]) for name, case in cases.items()
    }
    for line in sys.stdin:
        name, salt = json.loads(line)
        print(f"figure: {run(*opened[name], cases[name], salt)}", flush=True)


if __name__ == "__main__":
    main()
