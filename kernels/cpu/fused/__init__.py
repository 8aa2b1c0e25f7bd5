"""The fused CPU step: one compiled call from token ids to logits over paged memory, for Llama-family models."""
