"""Token rows in, logits out."""

import torch

from engine.layers.embedding import DenseHead, EightBitHead, Embedding, RescoredHead
from engine.layers.linear import EightBitLinear, Int8Linear
from engine.loader.quantized import EightBitWeight, Int8Table
from kernels.eight_bits import dequantize
from kernels.reference import quantized_linear


def table(num_rows: int = 500) -> torch.Tensor:
    return torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(2))


def test_rows_come_in_float32_from_dense_and_packed_tables() -> None:
    ids = torch.tensor([3, 0, 3])
    dense = Embedding(table().bfloat16())(ids)
    assert dense.dtype == torch.float32
    assert torch.equal(dense, table().bfloat16().float()[ids])
    values = torch.randint(-127, 128, (500, 2, 32), dtype=torch.int8)
    scales = torch.rand(500, 2)
    packed = Embedding(Int8Table(values, scales))(ids)
    assert torch.equal(packed, (values * scales[..., None]).flatten(1)[ids])


def test_dense_logits_are_float32() -> None:
    hidden = torch.randn(2, 64)
    logits = DenseHead(table())(hidden)
    assert torch.allclose(logits, hidden @ table().T, atol=1e-5)
    assert DenseHead(table().bfloat16())(hidden).dtype == torch.float32


def test_rows_and_logits_of_a_table_in_eight_bits() -> None:
    weight = EightBitWeight.of(table(), torch.float8_e4m3fn, torch.device("cpu"))
    exact = dequantize(weight.numbers, weight.scales)
    ids = torch.tensor([[3, 0], [3, 499]])
    assert torch.equal(Embedding(weight)(ids), exact[ids])
    hidden = torch.randn(2, 64)
    logits = EightBitHead(EightBitLinear(weight, quantized_linear), torch.bfloat16)(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, (hidden.bfloat16().float() @ exact.T).bfloat16().float())


def test_the_likeliest_tokens_get_exact_scores() -> None:
    weight = table()
    weight[7] = weight[8] * 1.0005  # less apart than bfloat16 can tell
    hidden = torch.stack([weight[8], weight[20], -weight[30]])
    exact = hidden @ weight.T
    logits = RescoredHead(Int8Linear(weight), Embedding(weight))(hidden)
    best = exact.topk(20).indices
    assert torch.allclose(logits.gather(1, best), exact.gather(1, best), atol=1e-4)
    assert logits[0].topk(2).indices.tolist() == [7, 8]
    assert (logits - exact).abs().max() < 0.05 * exact.std()


def test_a_vocabulary_smaller_than_the_exact_part() -> None:
    weight = table(16)
    logits = RescoredHead(Int8Linear(weight), Embedding(weight))(weight[:3])
    assert torch.allclose(logits, weight[:3] @ weight.T, atol=1e-4)
