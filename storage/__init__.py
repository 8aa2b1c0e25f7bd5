"""What must survive: conversations, messages and engine samples in SQL."""
