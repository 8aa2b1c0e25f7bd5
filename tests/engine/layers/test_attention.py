"""The attention layer: writes where the step says, reads through the block table."""

import torch

from engine.attention_metadata import build_step_inputs, forward_context
from engine.layers.attention import Attention
from engine.outputs import ScheduledSequence
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache
from kernels.ops import select_backend

CPU = torch.device("cpu")


def test_a_decode_sees_what_the_prefill_stored() -> None:
    torch.manual_seed(0)
    layer = Attention(AttentionRules(16**-0.5), select_backend("reference", CPU))
    pool = torch.full((2, 6, 2, 4, 16), float("nan"))
    layer.bind(LayerCache(*pool))
    query, key, value = (torch.randn(6, heads, 16) for heads in (4, 2, 2))
    table = [4, 1]
    no_turn = torch.cat([torch.ones(6, 8), torch.zeros(6, 8)], dim=1)
    parts = []
    for start, end in ((0, 5), (5, 6)):
        run = ScheduledSequence(0, [0] * (end - start), start, table, ())
        with forward_context(build_step_inputs([run], 4, CPU).metadata):
            rows = slice(start, end)
            positions = torch.arange(start, end)
            parts.append(layer(query[rows], key[rows], value[rows], positions, no_turn))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1).repeat_interleave(2, 0),
        value.transpose(0, 1).repeat_interleave(2, 0),
        is_causal=True,
    ).transpose(0, 1)
    assert torch.allclose(torch.cat(parts), expected, atol=1e-5)
    assert torch.equal(pool[0, 4].transpose(0, 1), key[:4])
    assert torch.equal(pool[1, 1].transpose(0, 1)[:2], value[4:])
    assert pool[:, [0, 2, 3, 5]].isnan().all(), "other blocks are not touched"
