"""Draftproof's additions to a serving environment: nothing here imports the pipeline."""
