"""The whole fused step against plain numpy, over every kind of shape; and that a row never feels its neighbours."""

import hashlib
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cpu.fused import layout as at
from kernels.cpu.fused.model import FusedModel, FusedShape, unsupported_reason
from kernels.cpu.fused.ranking import RANK
from kernels.cpu.fused.sampling import DRAW, UNUSABLE
from tests.kernels.fused_reference import RandomModel, Run, needs_fused_cpu, step_input

pytestmark = needs_fused_cpu
VOCAB = 100
WATCHDOG_SECONDS, NUM_JOBS, IDLE_SECONDS = 150, 10_000, 0.2


def make_shape(
    heads: int, kv_heads: int, head_dim: int, hidden: int, intermediate: int
) -> FusedShape:
    return FusedShape(
        num_layers=2,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=VOCAB,
        epsilon=1e-5,
        softmax_scale=head_dim**-0.5,
    )


SMALL = make_shape(3, 1, 64, 64, 96)
SHAPES = {
    "group of 3": (make_shape(9, 3, 64, 96, 192), {}),
    "no grouping, 8 bits": (make_shape(4, 4, 64, 128, 96), {"bits": 8}),
    "head_dim 80, biases": (make_shape(8, 2, 80, 160, 64), {"bias": True}),
    "odd heads of 80": (make_shape(2, 1, 80, 64, 32), {"bias": True, "qk_norm": True}),
    "group of 7, norms": (make_shape(7, 1, 128, 64, 64), {"qk_norm": True}),
    "head_dim 112, mixed": (make_shape(2, 2, 112, 64, 64), {"bits": 0, "bias": True}),
    "head_dim 96": (make_shape(5, 5, 96, 64, 64), {"bits": 0}),
}


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def shuffled_blocks(count: int, seed: int = 0, pool: int = 64) -> list[int]:
    return np.random.default_rng(seed).permutation(pool)[:count].tolist()


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def small_model(request: pytest.FixtureRequest) -> RandomModel:
    return RandomModel(replace(SMALL, int8_kv=request.param == "int8"), seed=3)


@pytest.mark.parametrize("int8_kv", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_prefill_and_decode_agree_with_numpy(name: str, int8_kv: bool) -> None:
    shape, options = SHAPES[name]
    assert unsupported_reason(shape, 16) is None
    model = RandomModel(replace(shape, int8_kv=int8_kv), seed=0, **options)
    fused, tokens = model.fused(), random_tokens(300)
    expected, blocks = model.dense.logits(tokens), shuffled_blocks(19)
    fused.run(step_input([Run(tokens[:150], 0, blocks, wants_logits=False)]))
    for start, end in ((150, 299), (299, 300)):
        (logits,) = fused.run(step_input([Run(tokens[start:end], start, blocks)]))
        assert cosine(logits, expected[end - 1]) > 0.9998
    fused.close()


@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 64), (32, 32), (128, 8), (1024, 8)])
def test_block_sizes_give_the_same_bits(
    small_model: RandomModel, block_size: int, num_blocks: int
) -> None:
    tokens = random_tokens(300)
    reference, fused = (
        small_model.fused(),
        small_model.fused(num_blocks=num_blocks, block_size=block_size),
    )
    blocks = list(range(num_blocks))[::-1]  # the pool's last block is the first one used
    (logits,) = fused.run(step_input([Run(tokens[:200], 0, blocks)]))
    (logits,) = fused.run(step_input([Run(tokens[200:], 200, blocks)]))
    (expected,) = reference.run(step_input([Run(tokens[:256], 0, shuffled_blocks(19))]))
    (expected,) = reference.run(step_input([Run(tokens[256:], 256, shuffled_blocks(19))]))
    np.testing.assert_array_equal(logits, expected)
    fused.close()
    reference.close()


@pytest.mark.parametrize("vocab_size", [1, 33, 256, 700, 5000])
def test_a_step_draws_what_is_drawn_from_its_logits(vocab_size: int) -> None:
    """For every kind of draw, in any order of rows, several from one row."""
    fused = RandomModel(replace(SMALL, vocab_size=vocab_size), seed=3).fused(num_threads=3)
    runs = [Run([i], 0, [i]) for i in range(min(vocab_size, 13))]
    draws = np.zeros(60, DRAW)
    draws["row"], draws["uniform"] = np.arange(60) * 7 % len(runs), np.arange(60) / 60
    draws["inverse_temperature"] = [0, 1, 20] * 20
    draws["top_p"], draws["floor"] = [1, 0.5, 1, 1] * 15, [-np.inf, -np.inf, -0.5] * 20
    draws["top_k"] = [0, 3, 0, 0, 40] * 12
    logits = fused.run(step_input(runs), draws)
    before, drawn = logits.copy(), draws["token"].tolist()
    assert drawn == fused.draw(before, draws).tolist()
    greedy = draws["inverse_temperature"] == 0
    assert draws["token"][greedy].tolist() == before[draws["row"][greedy]].argmax(1).tolist()
    np.testing.assert_array_equal(fused.run(step_input(runs)), before)
    assert vocab_size < 33 or len(set(drawn)) > 5
    fused.close()


