"""The fused step as a Python object: weights and memory in, logits out.

`FusedModel.run` is one call without the GIL. Worker threads sleep on a semaphore between steps.
"""

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cpu.fused import layout as at
from kernels.cpu.fused.attention_kernels import MAX_HEAD_DIM, SCRATCH_TAIL
from kernels.cpu.fused.candidates import scratch_bytes
from kernels.cpu.fused.compiled import compiled_step
from kernels.cpu.fused.linear import BLOCK_COLUMNS
from kernels.cpu.fused.memory_pool import ALIGNMENT, aligned_zeros
from kernels.cpu.fused.quantize import GROUP, RECORD_BYTES
from kernels.cpu.fused.sampling import DRAW
from kernels.cpu.fused.sampling_kernels import TILE
from kernels.cpu.fused.step import (
    GATE_UP_UNITS,
    MAX_ITEM_BLOCKS,
    OTHER_PHASES,
    PANEL_ROWS,
    PHASES_PER_LAYER,
)
from kernels.cpu.fused.threads import LINE_BYTES

MIN_PARTIALS = 512
SPINS = 2000
MIN_HEAD_DIM = 16
SCALE_BYTES = 2
_SEMAPHORE_BYTES = 64
NO_DRAWS = np.zeros(0, DRAW)


