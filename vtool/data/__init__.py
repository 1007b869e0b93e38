"""Rows: sources, chats and labels, encoding, batches, and which of them belong to which step."""