def test_a_step_whose_logits_are_not_finite_draws_nothing() -> None:
    model = RandomModel(SMALL, seed=3)
    fused = model.fused()
    fused._weights.final_norm[:] = 3e38
    draws = np.zeros(2, DRAW)
    draws["inverse_temperature"], draws["floor"] = [0, 1], -np.inf
    fused.run(step_input([Run([5], 0, [1])]), draws)
    assert draws["token"].tolist() == [UNUSABLE, UNUSABLE]
    fused.close()


def test_the_last_layer_ends_early_for_rows_that_nobody_asks_about() -> None:
    fused = RandomModel(replace(SMALL, num_layers=1), seed=3).fused()
    step = step_input([Run(random_tokens(40), 0, [5, 6, 7])])
    every_row = replace(step, output_rows=np.arange(40, dtype=np.int32))
    expected = fused.run(every_row)[39].copy()
    untouched = fused._kept[at.ACT_NUMBERS]
    untouched[:] = 77
    (logits,) = fused.run(step)
    np.testing.assert_array_equal(logits, expected)
    rows = untouched.reshape(fused.max_rows, SMALL.intermediate_size)
    assert (rows[0] != 77).any()
    assert (rows[1:] == 77).all()
    fused.close()


def alone(model: FusedModel, tokens: list[int], blocks: list[int]) -> bytes:
    """Logits of the last token, computed token by token with nothing beside it."""
    logits = np.empty(0)
    for position, token in enumerate(tokens):
        (logits,) = model.run(step_input([Run([token], position, blocks)]))
    return logits.tobytes()


@pytest.fixture(scope="module")
def invariance(small_model: RandomModel):
    """Two models with 1 and 3 threads, three texts, and what each gives when computed alone, token by token."""
    models = [small_model.fused(num_threads=n) for n in (1, 3)]
    texts = [random_tokens(n, seed=n) for n in (5, 40, 290)]
    expected = [alone(models[0], text, shuffled_blocks(19, seed=9)) for text in texts]
    yield models, texts, expected
    for model in models:
        model.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_logits_do_not_depend_on_chunks_neighbours_or_threads(invariance, data) -> None:
    models, texts, expected = invariance
    model = data.draw(st.sampled_from(models))
    model.kv[:] = 0x7FC0
    pool = data.draw(st.permutations(range(64)))
    blocks = [pool[:1], pool[1:4], pool[4:23]]
    done, results = [0, 0, 0], {}
    while len(results) < len(texts):
        waiting = [i for i in range(len(texts)) if i not in results]
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        runs, sizes = [], []
        for i in chosen:
            left = len(texts[i]) - done[i]
            size = data.draw(st.integers(1, min(left, 80)) | st.just(min(left, 80)))
            runs.append(Run(texts[i][done[i] : done[i] + size], done[i], list(blocks[i])))
            sizes.append(size)
        logits = model.run(step_input(runs))
        for i, size, row in zip(chosen, sizes, logits, strict=True):
            done[i] += size
            if done[i] == len(texts[i]):
                results[i] = row.tobytes()
    assert [results[i] for i in range(len(texts))] == expected


def test_a_copied_block_and_a_shared_prefix_serve_like_computed_ones(
    small_model: RandomModel,
) -> None:
    model, tokens = small_model.fused(), random_tokens(60)
    other = [*tokens[:40], *random_tokens(20, seed=7)]
    expected = [alone(model, text, [0, 1, 2, 3]) for text in (tokens, other)]
    model.run(step_input([Run(tokens[:40], 0, [10, 11, 12])]))
    model.copy_blocks([12], [20])
    runs = [Run(tokens[40:], 40, [10, 11, 12, 13]), Run(other[40:], 40, [10, 11, 20, 21])]
    logits = model.run(step_input(runs))
    assert [row.tobytes() for row in logits] == expected
    model.close()


def test_many_decodes_in_one_step(small_model: RandomModel) -> None:
    """64 sequences of different lengths, more rows than a panel, each as when alone."""
    model = small_model.fused(num_blocks=256, max_rows=512)
    texts = [random_tokens(1 + i % 30, seed=i) for i in range(64)]
    tables = [[2 * i, 2 * i + 1] for i in range(64)]
    expected = [alone(model, text, [254, 255]) for text in texts]
    model.kv[:] = 0x7FC0
    prompts = [Run(text[:-1], 0, table) for text, table in zip(texts, tables, strict=True)]
    for first in range(0, 64, 16):
        model.run(step_input([run for run in prompts[first : first + 16] if run.tokens]))
    last = [Run(text[-1:], len(text) - 1, table) for text, table in zip(texts, tables, strict=True)]
    assert [row.tobytes() for row in model.run(step_input(last))] == expected
    model.close()


