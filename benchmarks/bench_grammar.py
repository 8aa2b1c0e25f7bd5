"""What does a grammar cost: milliseconds of a decode step without one, and of the masks for it, at 1, 8 and 32 streams?

    python -m benchmarks.bench_grammar [--model PATH] [--rounds 3] [--tokens 48]

Answers of the model at temperature 0.8, free, as any JSON object, and by a schema of strings, numbers and lists; steps in which all streams
decode, rounds of the three taking turns. Steps are told in time and in processor time of all threads; masks are worked out once more alone, for
the answers that were drawn, in processor time, which hardly depends on what else the machine does. The built-in model must have been fetched before, or another be named.
Medians; the last line is JSON.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.grammar import GrammarCompiler
from engine.grammar_spec import GrammarSpec, json_grammar
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loader.tokenizer import load_tokenizer
from engine.outputs import SampleRequest
from engine.runners import load_runner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.sequence import Sequence as EngineSequence
from engine.token_masks import find_masks
from engine.tokenizer import Tokenizer
from engine.worker import Runner

STREAMS = (1, 8, 32)
WARM_UP_STEPS = 2
TEXT = {"type": "string", "minLength": 20}
RECORD = {
    "type": "object",
    "properties": {
        "title": TEXT,
        "people": {"type": "array", "minItems": 4, "items": {
            "type": "object",
            "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
            "required": ["name", "age"],
        }},
    },
    "required": ["title", "people"],
    "additionalProperties": False,
}  # fmt: skip
OPEN = {"type": "object", "minProperties": 30}
SPECS: dict[str, GrammarSpec | None] = {
    "free": None,
    "object": json_grammar(OPEN, "object"),
    "schema": json_grammar(RECORD, "schema"),
}


class Bench:
    """One model, its tokenizer and the compiled grammars."""

    def __init__(self, path: Path) -> None:
        config = EngineConfig(
            model_path=path, model_name=path.name, num_blocks=1024, enable_prefix_caching=False
        )
        self._runner: Runner = load_runner(config, lambda stage, share: None)
        tokenizer = Tokenizer(load_tokenizer(path))
        self._prompt = tokenizer.render_chat([{"role": "user", "content": "Tell me a story."}])
        eos = self._runner.scheduler_config.eos_token_ids
        compiler = GrammarCompiler(tokenizer, self._runner.info.vocab_size, eos)
        self._grammars = {name: spec and compiler.compile(spec) for name, spec in SPECS.items()}

    def step_ms(
        self, name: str, num_streams: int, num_tokens: int
    ) -> tuple[list[float], list[float], list[float]]:
        """Time and processor time of the decode steps of a batch in which every stream still runs; processor time of their masks."""
        core = EngineCore(Scheduler(self._runner.scheduler_config), self._runner)
        requests = [self._request(name, i, num_tokens) for i in range(num_streams)]
        for request in requests:
            core.add_request(request)
        durations: list[float] = []
        work: list[float] = []
        stats = core.stats()
        while stats.counters.generated_tokens < num_streams * WARM_UP_STEPS:
            core.step()
            stats = core.stats()
        while stats.num_running == num_streams:
            started, worked = time.perf_counter(), time.process_time()
            core.step()
            durations.append((time.perf_counter() - started) * 1e3)
            work.append((time.process_time() - worked) * 1e3)
            stats = core.stats()
        for request in requests:
            core.abort(request.request_id)
        return durations, work, mask_ms([request.sequences[0] for request in requests])

    def _request(self, name: str, index: int, num_tokens: int) -> Request:
        params = SamplingParams(
            temperature=0.8,
            seed=index,
            max_tokens=num_tokens,
            ignore_eos=name == "free",
            grammar=SPECS[name],
        )
        grammar = self._grammars[name]
        return Request(index, list(self._prompt), params, time.monotonic(), grammar=grammar)


def mask_ms(sequences: Sequence[EngineSequence]) -> list[float]:
    """Processor time of the masks of each step, worked out anew along the outputs; empty without a grammar."""
    grammar = sequences[0].request.grammar
    if grammar is None:
        return []
    durations = []
    outputs: list[list[int]] = [[] for _ in sequences]
    asked = [
        SampleRequest(i, seq.request.params, None, [], output, matcher=grammar.matcher())
        for i, (seq, output) in enumerate(zip(sequences, outputs, strict=True))
    ]
    for position in range(min(len(seq.output_token_ids) for seq in sequences)):
        started = time.thread_time()
        find_masks(asked)
        durations.append((time.thread_time() - started) * 1e3)
        for seq, output in zip(sequences, outputs, strict=True):
            output.append(seq.output_token_ids[position])
    return durations[WARM_UP_STEPS:]


def measure(bench: Bench, rounds: int, num_tokens: int) -> dict[str, float]:
    """Median milliseconds of a step by case, printed as they come."""
    results: dict[str, float] = {}
    for num_streams in STREAMS:
        found: dict[str, list[list[float]]] = {name: [[], [], []] for name in SPECS}
        for _ in range(rounds):
            for name in SPECS:
                for kind, values in zip(
                    found[name], bench.step_ms(name, num_streams, num_tokens), strict=True
                ):
                    kind += values
        free, free_work, _ = _medians(found["free"])
        for name in SPECS:
            step, work, mask = _medians(found[name])
            key = f"{name} {num_streams}"
            results |= {f"step {key}": step, f"work {key}": work, f"masks {key}": mask}
            told = (
                f"step {step:7.2f} ms, work {work:6.2f} ms, {work / free_work:4.2f} of a free one"
            )
            print(
                f"{num_streams:3} streams, {name:7} {told}, masks {mask:5.2f} ms, {mask / free:.1%}"
            )
    return results


def _medians(found: list[list[float]]) -> list[float]:
    return [statistics.median(values or [0.0]) for values in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    print(f"{describe()}, {path.name}")
    results = measure(Bench(path), options.rounds, options.tokens)
    print(json.dumps({"model": path.name, "machine": describe(), "ms": results}))


if __name__ == "__main__":
    main()
