"""The stages of the pipeline, one folder each, and the modules that every stage may use."""
