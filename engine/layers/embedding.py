"""The token table: rows by id on the way in, and exact scores of the likeliest tokens on the way out."""

import torch
import torch.nn.functional as F

from engine.layers.linear import EightBitLinear, Int8Linear
from engine.loader.quantized import EightBitWeight, Int8Table


class Embedding:
    """Rows of weight [vocab_size, hidden_size] as float32."""

    def __init__(self, weight: torch.Tensor | Int8Table | EightBitWeight) -> None:
        self.weight = weight

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Rows [..., hidden_size] float32 of input_ids [...] int64."""
        if isinstance(self.weight, torch.Tensor):
            return F.embedding(input_ids, self.weight).float()
        return self.weight(input_ids)


class RescoredHead:
    """Logits by a fast product, those of the likeliest tokens replaced by exact ones.

    The fast product is rounded to bfloat16, which makes ties of the best tokens; their exact scores order them.
    """

    NUM_EXACT = 32

    def __init__(self, approximate: Int8Linear, table: Embedding) -> None:
        self.approximate, self.table = approximate, table
        self.num_exact = min(self.NUM_EXACT, len(approximate.weight))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of hidden [num_rows, hidden_size] float32."""
        logits = self.approximate(hidden.bfloat16()).float()
        token_ids = logits.topk(self.num_exact, sorted=False).indices
        # A matrix product would add in an order that depends on the number of rows.
        exact = (self.table(token_ids) * hidden[:, None]).sum(-1)
        return logits.scatter_(1, token_ids, exact)


class EightBitHead:
    """Logits by the product with a weight in eight bits, in numbers of `dtype`."""

    def __init__(self, linear: EightBitLinear, dtype: torch.dtype) -> None:
        self.linear, self.dtype = linear, dtype

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of hidden [num_rows, hidden_size] float32."""
        return self.linear(hidden.to(self.dtype)).float()


class DenseHead:
    """Logits by the product with weight [vocab_size, hidden_size], in the weight's dtype."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of hidden [num_rows, hidden_size] float32."""
        return F.linear(hidden.to(self.weight.dtype), self.weight).float()
