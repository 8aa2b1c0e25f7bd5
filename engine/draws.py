"""Which rows of a step have logits, and which tokens are drawn from each: for every model runner."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.outputs import ModelRunnerOutput, SampledToken, SampleRequest, ScheduledSequence


@dataclass(frozen=True, slots=True)
class Draws:
    """`rows` are the step's rows with logits, ascending; request i draws from the logits of row `rows[sources[i]]`."""

    rows: list[int]
    requests: list[SampleRequest]
    sources: list[int]

    @property
    def has_own_rows(self) -> bool:
        """Whether no two requests draw from the same row, as the candidates of a new prompt do."""
        return len(self.rows) == len(self.requests)

    def output(
        self, tokens: Iterable[SampledToken], state_sums: Mapping[int, Sequence[float]]
    ) -> ModelRunnerOutput:
        """What was drawn, a token per request in order, as the scheduler wants it."""
        samples: dict[int, SampledToken] = {}
        behind_drafts: defaultdict[int, list[SampledToken]] = defaultdict(list)
        for request, token in zip(self.requests, tokens, strict=True):
            if request.seq_id in samples:
                behind_drafts[request.seq_id].append(token)
            else:
                samples[request.seq_id] = token
        return ModelRunnerOutput(samples, state_sums, behind_drafts)


def find_draws(scheduled: Iterable[ScheduledSequence]) -> Draws:
    """The draws of a step: behind the last token of each sequence that samples, and behind each draft."""
    draws, end = Draws([], [], []), 0
    for sequence in scheduled:
        end += len(sequence.token_ids)
        if sequence.samples:
            first = len(draws.rows)
            draws.rows.extend(range(end - 1 - sequence.num_drafts, end))
            draws.requests.extend(sequence.samples)
            has_drafts = sequence.num_drafts > 0
            draws.sources.extend(first + i * has_drafts for i in range(len(sequence.samples)))
    return draws
