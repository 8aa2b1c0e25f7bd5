"""The Gradio page: chat, dashboard, settings."""
