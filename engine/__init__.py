"""The inference engine: paged KV memory, continuous batching, sampling. It never heard of chats or HTTP."""
