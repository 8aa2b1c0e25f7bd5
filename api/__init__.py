"""WebSocket and HTTP: the protocols that programs speak."""
