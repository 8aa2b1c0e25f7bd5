"""Names of the numbers that Python and the compiled step share: slots of one int64 array, the header.

Addresses are absolute; sizes count elements unless the name says bytes; floats stand as their bits. Slots up to
NUM_LAYERS are set for each step, the others once.
"""

from itertools import count

_slot = count()


def _next() -> int:
    return next(_slot)


# --- set for each step ---
NUM_SEQS = _next()  # runs of tokens, one per scheduled sequence
NUM_ROWS = _next()  # tokens in the step
NUM_OUTPUTS = _next()  # rows whose logits are wanted
NUM_FINAL_ROWS = _next()  # rows that go through the last layer to its end
NUM_GROUPS = _next()  # attention row groups, set by the plan
NUM_ENTRIES = _next()  # attention work entries, set by the plan
NUM_SEQUENCE_TILES = _next()  # tiles of all sequences, set by the plan
STOP = _next()  # not 0: worker threads end
JOB = _next()  # what the threads do next: STEP, DRAWS or RANKS
NUM_RECORDS = _next()  # records of the job; of a step: draws from its logits

# --- shape ---
NUM_LAYERS = _next()
HIDDEN = _next()  # numbers of the residual stream, multiple of 32
INTERMEDIATE = _next()  # inputs of the down projection, multiple of 32
NUM_HEADS = _next()
NUM_KV_HEADS = _next()
HEAD_DIM = _next()  # multiple of 16
HEADS_PER_UNIT = (
    _next()
)  # heads whose columns fill whole weight blocks: 1, or 2 when HEAD_DIM is an odd multiple of 16
VOCAB_BLOCKS = _next()  # blocks of 32 columns of the head
NUM_TILES = _next()  # 16-token tiles of the KV pool
KV_IS_INT8 = _next()  # 0: attention.py's layout, 1: attention_int8.py's
HEAD_TILE_BYTES = _next()  # a tile of one KV head
TILES_PER_BLOCK = _next()  # tiles of a block of the engine
EPSILON = _next()  # float32 bits
SOFTMAX_SCALE = _next()  # float32 bits
NUM_THREADS = _next()
SPINS = _next()  # pauses before a waiting thread yields its processor

# --- weights ---
LAYERS = _next()  # int64 [NUM_LAYERS][LAYER_SLOTS], below
TABLES = _next()  # i64, block tables in the order of a step: qkv, output, gate_up, down of each layer, HEAD, and padding
FINAL_NORM = _next()  # f32 [HIDDEN]
EMBEDDING = _next()  # block table over token ids
HEAD = _next()  # block table [VOCAB_BLOCKS]
COSINES = _next()  # f32 [positions][HEAD_DIM / 2]
SINES = _next()

# --- inputs of a step ---
TOKEN_IDS = _next()  # i32 [NUM_ROWS]
SEQ_ROWS = _next()  # i32 [NUM_SEQS + 1] first row of each run
SEQ_POSITIONS = _next()  # i32 [NUM_SEQS] position of the first row
SEQ_TABLES = _next()  # i32 [NUM_SEQS] where the run's blocks start in BLOCK_TABLES
BLOCK_TABLES = _next()  # i32, all block tables one after another
FINAL_ROWS = _next()  # i32 [NUM_FINAL_ROWS] each row once, the outputs first

# --- made by the plan ---
ROW_POSITIONS = _next()  # i32 [rows]
ROW_SLOTS = _next()  # i32 [rows] tile * 16 + offset
ROW_CLEARS = _next()  # i32 [rows] 1: clear the value slots after this one in the tile
ROW_TARGETS = _next()  # i32 [rows] place in FINAL_ROWS, see last_layer.py
TILES = _next()  # i32, tiles of every sequence one after another
GROUPS = _next()  # i64 [groups][GROUP_SLOTS], below
ENTRIES = _next()  # i64 [entries][ENTRY_SLOTS], below
TAKEN = _next()  # i64 [NUM_LAYERS + 1] head tiles that somebody fetches, see fetching.py
MAX_PARTIALS = _next()

# --- activations ---
X = _next()  # f32 [rows][HIDDEN] residual stream
DELTA = _next()  # f32 [rows][HIDDEN] what the last linear layer adds to it
NUMBERS = _next()  # i8 [rows][inputs] quantised input of a linear layer
RECORDS = _next()  # its group records
ACT_NUMBERS = _next()  # i8 [rows][INTERMEDIATE] input of the down projection
ACT_RECORDS = _next()
PANELS = _next()  # i64 [panels of rows] items of gate and up that are done, 0 between two layers
QUERIES = _next()  # bf16 [NUM_KV_HEADS][MAX_ROWS][heads per KV head][HEAD_DIM], scaled, in pairs (i, i + HEAD_DIM / 2)
QUERY_FACTORS = (
    _next()
)  # f32 [NUM_KV_HEADS][MAX_ROWS][heads per KV head], with KV_IS_INT8, where queries are int16
MAX_ROWS = _next()
ATTENDED = _next()  # f32 [rows][NUM_HEADS * HEAD_DIM]
PARTIALS = _next()  # f32 [MAX_PARTIALS][NUM_HEADS][HEAD_DIM + STATE_PADDING]
LOGITS = _next()  # f32 [outputs][VOCAB_BLOCKS * 32]
KV = _next()  # see attention.py
MAXIMA = _next()  # f32 [outputs][tiles of 256 columns] largest logits, found where a step draws
ROW_RECORDS = _next()  # records of draws and ranks, see sampling.py and ranking.py
ROW_LOGITS = _next()  # f32 [.][ROW_COLUMNS], rows that records speak of
ROW_STRIDE = _next()  # bytes from row to row
ROW_COLUMNS = _next()
SAMPLING_SCRATCH = _next()  # SAMPLING_BYTES for each thread
SAMPLING_BYTES = _next()
SCRATCH = _next()  # SCRATCH_BYTES for each thread
SCRATCH_BYTES = _next()

# --- threads ---
GENERATION = _next()  # address of an int64: which step runs, see threads.py
COUNTERS = _next()  # cache lines of (claimed, done), one per phase
SEMAPHORE = _next()
STEP_NUMBER = _next()
HEADER_SLOTS = _next()

STEP, DRAWS, RANKS = range(3)  # the jobs

# --- a layer's slots ---
(
    L_INPUT_NORM,
    L_QKV,
    L_QKV_BIAS,
    L_Q_NORM,
    L_K_NORM,
    L_OUTPUT,
    L_POST_NORM,
    L_GATE_UP,
    L_DOWN,
    LAYER_SLOTS,
) = range(10)

# --- an attention group: rows of one sequence that are attended together ---
(G_ROW, G_NUM_ROWS, G_TILES, G_PARTIAL, G_ITEMS, G_REMAINING, GROUP_SLOTS) = range(7)
# --- an attention entry: chunks of keys for one group (and, by its item number, one KV head) ---
(E_GROUP, E_FIRST_CHUNK, E_END_CHUNK, E_IS_SPLIT, ENTRY_SLOTS) = range(5)

TILE_TOKENS = 16
CHUNK_TOKENS = 256
CHUNK_TILES = CHUNK_TOKENS // TILE_TOKENS
GROUP_ROWS = 32
STATE_PADDING = 16  # (largest score, sum of exponentials) and padding behind HEAD_DIM accumulators
TABLE_PADDING = CHUNK_TILES  # entries that a prefetch may read behind a tile table
