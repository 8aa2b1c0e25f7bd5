"""Other engines on the same load, each run by the Python that has it installed; they know nothing of this project."""
