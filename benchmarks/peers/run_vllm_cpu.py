"""vLLM on the loads of bench_cpu: `python run_vllm_cpu.py FOLDER THREADS CASES`, asked and answering as run_llama_cpp.py.

Its offline engine in bfloat16, prefix caching off, greedy; the time is that of `LLM.generate`.
"""

import json
import os
import sys
import time
from typing import Any


def rate(llm: Any, params: Any, case: tuple[int, int, int], salt: int) -> float:
    """Output tokens (or prompt tokens, of a prefill) a second over all of it."""
    streams, num_prompt, num_output = case
    prompts = [
        {
            "prompt_token_ids": [
                (salt * 7919 + i * 104_729 + t * 31) % 40_000 + 100 for t in range(num_prompt)
            ]
        }
        for i in range(streams)
    ]
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return streams * (num_output or num_prompt) / (time.perf_counter() - started)


def main() -> None:
    folder, threads, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    os.environ.update(
        OMP_NUM_THREADS=threads, VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="4"
    )
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    longest = max(prompt + output for _, prompt, output in cases.values())
    llm = LLM(
        folder,
        dtype="bfloat16",
        max_model_len=longest + 8,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    for line in sys.stdin:
        name, salt = json.loads(line)
        params = SamplingParams(
            temperature=0, max_tokens=max(1, cases[name][2]), ignore_eos=True, detokenize=False
        )
        print(f"figure: {rate(llm, params, cases[name], salt)}", flush=True)


if __name__ == "__main__":
    main()
