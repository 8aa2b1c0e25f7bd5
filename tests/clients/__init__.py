"""Programs that people use with OpenAI, run against a live server as they are."""