def test_threads_without_a_job_sleep(small_model: RandomModel) -> None:
    model = small_model.fused(num_threads=3)
    model.run(step_input([Run(random_tokens(5), 0, shuffled_blocks(1))]))
    deadline, slept = time.monotonic() + WATCHDOG_SECONDS, 0.0
    while slept < IDLE_SECONDS / 2:
        assert time.monotonic() < deadline, "threads that have nothing to do use a processor"
        used, started = time.process_time(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        slept = time.monotonic() - started - (time.process_time() - used)
    model.close()


def test_threads_survive_thousands_of_jobs_beside_busy_ones(small_model: RandomModel) -> None:
    """Steps, draws and ranks of random size; more workers than processors, and threads that hold them up."""
    model, finished = small_model.fused(num_threads=6), threading.Event()
    tokens, blocks = random_tokens(48), shuffled_blocks(3)
    rng = np.random.default_rng(0)
    step = step_input([Run(tokens, 0, blocks)])
    expected = model.run(replace(step, output_rows=np.arange(48, dtype=np.int32))).copy()
    draws, ranks = np.zeros(48, DRAW), np.zeros(48, RANK)
    draws["row"] = ranks["row"] = np.arange(48)
    draws["uniform"], draws["top_p"], draws["inverse_temperature"] = rng.random(48), 0.9, 1
    draws["floor"] = -np.inf
    drawn = ranks["token"] = model.draw(expected, draws).copy()
    model.rank(expected, ranks)
    ranked, failures = ranks["rank"].copy(), []

    def keep_busy() -> None:
        while not finished.is_set():
            hashlib.pbkdf2_hmac("sha256", b"busy", b"without the GIL", 20_000)

    def run_jobs() -> None:
        for kind, length in rng.integers((0, 1), (3, 49), (NUM_JOBS, 2)):
            draws["token"] = ranks["rank"] = -7
            if kind == 0:
                (logits,) = model.run(step_input([Run(tokens[:length], 0, blocks)]))
                is_right = np.array_equal(logits, expected[length - 1])
            elif kind == 1:
                is_right = np.array_equal(model.draw(expected, draws[:length]), drawn[:length])
            else:
                model.rank(expected, ranks[:length])
                is_right = np.array_equal(ranks["rank"][:length], ranked[:length])
            if not is_right:
                failures.append((kind, length))

    busy = [threading.Thread(target=keep_busy) for _ in range(2)]
    runner = threading.Thread(target=run_jobs, daemon=True)
    for thread in (*busy, runner):
        thread.start()
    runner.join(WATCHDOG_SECONDS)
    finished.set()
    for thread in busy:
        thread.join()
    assert not runner.is_alive(), "a job hangs"
    assert failures == []
    model.close()


def workers() -> set[threading.Thread]:
    """Threads of all models."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("cpu-step")}


def test_models_start_and_stop(small_model: RandomModel) -> None:
    before = workers()
    for _ in range(20):
        model = small_model.fused(num_threads=3)
        model.run(step_input([Run([1, 2], 0, [0])]))
        model.close()
        model.close()
    assert workers() == before


def test_a_forgotten_model_ends_its_threads(small_model: RandomModel) -> None:
    before = workers()
    small_model.fused(num_threads=3)
    assert workers() == before


@pytest.mark.parametrize(
    ("shape", "block_size", "reason"),
    [
        (make_shape(2, 2, 72, 64, 64), 16, "head_dim 72 is not a multiple of 16 up to 128"),
        (make_shape(2, 2, 144, 64, 64), 16, "head_dim 144 is not a multiple of 16 up to 128"),
        (make_shape(2, 2, 64, 72, 64), 16, "hidden size 72 is not a multiple of 32"),
        (make_shape(2, 2, 64, 64, 80), 16, "intermediate size 80 is not a multiple of 32"),
        (make_shape(3, 2, 64, 64, 64), 16, "heads are not a multiple of KV heads"),
        (make_shape(1, 1, 80, 64, 64), 16, "1 heads of 80 are not a multiple of 32"),
        (SMALL, 8, "block size 8 is not a multiple of 16; --block-size 16 is one"),
    ],
)
def test_what_it_cannot_do_is_named(shape: FusedShape, block_size: int, reason: str) -> None:
    assert unsupported_reason(shape, block_size) == reason
