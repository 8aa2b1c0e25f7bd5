"""The specification against torch's own attention and hand-computed values."""

import math

import pytest
import torch

from kernels import reference
from kernels.kv_pool import LayerCache
from tests.kernels.paged import make_batch


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
