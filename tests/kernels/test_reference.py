"""The specification against torch's own attention and hand-computed values."""

import math
from typing import Any

import pytest
import torch

from kernels import reference
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache
from tests.kernels.paged import NO_BLOCK, make_batch


@pytest.mark.parametrize("query_len", [1, 5, 40])
def test_paged_attention_equals_dense_attention_of_the_last_rows(query_len: int) -> None:
    batch = make_batch([(query_len, 40)], block_size=8, group_size=3)
    blocks = batch.block_tables[0, :5].long()
    keys, values = (
        cache[blocks].transpose(0, 1).flatten(1, 2).repeat_interleave(3, dim=0)
        for cache in (batch.cache.keys, batch.cache.values)
    )
    visible = torch.ones(40, 40, dtype=torch.bool).tril()[-query_len:]
    expected = torch.nn.functional.scaled_dot_product_attention(
        batch.query.transpose(0, 1), keys, values, attn_mask=visible
    )
    actual = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(actual, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 40, 1000])
@pytest.mark.parametrize("query_len", [1, 5, 40])
def test_a_window_hides_what_lies_before_it(query_len: int, window: int) -> None:
    """The key `window - 1` before a token is the first that it sees, as transformers' masks have it."""
    batch = make_batch([(query_len, 40)], block_size=8, group_size=1, window=window)
    keys, values = (
        cache[batch.block_tables[0, :5].long()].transpose(0, 1).flatten(1, 2).nan_to_num(1e4)
        for cache in (batch.cache.keys, batch.cache.values)
    )
    distance = torch.arange(40 - query_len, 40)[:, None] - torch.arange(40)
    visible = (distance >= 0) & (distance < window)
    expected = torch.nn.functional.scaled_dot_product_attention(
        batch.query.transpose(0, 1), keys, values, attn_mask=visible
    )
    actual = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(actual, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_blocks_before_all_windows_need_not_exist() -> None:
    batch = make_batch([(2, 40), (2, 40)], block_size=8, window=7)
    assert batch.block_tables[1].tolist()[:4] == [NO_BLOCK] * 4
    assert reference.paged_attention(*batch.arguments()).isfinite().all()


def test_a_soft_cap_bends_scores_before_softmax() -> None:
    batch = make_batch([(1, 2)], num_kv_heads=1, group_size=1, head_dim=2, soft_cap=3.0)
    batch.query.copy_(torch.tensor([[[2.0, 0.0]]]))
    block = batch.block_tables[0, 0]
    batch.cache.keys[block, 0, :2] = torch.tensor([[1.0, 0.0], [-40.0, 0.0]])
    batch.cache.values[block, 0, :2] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    scores = [3.0 * math.tanh(score * 2.0**-0.5 / 3.0) for score in (2.0, -80.0)]
    weights = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
    actual = reference.paged_attention(*batch.arguments())[0, 0]
    torch.testing.assert_close(actual, torch.tensor(weights), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("wrong", [{"window": 0}, {"soft_cap": 0.0}])
def test_rules_that_mean_nothing_are_ours_to_avoid(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        AttentionRules(1.0, **wrong)


def test_rows_before_the_first_key_give_zero() -> None:
    batch = make_batch([(3, 2), (2, 0)])
    out = reference.paged_attention(*batch.arguments())
    assert not out[[0, 3, 4]].any()
    assert out[[1, 2]].abs().sum(dim=(1, 2)).gt(0).all()


def test_store_puts_a_token_at_its_slot_and_nowhere_else() -> None:
    kv_cache = torch.zeros(2, 3, 2, 4, 8)
    key, value = torch.ones(1, 2, 8), torch.full((1, 2, 8), 2.0)
    reference.store_kv_cache(key, value, LayerCache(*kv_cache), torch.tensor([9]))
    assert (kv_cache[0, 2, :, 1] == 1).all()
    assert (kv_cache[1, 2, :, 1] == 2).all()
    assert kv_cache.sum() == 16 + 32


def test_a_negative_slot_is_not_stored() -> None:
    kv_cache = torch.zeros(2, 3, 2, 4, 8)
    key, value = torch.ones(2, 2, 8), torch.full((2, 2, 8), 2.0)
    reference.store_kv_cache(key, value, LayerCache(*kv_cache), torch.tensor([-1, 9]))
    assert kv_cache.sum() == 16 + 32


def test_rotary_rotates_halves_by_the_angle_of_the_position() -> None:
    angles = torch.tensor([[0.0], [math.pi / 2]])
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    heads = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    turned = reference.rotate(heads, torch.tensor([1]), cos_sin)
    torch.testing.assert_close(turned, torch.tensor([[[-2.0, 1.0], [-4.0, 3.0]]]))


def test_norm_equals_torch() -> None:
    x, weight = torch.randn(3, 16), torch.randn(16)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), expected)
    normed, total = reference.fused_add_rms_norm(x - 1, torch.ones_like(x), weight, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(total, x)
