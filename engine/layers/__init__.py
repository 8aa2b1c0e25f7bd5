"""Building blocks of the models: linear, norm, rotary embedding, attention."""