@dataclass(frozen=True, kw_only=True)
class FusedShape:
    """Sizes of a model; `softmax_scale` multiplies the scores, `epsilon` is that of every norm.

    With `int8_kv` keys and values are kept in 8 bits, else in bfloat16.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float
    softmax_scale: float
    int8_kv: bool = False

    @property
    def kv_token_bytes(self) -> int:
        """KV memory of one token over all layers."""
        per_head = 2 * self.head_dim + 2 * SCALE_BYTES if self.int8_kv else 4 * self.head_dim
        return self.num_layers * self.num_kv_heads * per_head

    @property
    def heads_per_unit(self) -> int:
        """Heads whose columns fill whole weight blocks."""
        return 1 if self.head_dim % BLOCK_COLUMNS == 0 else 2

    @property
    def vocab_blocks(self) -> int:
        """Weight blocks of the head."""
        return -(-self.vocab_size // BLOCK_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class FusedLayer:
    """Weights of a layer: norms float32, linear layers as tables of packed blocks (linear.py), int64.

    `qkv` holds queries, keys and values, each padded to whole units of heads; `qkv_bias` is float32 in that order.
    `gate_up` alternates 16 gates and their 16 ups. `q_norm` and `k_norm` are [head_dim].
    """

    input_norm: np.ndarray
    qkv: np.ndarray
    qkv_bias: np.ndarray | None
    q_norm: np.ndarray | None
    k_norm: np.ndarray | None
    output: np.ndarray
    post_norm: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray


@dataclass(frozen=True, kw_only=True)
class FusedWeights:
    """All weights; `cosines` and `sines` are float32 [positions, head_dim / 2]; `memory` keeps packed blocks alive."""

    layers: Sequence[FusedLayer]
    final_norm: np.ndarray
    embedding: np.ndarray
    head: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray
    memory: object


@dataclass(frozen=True, slots=True)
class StepInput:
    """The runs of tokens of a step, one per sequence.

    token_ids [rows] int32; seq_rows [seqs + 1] first row of each run; positions [seqs] of the first row; tables [seqs]
    where each run's blocks start in block_tables; output_rows [outputs] rows whose logits are wanted; state_rows other rows
    whose final states are wanted. All int32, no row twice among the last two.
    """

    token_ids: np.ndarray
    seq_rows: np.ndarray
    positions: np.ndarray
    tables: np.ndarray
    block_tables: np.ndarray
    output_rows: np.ndarray
    state_rows: np.ndarray


def unsupported_reason(shape: FusedShape, block_size: int) -> str | None:
    """Why the fused step cannot do a model or block size; None if it can."""
    rules = (
        (
            shape.head_dim % 16 == 0 and MIN_HEAD_DIM <= shape.head_dim <= MAX_HEAD_DIM,
            f"head_dim {shape.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}",
        ),
        (
            shape.hidden_size % GROUP == 0,
            f"hidden size {shape.hidden_size} is not a multiple of 32",
        ),
        (
            shape.intermediate_size % GROUP == 0,
            f"intermediate size {shape.intermediate_size} is not a multiple of 32",
        ),
        (shape.num_heads % shape.num_kv_heads == 0, "heads are not a multiple of KV heads"),
        (
            shape.num_heads * shape.head_dim % GROUP == 0,
            f"{shape.num_heads} heads of {shape.head_dim} are not a multiple of 32",
        ),
        (
            block_size % at.TILE_TOKENS == 0,
            f"block size {block_size} is not a multiple of 16; --block-size 16 is one",
        ),
    )
    return next((reason for is_met, reason in rules if not is_met), None)


class FusedModel:
    """One model with its KV pool and worker threads. Not reentrant: one step at a time."""

    def __init__(
        self,
        shape: FusedShape,
        weights: FusedWeights,
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_outputs: int,
        num_threads: int,
        instruction_set: str,
    ) -> None:
        """Allocates everything and compiles the step. Raises ValueError for what `unsupported_reason` names."""
        reason = unsupported_reason(shape, block_size)
        if reason is not None:
            raise ValueError(reason)
        self.shape = shape
        self.max_rows, self.max_outputs = max_rows, max_outputs
        self._weights = weights
        # A decode at the last position can still be spread over all threads.
        self._max_partials = max(MIN_PARTIALS, -(-len(weights.cosines) // at.CHUNK_TOKENS))
        self._header = np.zeros(at.HEADER_SLOTS, np.int64)
        self._kept: dict[int, np.ndarray] = {}
        self._set_shape(num_blocks, block_size, num_threads)
        self._set_weights()
        self._set_memory()
        self.kv = self._allocate_kv(num_blocks, block_size // at.TILE_TOKENS)
        self._run = compiled_step(instruction_set)
        self.close = weakref.finalize(self, _end_threads, self._header, self._start_threads())
        """Ends the worker threads; the model can run no more steps. Safe to call again."""

    def run(self, step: StepInput, draws: np.ndarray = NO_DRAWS) -> np.ndarray:
        """Computes a step; returns logits [outputs, vocab] float32, a view that the next step overwrites.

        `draws` (sampling.DRAW) speak of rows of these logits; their tokens are there when it returns.
        """
        h, num_outputs = self._header, len(step.output_rows)
        assert len(step.token_ids) <= self.max_rows, "the step has more rows than were prepared for"
        assert num_outputs <= self.max_outputs, "the step has more outputs than were prepared for"
        h[at.NUM_SEQS], h[at.NUM_ROWS] = len(step.positions), len(step.token_ids)
        final_rows = np.concatenate((step.output_rows, step.state_rows))
        h[at.NUM_OUTPUTS], h[at.NUM_FINAL_ROWS] = num_outputs, len(final_rows)
        self._reserve_tiles(step.block_tables)
        h[at.TOKEN_IDS], h[at.SEQ_ROWS] = _address(step.token_ids), _address(step.seq_rows)
        h[at.SEQ_POSITIONS], h[at.SEQ_TABLES] = _address(step.positions), _address(step.tables)
        h[at.BLOCK_TABLES] = _address(step.block_tables)
        h[at.FINAL_ROWS] = _address(final_rows)
        logits = self._logits[:num_outputs, : self.shape.vocab_size]
        self._run_job(at.STEP, logits, draws)
        self._final_rows = final_rows
        return logits

    def draw(self, logits: np.ndarray, records: np.ndarray) -> np.ndarray:
        """Draws a token from a row of logits for each record (sampling.DRAW); returns tokens [records] int64."""
        self._run_job(at.DRAWS, logits, records)
        return records["token"]

    def rank(self, logits: np.ndarray, records: np.ndarray) -> None:
        """Fills in what each record (sampling.RANK) asks of its row."""
        self._run_job(at.RANKS, logits, records)

    def _run_job(self, job: int, logits: np.ndarray, records: np.ndarray) -> None:
        h = self._header
        assert (logits.dtype, logits.strides[1]) == (np.float32, 4), "rows are float32"
        assert logits.shape[1] <= self.shape.vocab_size, "scratch memory is for the vocabulary"
        h[at.ROW_LOGITS], h[at.ROW_STRIDE] = logits.ctypes.data, logits.strides[0]
        h[at.ROW_COLUMNS] = logits.shape[1]
        h[at.ROW_RECORDS], h[at.NUM_RECORDS] = _address(records), len(records)
        h[at.JOB] = job
        self._run(h, 0)

    def final_states(self, begin: int, end: int) -> np.ndarray:
        """The last step's states after the final norm, float64 [end - begin, hidden], of its state rows `begin` to `end`.

        A row's numbers do not depend on what else was in the step.
        """
        first = int(self._header[at.NUM_OUTPUTS])
        part = np.s_[first + begin : first + end]
        states = (self._x[self._final_rows[part]] + self._delta[part]).astype(np.float64)
        squares = np.square(states).sum(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(squares / self.shape.hidden_size + self.shape.epsilon)
        return states * inverse * self._weights.final_norm

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies blocks of the KV pool in every layer."""
        self.kv[:, targets] = self.kv[:, sources]

    def _start_threads(self) -> list[threading.Thread]:
        """Workers that sleep until `run` wakes them; they keep the memory alive that they touch."""
        threads = [
            threading.Thread(
                target=_help,
                args=(self._run, self._header, number, (self._kept, self._weights)),
                name=f"cpu-step-{number}",
                daemon=True,
            )
            for number in range(1, int(self._header[at.NUM_THREADS]))
        ]
        for thread in threads:
            thread.start()
        return threads

    def _set_shape(self, num_blocks: int, block_size: int, num_threads: int) -> None:
        h, shape = self._header, self.shape
        h[at.NUM_LAYERS], h[at.HIDDEN] = shape.num_layers, shape.hidden_size
        h[at.INTERMEDIATE], h[at.HEAD_DIM] = shape.intermediate_size, shape.head_dim
        h[at.NUM_HEADS], h[at.NUM_KV_HEADS] = shape.num_heads, shape.num_kv_heads
        h[at.HEADS_PER_UNIT], h[at.VOCAB_BLOCKS] = shape.heads_per_unit, shape.vocab_blocks
        h[at.EPSILON], h[at.SOFTMAX_SCALE] = _bits(shape.epsilon), _bits(shape.softmax_scale)
        h[at.TILES_PER_BLOCK] = block_size // at.TILE_TOKENS
        h[at.KV_IS_INT8] = int(shape.int8_kv)
        per_layer = shape.num_layers * shape.num_kv_heads
        h[at.HEAD_TILE_BYTES] = shape.kv_token_bytes * at.TILE_TOKENS // per_layer
        h[at.NUM_TILES] = num_blocks * h[at.TILES_PER_BLOCK]
        h[at.NUM_THREADS], h[at.SPINS] = num_threads, SPINS
        h[at.MAX_ROWS], h[at.MAX_PARTIALS] = self.max_rows, self._max_partials

    def _set_weights(self) -> None:
        h, weights = self._header, self._weights
        table = self._keep(at.LAYERS, self.shape.num_layers * at.LAYER_SLOTS * 8).view(np.int64)
        slots = table.reshape(-1, at.LAYER_SLOTS)
        for row, layer in zip(slots, weights.layers, strict=True):
            row[at.L_INPUT_NORM], row[at.L_POST_NORM] = map(
                _address, (layer.input_norm, layer.post_norm)
            )
            row[at.L_QKV_BIAS] = _address_or_0(layer.qkv_bias)
            row[at.L_Q_NORM], row[at.L_K_NORM] = map(_address_or_0, (layer.q_norm, layer.k_norm))
        self._set_tables(slots)
        h[at.FINAL_NORM], h[at.EMBEDDING] = map(_address, (weights.final_norm, weights.embedding))
        h[at.COSINES], h[at.SINES] = _address(weights.cosines), _address(weights.sines)

    def _set_tables(self, slots: np.ndarray) -> None:
        """Tables stand as a step goes through them, and behind the last so many entries as an item looks ahead."""
        h, weights = self._header, self._weights
        tables = [t for w in weights.layers for t in (w.qkv, w.output, w.gate_up, w.down)]
        starts = np.cumsum([0, *map(len, tables)])
        entries = np.concatenate([*tables, weights.head])
        size = len(entries) + int(h[at.NUM_THREADS]) * MAX_ITEM_BLOCKS
        self._keep(at.TABLES, size * 8).view(np.int64)[:] = np.resize(entries, size)
        addresses = h[at.TABLES] + 8 * starts
        slots[:, [at.L_QKV, at.L_OUTPUT, at.L_GATE_UP, at.L_DOWN]] = addresses[:-1].reshape(-1, 4)
        h[at.HEAD] = addresses[-1]

    def _set_memory(self) -> None:
        shape, rows = self.shape, self.max_rows
        attended = shape.num_heads * shape.head_dim
        width = max(shape.hidden_size, attended)
        state_bytes = (shape.head_dim + at.STATE_PADDING) * 4
        num_phases = shape.num_layers * PHASES_PER_LAYER + OTHER_PHASES
        sizes = {
            at.X: rows * shape.hidden_size * 4,
            at.DELTA: rows * shape.hidden_size * 4,
            at.NUMBERS: max(rows, self.max_outputs) * width,
            at.RECORDS: max(rows, self.max_outputs) * (width // GROUP) * RECORD_BYTES,
            at.ACT_NUMBERS: rows * shape.intermediate_size,
            at.ACT_RECORDS: rows * (shape.intermediate_size // GROUP) * RECORD_BYTES,
            at.PANELS: rows * 8,
            at.QUERIES: rows * attended * 2,
            at.QUERY_FACTORS: rows * shape.num_heads * 4,
            at.ATTENDED: rows * attended * 4,
            at.PARTIALS: self._max_partials * shape.num_heads * state_bytes,
            at.SCRATCH: int(self._header[at.NUM_THREADS]) * self._scratch_bytes(state_bytes),
            at.MAXIMA: self.max_outputs * -(-shape.vocab_size // TILE) * 4,
            at.SAMPLING_SCRATCH: int(self._header[at.NUM_THREADS])
            * scratch_bytes(shape.vocab_size),
            at.ROW_POSITIONS: rows * 4,
            at.ROW_SLOTS: rows * 4,
            at.ROW_CLEARS: rows * 4,
            at.ROW_TARGETS: rows * 4,
            at.GROUPS: rows * at.GROUP_SLOTS * 8,
            at.ENTRIES: (rows + self._max_partials) * at.ENTRY_SLOTS * 8,
            at.TAKEN: (shape.num_layers + 1) * 8,
            at.COUNTERS: (num_phases + 1) * LINE_BYTES,
            at.SEMAPHORE: _SEMAPHORE_BYTES,
        }
        for slot, num_bytes in sizes.items():
            self._keep(slot, num_bytes)
        h = self._header
        h[at.SAMPLING_BYTES] = scratch_bytes(shape.vocab_size)
        h[at.SCRATCH_BYTES] = self._scratch_bytes(state_bytes)
        h[at.GENERATION] = h[at.COUNTERS] + num_phases * LINE_BYTES
        ctypes.CDLL(None).sem_init(ctypes.c_void_p(int(h[at.SEMAPHORE])), 0, 0)
        logits = self._keep(at.LOGITS, self.max_outputs * shape.vocab_blocks * BLOCK_COLUMNS * 4)
        self._logits = logits.view(np.float32).reshape(self.max_outputs, -1)
        self._x, self._delta = (
            self._kept[slot].view(np.float32).reshape(rows, -1) for slot in (at.X, at.DELTA)
        )

    def _scratch_bytes(self, state_bytes: int) -> int:
        """A thread's own memory: attention states or outputs of a panel, then room for one tile of attention rows."""
        shape = self.shape
        states = at.GROUP_ROWS * (shape.num_heads // shape.num_kv_heads) * state_bytes
        columns = max(shape.heads_per_unit * shape.head_dim, GATE_UP_UNITS * 2 * BLOCK_COLUMNS)
        panel = PANEL_ROWS * columns * 4
        return -(-max(states, panel) // ALIGNMENT) * ALIGNMENT + SCRATCH_TAIL

    def _allocate_kv(self, num_blocks: int, tiles_per_block: int) -> np.ndarray:
        """The pool as [layers, blocks, 16-bit words of a block]."""
        size = self.shape.kv_token_bytes * at.TILE_TOKENS * tiles_per_block * num_blocks
        pool = self._keep(at.KV, size).view(np.uint16)
        return pool.reshape(self.shape.num_layers, num_blocks, -1)

    def _reserve_tiles(self, block_tables: np.ndarray) -> None:
        needed = (len(block_tables) * int(self._header[at.TILES_PER_BLOCK]) + at.TABLE_PADDING) * 4
        if at.TILES not in self._kept or len(self._kept[at.TILES]) < needed:
            self._keep(at.TILES, 2 * needed)

    def _keep(self, slot: int, num_bytes: int) -> np.ndarray:
        """Memory that lives as long as the model, its address in the header."""
        self._kept[slot] = aligned_zeros(num_bytes)
        self._header[slot] = _address(self._kept[slot])
        return self._kept[slot]


def _help(run: Callable[..., None], header: np.ndarray, number: int, _kept: object) -> None:
    run(header, number)


def _end_threads(header: np.ndarray, threads: list[threading.Thread]) -> None:
    header[at.STOP] = 1
    post = ctypes.CDLL(None).sem_post
    for _ in threads:
        post(ctypes.c_void_p(int(header[at.SEMAPHORE])))
    for thread in threads:
        thread.join()


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous, "compiled code reads arrays by address"
    return array.ctypes.data


def _address_or_0(array: np.ndarray | None) -> int:
    return 0 if array is None else _address(array)


def _bits(value: float) -> int:
    return struct.unpack("i", struct.pack("f", value))[0]
