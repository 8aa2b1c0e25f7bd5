"""What a step says of one sequence, as the output processor takes it."""

from engine.outputs import (
    Embedding,
    PrefillProgress,
    SampledToken,
    SequenceEnd,
    StepOutput,
)
from engine.sequence import Sequence


def step_output(
    seq: Sequence,
    *,
    sampled: SampledToken | None = None,
    end: SequenceEnd | None = None,
    embedding: Embedding | None = None,
) -> StepOutput:
    """A token drawn, an end, an embedding: what there is of them."""
    return StepOutput(
        seq.request.request_id, seq.seq_id, seq.index, sampled, end=end, embedding=embedding
    )


def scores_told(seq: Sequence) -> list[StepOutput]:
    """The scores of those tokens of the prompt that have been judged since it was last told."""
    scores = seq.request.scores
    told = None if scores is None else scores.tell()
    if told is None:
        return []
    return [StepOutput(seq.request.request_id, seq.seq_id, _open_index(seq), prompt_scores=told)]


def progress_made(seq: Sequence) -> StepOutput:
    """How far the prompt is, for a candidate that has not ended."""
    progress = PrefillProgress(seq.num_computed_tokens, seq.num_prompt_tokens)
    return StepOutput(seq.request.request_id, seq.seq_id, _open_index(seq), progress=progress)


def _open_index(seq: Sequence) -> int:
    """Its own, or of a beam search a candidate's that has not ended."""
    group = seq.request.group
    return seq.index if group is None else min(group.open_candidates)
